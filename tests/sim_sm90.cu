// sim_sm90.cu - what the simulator says when the instructions of ptx_sm90.h are misused. The line
// of a fault carries the mark `//! name`. Innocent kernels are at the end.

#include "sim_sm90.h"
#include "marks.h"
#include "ptx_sm90.h"

#include <stdlib.h>

namespace sim_sm90 {

// Tiles of 64 rows of 128 bytes; the barriers lie behind eight of them.
constexpr int TILE = 8192;
#define MAP const __grid_constant__ CUtensorMap

__device__ inline unsigned char *tile(int i) { return smem + i * TILE; }
__device__ inline uint64_t *barrier(int i) {
    return reinterpret_cast<uint64_t *>(smem + 8 * TILE) + i;
}
__device__ inline float *words(int i) { return reinterpret_cast<float *>(tile(i)); }

// Barriers 0 to 3, for `count` arrivals each.
__device__ inline void init(int count) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < 4; i++) mbarrier_init(barrier(i), count); //! initialised_twice
        mbarrier_fence_init();
    }
    __syncthreads(); // the barriers are ready
}
// Starts the copy of tile i, rows from 64 i on, with barrier i.
__device__ inline void load(const CUtensorMap &a, int i) {
    mbarrier_arrive_expect_tx(barrier(i), TILE);
    tma_load_2d(tile(i), &a, barrier(i), 0, 64 * i);
}

// ---- mbarriers ----------------------------------------------------------------------------------

__global__ void never_initialised(float *b) {
    mbarrier_arrive(barrier(0)); //! never_initialised
    b[threadIdx.x] = 0;
}
__global__ void used_before_the_barrier(float *b) {
    if (threadIdx.x == 0) mbarrier_init(barrier(0), 64);
    mbarrier_arrive(barrier(0)); //! used_before_the_barrier
    b[threadIdx.x] = 0;
}
// The warp that initialised it has met, the other one has not.
__global__ void waited_for_before_the_barrier(float *b) {
    if (threadIdx.x == 0) mbarrier_init(barrier(0), 1);
    __syncwarp();
    mbarrier_wait(barrier(0), 1); //! waited_for_before_the_barrier
    b[threadIdx.x] = 0;
}
__global__ void not_fenced(MAP a) {
    if (threadIdx.x == 0) {
        mbarrier_init(barrier(0), 1);
        mbarrier_arrive_expect_tx(barrier(0), TILE);
        tma_load_2d(tile(0), &a, barrier(0), 0, 0); //! not_fenced
    }
}
__global__ void overwritten(float *b) {
    init(64);
    if (threadIdx.x == 0) words(8)[0] = 0;
    mbarrier_arrive(barrier(0)); //! overwritten
    b[threadIdx.x] = 0;
}
__global__ void too_many_arrivals() {
    init(1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier(0), TILE);
        mbarrier_arrive(barrier(0)); //! too_many_arrivals
    }
}
__global__ void initialised_twice() {
    init(1);
    init(1); // see init() above
}
__global__ void too_many_bytes_expected(MAP a) {
    init(1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier(0), TILE + 16);
        tma_load_2d(tile(0), &a, barrier(0), 0, 0);
    }
    mbarrier_wait(barrier(0), 0); //! too_many_bytes_expected
}
__global__ void too_few_bytes_expected(MAP a) {
    init(1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier(0), TILE / 2);
        tma_load_2d(tile(0), &a, barrier(0), 0, 0);
    }
    mbarrier_wait(barrier(0), 0); //! too_few_bytes_expected
}
// The producer waits for "empty" with the parity of a phase that must still come.
__global__ void empty_with_the_wrong_parity(MAP a) {
    init(1);
    if (threadIdx.x == 0) {
        mbarrier_wait(barrier(1), 0); //! empty_with_the_wrong_parity
        load(a, 0);
    }
    if (threadIdx.x < 32) return;
    mbarrier_wait(barrier(0), 0);
    if (threadIdx.x == 32) mbarrier_arrive(barrier(1));
}
__global__ void one_arrival_short() {
    init(64);
    if (threadIdx.x != 9) mbarrier_arrive(barrier(0));
    mbarrier_wait(barrier(0), 0); //! one_arrival_short
}

// ---- TMA ----------------------------------------------------------------------------------------

__global__ void tile_read_at_once(MAP a, float *b) {
    init(1);
    if (threadIdx.x == 0) load(a, 0);
    __syncthreads();
    b[threadIdx.x] = words(0)[threadIdx.x]; //! tile_read_at_once
}
__global__ void full_with_the_wrong_parity(MAP a, float *b) {
    init(1);
    if (threadIdx.x == 0) load(a, 0);
    mbarrier_wait(barrier(0), 1);
    __syncthreads();
    b[threadIdx.x] = words(0)[threadIdx.x]; //! full_with_the_wrong_parity
}
// Waits for tile 0 and reads tile 1.
__global__ void another_tile(MAP a, float *b) {
    init(1);
    if (threadIdx.x == 0) {
        load(a, 1);
        load(a, 0);
    }
    mbarrier_wait(barrier(0), 0);
    b[threadIdx.x] = words(1)[threadIdx.x]; //! another_tile
}
// One warp waits for both tiles, the other only for the second, and reads the first.
__global__ void only_one_warp_waits(MAP a, float *b) {
    init(1);
    if (threadIdx.x == 0) load(a, 0), load(a, 1);
    if (threadIdx.x < 32) {
        mbarrier_wait(barrier(0), 0);
        mbarrier_wait(barrier(1), 0);
    } else {
        mbarrier_wait(barrier(1), 0);
        b[threadIdx.x] = words(0)[threadIdx.x]; //! only_one_warp_waits
    }
}
// The second copy into the tile does not wait until the first has been read.
__global__ void tile_filled_again(MAP a, float *b) {
    init(1);
    if (threadIdx.x == 0) load(a, 0);
    mbarrier_wait(barrier(0), 0);
    b[threadIdx.x] = words(0)[threadIdx.x + 1];
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier(1), TILE);
        tma_load_2d(tile(0), &a, barrier(1), 0, 64); //! tile_filled_again
    }
    mbarrier_wait(barrier(1), 0);
}
__global__ void tile_misaligned(MAP a) {
    init(1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier(0), TILE);
        tma_load_2d(tile(0) + 512, &a, barrier(0), 0, 0); //! tile_misaligned
    }
}
__global__ void column_misaligned(MAP a) {
    init(1);
    if (threadIdx.x == 0) tma_load_2d(tile(0), &a, barrier(0), -3, 0); //! column_misaligned
}
__global__ void misaligned_64(MAP a) {
    init(1);
    if (threadIdx.x == 0) tma_load_2d(tile(0) + 256, &a, barrier(0), 0, 0); //! misaligned_64
}
__global__ void misaligned_32(MAP a) {
    init(1);
    if (threadIdx.x == 0) tma_load_2d(tile(0) + 128, &a, barrier(0), 0, 0); //! misaligned_32
}
__global__ void tile_outside(MAP a) {
    init(1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier(0), TILE);
        tma_load_2d(tile(8), &a, barrier(0), 0, 0); //! tile_outside
    }
}
__global__ void another_rank(MAP a) {
    init(1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier(0), TILE);
        tma_load_3d(tile(0), &a, barrier(0), 0, 0, 0); //! another_rank
    }
}
__global__ void no_map() {
    __shared__ CUtensorMap nothing;
    init(1);
    if (threadIdx.x == 0) tma_load_2d(tile(0), &nothing, barrier(0), 0, 0); //! no_map
}
__global__ void store_without_fence(MAP b) {
    for (int i = threadIdx.x; i < TILE / 4; i += 64) words(0)[i] = i; //! store_without_fence
    __syncthreads();
    if (threadIdx.x == 0) {
        tma_store_2d(&b, tile(0), 0, 0);
        tma_store_commit();
        tma_store_wait<0>();
    }
}
// Only the thread that stores executes the fence.
__global__ void fence_of_another_thread(MAP b) {
    for (int i = threadIdx.x; i < TILE / 4; i += 64) words(0)[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) {
        fence_proxy_async();
        tma_store_2d(&b, tile(0), 0, 0); //! fence_of_another_thread
        tma_store_commit();
        tma_store_wait<0>();
    }
}
__device__ inline void fill(int i) {
    for (int k = threadIdx.x; k < TILE / 4; k += 64) words(i)[k] = k;
    fence_proxy_async();
    __syncthreads();
}
__global__ void source_overwritten(MAP b) {
    fill(0);
    if (threadIdx.x == 0) {
        tma_store_2d(&b, tile(0), 0, 0); //! source_overwritten
        tma_store_commit();
        words(0)[5] = 0;
        tma_store_wait<0>();
    }
}
__global__ void store_not_waited_for(MAP b) {
    fill(0);
    if (threadIdx.x == 0) {
        tma_store_2d(&b, tile(0), 0, 0); //! store_not_waited_for
        tma_store_commit();
    }
}
__global__ void store_not_committed(MAP b) {
    fill(0);
    if (threadIdx.x == 0) {
        tma_store_2d(&b, tile(0), 0, 0); //! store_not_committed
        tma_store_wait<0>();
    }
}
__global__ void store_before_the_tensor(MAP b) {
    fill(0);
    if (threadIdx.x == 0) tma_store_2d(&b, tile(0), -8, 0); //! store_before_the_tensor
}
__global__ void store_to_an_input(MAP a) {
    fill(0);
    if (threadIdx.x == 0) tma_store_2d(&a, tile(0), 0, 0); //! store_to_an_input
}

// ---- stmatrix -----------------------------------------------------------------------------------

__global__ void matrix_row_in_hbm(float *b) {
    uint32_t r[4] = {};
    stmatrix_x4(b, r); //! matrix_row_in_hbm
}
__global__ void matrix_row_misaligned() {
    uint32_t r[4] = {};
    stmatrix_x4(smem + threadIdx.x * 136, r); //! matrix_row_misaligned
}
// The rows of a lane are given by others.
__global__ void matrix_without_syncwarp(float *b) {
    uint32_t r[4] = {};
    stmatrix_x4(smem + threadIdx.x * 16, r);
    b[threadIdx.x] = words(0)[threadIdx.x * 4 + 4]; //! matrix_without_syncwarp
}
__global__ void matrix_without_fence(MAP b) {
    uint32_t r[4] = {};
    for (int i = 0; i < TILE / 512; i++)
        stmatrix_x4(tile(0) + i * 512 + threadIdx.x * 16, r); //! matrix_without_fence
    __syncthreads();
    if (threadIdx.x == 0) {
        tma_store_2d(&b, tile(0), 0, 0);
        tma_store_commit();
        tma_store_wait<0>();
    }
}
// Rows of 128 bytes begin in the same bank; swizzled, in 8 different ones.
__global__ void matrix_rows(float *b, bool swizzle) {
    uint32_t r[4] = {};
    int row = threadIdx.x, piece = swizzle ? row % 8 : 0;
    stmatrix_x4(smem + row * 128 + piece * 16, r);
    b[row] = 0;
}

// ---- wgmma --------------------------------------------------------------------------------------

// Tiles 0 and 1 are there for all 128 threads.
__device__ inline void load_operands(const CUtensorMap &a) {
    init(1);
    if (threadIdx.x == 0) load(a, 0), load(a, 1);
    mbarrier_wait(barrier(0), 0);
    mbarrier_wait(barrier(1), 0);
}
using T = __half;
#define PRODUCT(d, accumulate)                                                                     \
    wgmma_m64k16<64, T>(d, wgmma_k_major(tile(0)), wgmma_k_major(tile(1)), accumulate)
__device__ inline void leave(const float (&d)[32], float *b) {
    for (int i = 0; i < 32; i++) b[i * 128 + threadIdx.x] = d[i];
}

__global__ void accumulators_read_at_once(MAP a, float *b) {
    float d[32];
    load_operands(a);
    wgmma_fence();
    PRODUCT(d, 0);
    wgmma_commit();
    b[threadIdx.x] = d[0]; //! accumulators_read_at_once
    wgmma_wait<0>();
}
__global__ void group_not_committed(MAP a, float *b) {
    float d[32];
    load_operands(a);
    wgmma_fence();
    PRODUCT(d, 0);
    wgmma_wait<0>();
    b[threadIdx.x] = d[0]; //! group_not_committed
}
__global__ void one_group_too_few(MAP a, float *b) {
    float d[32], e[32];
    load_operands(a);
    wgmma_fence();
    PRODUCT(d, 0);
    wgmma_commit();
    PRODUCT(e, 0);
    wgmma_commit();
    wgmma_wait<1>();
    leave(d, b);
    b[threadIdx.x] = e[0]; //! one_group_too_few
    wgmma_wait<0>();
}
__global__ void wait_too_short(MAP a, float *b) {
    float d[32], e[32];
    load_operands(a);
    wgmma_fence(d, e);
    PRODUCT(d, 0);
    wgmma_commit();
    PRODUCT(e, 0);
    wgmma_commit();
    wgmma_wait<1>(d, e); //! wait_too_short
    leave(d, b);
}
__global__ void no_fence(MAP a, float *b) {
    float d[32];
    load_operands(a);
    PRODUCT(d, 0); //! no_fence
    wgmma_commit();
    wgmma_wait<0>();
    leave(d, b);
}
__global__ void fence_too_early(MAP a, float *b) {
    float d[32];
    load_operands(a);
    wgmma_fence();
    PRODUCT(d, 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence();
    for (int i = 0; i < 32; i++) d[i] *= 2;
    PRODUCT(d, 1); //! fence_too_early
    wgmma_commit();
    wgmma_wait<0>();
    leave(d, b);
}
__global__ void operand_not_waited_for(MAP a, float *b) {
    float d[32];
    init(1);
    if (threadIdx.x == 0) load(a, 0), load(a, 1);
    mbarrier_wait(barrier(0), 0);
    wgmma_fence();
    PRODUCT(d, 0); //! operand_not_waited_for
    wgmma_commit();
    wgmma_wait<0>();
    leave(d, b);
}
// A is stored by the threads, and the tensor cores do not see it yet.
__global__ void operand_without_fence(MAP a, float *b) {
    float d[32];
    load_operands(a);
    __syncthreads();
    for (int i = threadIdx.x; i < TILE / 4; i += 128) words(0)[i] = 0;
    __syncthreads();
    wgmma_fence();
    PRODUCT(d, 0); //! operand_without_fence
    wgmma_commit();
    wgmma_wait<0>();
    leave(d, b);
}
// The producer is told that tile 1 is free before the product that reads it is complete.
__global__ void freed_too_early(MAP a, float *b) {
    float d[32];
    init(1);
    if (threadIdx.x >= 128) {
        if (threadIdx.x == 128) {
            load(a, 0), load(a, 1);
            mbarrier_wait(barrier(2), 0);
            load(a, 1);
        }
        return;
    }
    mbarrier_wait(barrier(0), 0);
    mbarrier_wait(barrier(1), 0);
    wgmma_fence();
    PRODUCT(d, 0); //! freed_too_early
    wgmma_commit();
    if (threadIdx.x == 0) mbarrier_arrive(barrier(2));
    wgmma_wait<0>();
    leave(d, b);
}
__global__ void past_the_panel(MAP a, float *b) {
    float d[32];
    load_operands(a);
    wgmma_fence();
    for (int k = 0; k < 5; k++)
        wgmma_m64k16<64, T>(d, wgmma_k_major(tile(0) + 32 * k), //! past_the_panel
                            wgmma_k_major(tile(1) + 32 * k), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    leave(d, b);
}
__global__ void no_leading_offset(MAP a, float *b) {
    float d[64];
    load_operands(a);
    wgmma_fence();
    wgmma_m64k16<128, T, K_MAJOR, MN_MAJOR>(d, wgmma_k_major(tile(0)), //! no_leading_offset
                                            wgmma_mn_major(tile(1), 0), 0);
    wgmma_commit();
    wgmma_wait<0>();
    b[threadIdx.x] = d[0];
}
__global__ void descriptor_outside(MAP a, float *b) {
    float d[32];
    load_operands(a);
    uint64_t A = wgmma_k_major(tile(0)), B = wgmma_k_major(tile(9));
    wgmma_fence();
    wgmma_m64k16<64, T>(d, A, B, 0); //! descriptor_outside
    wgmma_commit();
    wgmma_wait<0>();
    leave(d, b);
}
__global__ void a_warp_is_missing(MAP a, float *b) {
    float d[32];
    load_operands(a);
    if (threadIdx.x >= 96) return;
    wgmma_fence();
    PRODUCT(d, 0); //! a_warp_is_missing
    wgmma_commit();
    wgmma_wait<0>();
    leave(d, b);
}
__global__ void never_waited_for(MAP a) {
    float d[32];
    load_operands(a);
    wgmma_fence();
    PRODUCT(d, 0); //! never_waited_for
    wgmma_commit();
}

// ---- wgmma: e4m3 (the bytes of a's numbers: any will do) ----------------------------------------

#define PRODUCT_E4M3(d) wgmma_m64k32<64>(d, wgmma_k_major(tile(0)), wgmma_k_major(tile(1)), 0)

__global__ void fp8_read_at_once(MAP a, float *b) {
    float d[32];
    load_operands(a);
    wgmma_fence();
    PRODUCT_E4M3(d);
    wgmma_commit();
    b[threadIdx.x] = d[0]; //! fp8_read_at_once
    wgmma_wait<0>();
}
// V as it is stored, where its transpose is needed.
__global__ void fp8_mn_major(MAP a, float *b) {
    float d[32];
    load_operands(a);
    uint64_t A = wgmma_k_major(tile(0)), B = wgmma_mn_major(tile(1), TILE);
    wgmma_fence();
    wgmma_m64k32<64>(d, A, B, 0); //! fp8_mn_major
    wgmma_commit();
    wgmma_wait<0>();
    leave(d, b);
}
__global__ void fp8_past_the_panel(MAP a, float *b) {
    float d[32];
    load_operands(a);
    wgmma_fence();
    for (int k = 0; k < 3; k++)
        wgmma_m64k32<64>(d, wgmma_k_major(tile(0) + 32 * k, SWIZZLE_64B), //! fp8_past_the_panel
                         wgmma_k_major(tile(1) + 32 * k, SWIZZLE_64B), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    leave(d, b);
}
__global__ void fp8_half_a_step(MAP a, float *b) {
    float d[32];
    load_operands(a);
    uint64_t A = wgmma_k_major(tile(0) + 112), B = wgmma_k_major(tile(1));
    wgmma_fence();
    wgmma_m64k32<64>(d, A, B, 0); //! fp8_half_a_step
    wgmma_commit();
    wgmma_wait<0>();
    leave(d, b);
}
__global__ void fp8_outside(MAP a, float *b) {
    float d[32];
    load_operands(a);
    uint64_t A = wgmma_descriptor(tile(0), 9 * TILE, 128, SWIZZLE_NONE), B = wgmma_k_major(tile(1));
    wgmma_fence();
    wgmma_m64k32<64>(d, A, B, 0); //! fp8_outside
    wgmma_commit();
    wgmma_wait<0>();
    leave(d, b);
}
__global__ void fp8_operand_changed(MAP a, float *b) {
    float d[32];
    load_operands(a);
    wgmma_fence();
    PRODUCT_E4M3(d); //! fp8_operand_changed
    wgmma_commit();
    if (threadIdx.x == 0) tile(1)[5] ^= 1;
    wgmma_wait<0>();
    leave(d, b);
}

// ---- named barriers, registers ------------------------------------------------------------------

__global__ void two_counts(float *b) {
    if (threadIdx.x < 32)
        named_barrier_arrive(1, 64);
    else
        named_barrier_sync(1, 32); //! two_counts
    b[threadIdx.x] = 0;
}
__global__ void nobody_arrives(float *b) {
    if (threadIdx.x < 32) named_barrier_sync(3, 64); //! nobody_arrives
    b[threadIdx.x] = 0;
}
__global__ void barrier_zero() { named_barrier_sync(0, 64); } //! barrier_zero
__global__ void more_registers_than_there_are() {
    if (threadIdx.x < 128)
        setmaxnreg_dec<40>();
    else
        setmaxnreg_inc<240>(); //! more_registers_than_there_are
}
__global__ void dec_that_increases() { setmaxnreg_dec<240>(); } //! dec_that_increases
__global__ void registers_of_one_warp() {
    if (threadIdx.x < 32) setmaxnreg_dec<24>(); //! registers_of_one_warp
}

// ---- innocent -----------------------------------------------------------------------------------

// Two groups under way, the first waited for alone, then its accumulators used.
__global__ void two_groups(MAP a, float *b) {
    float d[32], e[32];
    load_operands(a);
    for (int i = 0; i < 32; i++) d[i] = e[i] = 1;
    wgmma_fence();
    PRODUCT(d, 1);
    wgmma_commit();
    PRODUCT(e, 0);
    wgmma_commit();
    wgmma_wait<1>(d);
    for (int i = 0; i < 32; i++) d[i] -= 1;
    wgmma_wait<0>(e);
    for (int i = 0; i < 32; i++) b[i * 128 + threadIdx.x] = d[i] - e[i];
}
// Threads make an operand themselves, over and over.
__global__ void own_operand(MAP a, float *b) {
    float d[32];
    load_operands(a);
    for (int turn = 0; turn < 3; turn++) {
        named_barrier_sync(1, 128); // the tile has been read
        for (int i = threadIdx.x; i < TILE / 4; i += 128) words(2)[i] = 0;
        fence_proxy_async();
        named_barrier_sync(1, 128); // and is complete
        wgmma_fence();
        wgmma_m64k16<64, T>(d, wgmma_k_major(tile(0)), wgmma_k_major(tile(2)), 0);
        wgmma_commit();
        wgmma_wait<0>();
    }
    leave(d, b);
}
// An operand comes by cp.async: each thread waits for its copies and makes them visible.
__global__ void copied_operand(MAP a, const T *a_hbm, float *b) {
    float d[32], e[32];
    load_operands(a);
    for (int i = threadIdx.x; i < TILE / 16; i += 128) {
        int row = i / 8, piece = i % 8;
        cp_async_16(tile(2) + row * 128 + ((piece ^ row % 8) * 16), a_hbm + i * 8);
    }
    cp_async_wait_all();
    fence_proxy_async();
    __syncthreads(); // the whole tile is there, for the tensor cores
    uint64_t A = wgmma_k_major(tile(0)), B = wgmma_k_major(tile(1)), C = wgmma_k_major(tile(2));
    wgmma_fence();
    wgmma_m64k16<64, T>(d, A, B, 0);
    wgmma_m64k16<64, T>(e, C, B, 0);
    wgmma_commit();
    wgmma_wait<0>();
    for (int i = 0; i < 32; i++) b[i * 128 + threadIdx.x] = d[i] - e[i];
}
// Reads tiles by ordinary loads, through a ring of two.
__global__ void ring_of_loads(MAP a, float *b) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) mbarrier_init(barrier(i), 1), mbarrier_init(barrier(2 + i), 64);
        mbarrier_fence_init();
    }
    __syncthreads();
    if (threadIdx.x >= 64) {
        for (int i = 0; i < 8 && threadIdx.x == 64; i++) {
            mbarrier_wait(barrier(2 + i % 2), (i / 2 + 1) % 2);
            mbarrier_arrive_expect_tx(barrier(i % 2), TILE);
            tma_load_2d(tile(i % 2), &a, barrier(i % 2), 0, 64 * i);
        }
        return;
    }
    for (int i = 0; i < 8; i++) {
        mbarrier_wait(barrier(i % 2), i / 2 % 2);
        b[64 * i + threadIdx.x] = words(i % 2)[threadIdx.x] + words(i % 2)[(threadIdx.x + 40) % 64];
        mbarrier_arrive(barrier(2 + i % 2));
    }
}
// One tile after the other is filled, copied out and filled again.
__global__ void store_again_and_again(MAP b) {
    for (int i = 0; i < 4; i++) {
        fill(0);
        if (threadIdx.x == 0) {
            tma_store_2d(&b, tile(0), 0, 64 * i);
            tma_store_commit();
            tma_store_wait_read<0>();
        }
        __syncthreads(); // the tile may be overwritten
    }
}

// a as a matrix of 512 x 64, in boxes of 64 rows, as wide as the swizzle.
CUtensorMap map_of(const void *base, tensor_swizzle swizzle = SWIZZLE_128B) {
    tensor_box box = {.base = base,
                      .element_bytes = 2,
                      .rank = 2,
                      .size = {64, 512},
                      .stride = {2, 128},
                      .box = {(uint32_t)swizzle / 2, 64},
                      .swizzle = swizzle};
    CUtensorMap map;
    char why[300];
    if (tensor_map_encode(&box, &map, why, sizeof why)) return map;
    fprintf(stderr, "%s\n", why);
    abort();
}

struct entry {
    const char *name;
    void (*run)(CUtensorMap a, CUtensorMap c, const T *a_hbm, float *b);
};
entry named(const char *name, decltype(entry::run) run) { return {name, run}; }
#define RUN(kernel, threads, ...)                                                                  \
    named(#kernel, [](CUtensorMap a, CUtensorMap c, const T *a_hbm, float *b) {                    \
        (void)a, (void)b, (void)c, (void)a_hbm;                                                    \
        const int bytes = 8 * TILE + 64;                                                           \
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);          \
        LAUNCH(kernel, 1, threads, bytes __VA_OPT__(, ) __VA_ARGS__);                              \
    })
const entry kernels[] = {
    RUN(never_initialised, 64, b),
    RUN(used_before_the_barrier, 64, b),
    RUN(waited_for_before_the_barrier, 64, b),
    RUN(not_fenced, 64, a),
    RUN(overwritten, 64, b),
    RUN(too_many_arrivals, 64),
    RUN(initialised_twice, 64),
    RUN(too_many_bytes_expected, 64, a),
    RUN(too_few_bytes_expected, 64, a),
    RUN(empty_with_the_wrong_parity, 64, a),
    RUN(one_arrival_short, 64),
    RUN(tile_read_at_once, 64, a, b),
    RUN(full_with_the_wrong_parity, 64, a, b),
    RUN(another_tile, 64, a, b),
    RUN(only_one_warp_waits, 64, a, b),
    RUN(tile_filled_again, 64, a, b),
    RUN(tile_misaligned, 64, a),
    RUN(column_misaligned, 64, a),
    RUN(misaligned_64, 64, map_of(a_hbm, SWIZZLE_64B)),
    RUN(misaligned_32, 64, map_of(a_hbm, SWIZZLE_32B)),
    RUN(tile_outside, 64, a),
    RUN(another_rank, 64, a),
    RUN(no_map, 64),
    RUN(store_without_fence, 64, c),
    RUN(fence_of_another_thread, 64, c),
    RUN(source_overwritten, 64, c),
    RUN(store_not_waited_for, 64, c),
    RUN(store_not_committed, 64, c),
    RUN(store_before_the_tensor, 64, c),
    RUN(store_to_an_input, 64, a),
    RUN(matrix_row_in_hbm, 32, b),
    RUN(matrix_row_misaligned, 32),
    RUN(matrix_without_syncwarp, 32, b),
    RUN(matrix_without_fence, 32, c),
    named("matrix_rows_dense", [](CUtensorMap, CUtensorMap, const T *,
                                  float *b) { LAUNCH(matrix_rows, 1, 32, 4096, b, false); }),
    named("matrix_rows_swizzled", [](CUtensorMap, CUtensorMap, const T *,
                                     float *b) { LAUNCH(matrix_rows, 1, 32, 4096, b, true); }),
    RUN(accumulators_read_at_once, 128, a, b),
    RUN(group_not_committed, 128, a, b),
    RUN(one_group_too_few, 128, a, b),
    RUN(wait_too_short, 128, a, b),
    RUN(no_fence, 128, a, b),
    RUN(fence_too_early, 128, a, b),
    RUN(operand_not_waited_for, 128, a, b),
    RUN(operand_without_fence, 128, a, b),
    RUN(freed_too_early, 256, a, b),
    RUN(past_the_panel, 128, a, b),
    RUN(no_leading_offset, 128, a, b),
    RUN(descriptor_outside, 128, a, b),
    RUN(a_warp_is_missing, 128, a, b),
    RUN(never_waited_for, 128, a),
    RUN(fp8_read_at_once, 128, a, b),
    RUN(fp8_mn_major, 128, a, b),
    RUN(fp8_past_the_panel, 128, a, b),
    RUN(fp8_half_a_step, 128, a, b),
    RUN(fp8_outside, 128, a, b),
    RUN(fp8_operand_changed, 128, a, b),
    RUN(two_counts, 64, b),
    RUN(nobody_arrives, 64, b),
    RUN(barrier_zero, 64),
    RUN(more_registers_than_there_are, 384),
    RUN(dec_that_increases, 384),
    RUN(registers_of_one_warp, 128),
    RUN(two_groups, 128, a, b),
    RUN(own_operand, 128, a, b),
    RUN(copied_operand, 128, a, a_hbm, b),
    RUN(ring_of_loads, 96, a, b),
    RUN(store_again_and_again, 64, c),
};

} // namespace sim_sm90

void sim_sm90_run(const char *name, const void *a, void *b) {
    for (auto &k : sim_sm90::kernels)
        if (!strcmp(k.name, name))
            return k.run(sim_sm90::map_of(a), sim_sm90::map_of(b),
                         static_cast<const sim_sm90::T *>(a), static_cast<float *>(b));
    fprintf(stderr, "no kernel %s in sim_sm90.cu\n", name);
    abort();
}

int sim_sm90_line(const char *name) { return marked_line(__FILE__, name); }

// sim_instructions.cu - how the simulator counts the instructions of ptx.h, and what it says of
// their misuse. The line of a fault carries the mark `//! name`.

#include "sim_instructions.h"
#include "marks.h"
#include "ptx.h"

#include <stdlib.h>

namespace sim_instructions {

// ---- counts -------------------------------------------------------------------------------------

// Piece i of 16 bytes goes to byte i * pitch of shared memory; lanes from n on fill with zeros.
__global__ void copy_pieces(const float *a, int n, int pitch) {
    int lane = threadIdx.x;
    cp_async_16(smem + lane * pitch, a + 4 * lane, lane < n);
    cp_async_commit();
    cp_async_wait<0>();
}

// So many accesses that lanes' logs are full now and then. They are 4 a turn (a load, a store, its
// arrival, the turn's end) after n others: for some n the log is full between a load and its store.
__global__ void copy_often(const float *a, int n) {
    float *shared = reinterpret_cast<float *>(smem) + threadIdx.x;
    if (n & 1) shared[1024] = 0;
    if (n & 2) shared[1056] = shared[1088] = 0;
    for (int i = 0; i < 3000; i++) {
        cp_async_16(smem + threadIdx.x * 128, a + 4 * threadIdx.x);
        cp_async_wait_all();
    }
}

// All of smem's first 32 * 144 bytes hold a value, without conflicts.
__device__ inline void fill() {
    for (int i = threadIdx.x; i < 32 * 144 / 4; i += 32) reinterpret_cast<float *>(smem)[i] = i;
    __syncwarp(); // before other lanes read
}
__global__ void only_fill(float *b) {
    fill();
    b[threadIdx.x] = 0;
}
// Four matrices, one below the other, with rows `pitch` bytes apart.
__global__ void load_rows(float *b, int pitch) {
    uint32_t r[4];
    fill();
    ldmatrix_x4(r, smem + threadIdx.x * pitch);
    b[threadIdx.x] = r[0] + r[1] + r[2] + r[3];
}
// Rows of 128 bytes, of which piece c is kept in place c ^ (row % 8).
__global__ void load_swizzled(float *b, int c) {
    uint32_t r[4];
    int row = threadIdx.x;
    fill();
    ldmatrix_x4(r, smem + row * 128 + ((c ^ row % 8) * 16));
    b[threadIdx.x] = r[0] + r[1] + r[2] + r[3];
}
// Only the first lanes' rows are loaded.
__global__ void load_one(float *b, int pitch) {
    uint32_t r[1];
    fill();
    ldmatrix_x1_trans(r, smem + threadIdx.x % 8 * pitch);
    b[threadIdx.x] = r[0];
}
__global__ void load_two(float *b, int pitch) {
    uint32_t r[2];
    fill();
    ldmatrix_x2(r, smem + threadIdx.x % 16 * pitch);
    b[threadIdx.x] = r[0] + r[1];
}
__global__ void add_neighbours(float *b) {
    int lane = threadIdx.x;
    red_add_f32x4(b + 4 * lane, make_float4(1, 2, 3, lane));
}

// ---- copies that nobody waits for in time -------------------------------------------------------

// Copies 16 bytes a thread and stores them again.
__device__ inline float4 *piece() { return reinterpret_cast<float4 *>(smem) + threadIdx.x; }

__global__ void not_waited_for(const float *a, float4 *b) {
    cp_async_16(piece(), a + 4 * threadIdx.x);
    cp_async_commit();
    b[threadIdx.x] = *piece(); //! not_waited_for
}
__global__ void not_committed(const float *a, float4 *b) {
    cp_async_16(piece(), a + 4 * threadIdx.x);
    cp_async_wait<0>();
    b[threadIdx.x] = *piece(); //! not_committed
}
// Two groups, and a wait that lets both be pending.
__global__ void one_too_few(const float *a, float4 *b) {
    cp_async_16(piece(), a + 4 * threadIdx.x);
    cp_async_commit();
    cp_async_16(piece() + 32, a + 4 * threadIdx.x);
    cp_async_commit();
    cp_async_wait<2>();
    b[threadIdx.x] = *piece(); //! one_too_few
}
// The wait is there, but only for the thread's own copies: a barrier is missing.
__global__ void wait_without_barrier(const float *a, float4 *b) {
    cp_async_16(piece(), a + 4 * threadIdx.x); //! wait_without_barrier
    cp_async_commit();
    cp_async_wait<0>();
    b[threadIdx.x] = reinterpret_cast<float4 *>(smem)[63 - threadIdx.x];
}
// The barrier comes before the wait instead of after it.
__global__ void barrier_before_wait(const float *a, float4 *b) {
    cp_async_16(piece(), a + 4 * threadIdx.x); //! barrier_before_wait
    cp_async_commit();
    __syncthreads();
    cp_async_wait<0>();
    b[threadIdx.x] = reinterpret_cast<float4 *>(smem)[63 - threadIdx.x];
}
// A barrier, but some other thread has not waited.
__global__ void other_has_not_waited(const float *a, float4 *b) {
    cp_async_16(piece(), a + 4 * threadIdx.x);
    cp_async_commit();
    if (threadIdx.x < 32) cp_async_wait<0>();
    __syncthreads();
    b[threadIdx.x] = reinterpret_cast<float4 *>(smem)[threadIdx.x ^ 32]; //! other_has_not_waited
}
// The tile is filled again while others still read it.
__global__ void filled_too_early(const float *a, float4 *b) {
    for (int i = 0; i < 2; i++) {
        cp_async_16(piece(), a + 256 * i + 4 * threadIdx.x); //! filled_too_early
        cp_async_wait_all();
        __syncthreads(); // the tile is complete
        b[64 * i + threadIdx.x] = reinterpret_cast<float4 *>(smem)[63 - threadIdx.x];
    }
}
__global__ void stored_into(const float *a, float4 *b) {
    cp_async_16(piece(), a + 4 * threadIdx.x);
    *piece() = make_float4(0, 0, 0, 0); //! stored_into
    cp_async_wait_all();
    b[threadIdx.x] = *piece();
}
// The tensor core's load sees the copy, too.
__global__ void matrix_too_early(const float *a, float *b) {
    uint32_t r[4];
    cp_async_16(piece(), a + 4 * threadIdx.x);
    cp_async_commit();
    __syncwarp();            // orders the lanes, and waits for no copy
    ldmatrix_x4(r, piece()); //! matrix_too_early
    b[threadIdx.x] = r[0] + r[1] + r[2] + r[3];
}

// ---- addresses ----------------------------------------------------------------------------------

__global__ void copy_misaligned(const float *a) {
    cp_async_16(piece(), a + 4 * threadIdx.x + 2); //! copy_misaligned
}
__global__ void copy_past_the_end(const float *a) {
    cp_async_16(piece(), a + 4 * threadIdx.x + 4096); //! copy_past_the_end
}
__global__ void copy_to_hbm(const float *a, float4 *b) {
    cp_async_16(&b[threadIdx.x], a); //! copy_to_hbm
}
__global__ void copy_from_smem(const float *) {
    cp_async_16(piece(), smem); //! copy_from_smem
}
__global__ void row_misaligned(float *b) {
    uint32_t r[4];
    fill();
    ldmatrix_x4(r, smem + threadIdx.x * 136); //! row_misaligned
    b[threadIdx.x] = r[0];
}
__global__ void row_in_hbm(const float *a, float *b) {
    uint32_t r[4];
    ldmatrix_x4(r, a); //! row_in_hbm
    b[threadIdx.x] = r[0];
}
__global__ void red_misaligned(float *b) {
    red_add_f32x4(b + 1, make_float4(1, 1, 1, 1)); //! red_misaligned
}

// ---- who takes part, and in what order ----------------------------------------------------------

__global__ void row_unwritten(float *b) {
    uint32_t r[4];
    if (threadIdx.x != 5) *piece() = make_float4(1, 1, 1, 1);
    __syncwarp();
    ldmatrix_x4(r, piece()); //! row_unwritten
    b[threadIdx.x] = r[0];
}
// Each lane stores the row whose address it gives. Other lanes get it, so this is a race.
__global__ void row_without_syncwarp(float *b) {
    uint32_t r[4];
    *piece() = make_float4(1, 1, 1, 1);
    ldmatrix_x4(r, piece()); //! row_without_syncwarp
    b[threadIdx.x] = r[0];
}
// And so is a store to it right after the load.
__global__ void row_overwritten(float *b) {
    uint32_t r[4];
    *piece() = make_float4(1, 1, 1, 1);
    __syncwarp();
    ldmatrix_x4(r, piece());
    *piece() = make_float4(2, 2, 2, 2); //! row_overwritten
    b[threadIdx.x] = r[0];
}
__global__ void product_in_a_branch(float *b, int n) {
    float d[4] = {};
    uint32_t a[4] = {};
    if ((int)threadIdx.x < n) mma_m16n8k16<__half>(d, a, 0, 0); //! product_in_a_branch
    b[threadIdx.x] = d[0];
}
__global__ void two_products(float *b, int n) {
    float d[4] = {};
    uint32_t a[4] = {};
    if ((int)threadIdx.x < n)
        mma_m16n8k16<__half>(d, a, 0, 0);
    else
        mma_m16n8k16<__half>(d, a, 1, 1); //! two_products
    b[threadIdx.x] = d[0];
}
__global__ void half_a_warp(float *b) {
    uint32_t r[4];
    *piece() = make_float4(1, 1, 1, 1);
    __syncwarp();
    ldmatrix_x4(r, piece()); //! half_a_warp
    b[threadIdx.x] = r[0];
}

// ---- innocent -----------------------------------------------------------------------------------

// A ring of two tiles: the copy of the next one is under way while this one is read.
__global__ void two_stages(const float *a, float4 *b, int n) {
    float4 *tile = reinterpret_cast<float4 *>(smem);
    int t = threadIdx.x;
    cp_async_16(&tile[t], a + 4 * t);
    cp_async_commit();
    for (int i = 0; i < n; i++) {
        if (i + 1 < n) cp_async_16(&tile[(i + 1) % 2 * 64 + t], a + 256 * (i + 1) + 4 * t);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads(); // tile i is complete
        b[64 * i + t] = tile[i % 2 * 64 + 63 - t];
        __syncthreads(); // and has been read
    }
}

struct entry {
    const char *name;
    void (*run)(float *a, float *b, int n);
};
entry named(const char *name, decltype(entry::run) run) { return {name, run}; }
#define AS_4(b) reinterpret_cast<float4 *>(b)
#define RUN(kernel, threads, ...)                                                                  \
    named(#kernel, [](float *a, float *b, int n) {                                                 \
        (void)a, (void)b, (void)n;                                                                 \
        LAUNCH(kernel, 1, threads, 8192, __VA_ARGS__);                                             \
    })
const entry kernels[] = {
    RUN(copy_pieces, 32, a, n % 100, n / 100),
    RUN(only_fill, 32, b),
    RUN(copy_often, 32, a, n),
    RUN(load_rows, 32, b, n),
    RUN(load_swizzled, 32, b, n),
    RUN(load_one, 32, b, n),
    RUN(load_two, 32, b, n),
    RUN(add_neighbours, 32, b),
    RUN(not_waited_for, 32, a, AS_4(b)),
    RUN(not_committed, 32, a, AS_4(b)),
    RUN(one_too_few, 32, a, AS_4(b)),
    RUN(wait_without_barrier, 64, a, AS_4(b)),
    RUN(barrier_before_wait, 64, a, AS_4(b)),
    RUN(other_has_not_waited, 64, a, AS_4(b)),
    RUN(filled_too_early, 64, a, AS_4(b)),
    RUN(stored_into, 32, a, AS_4(b)),
    RUN(matrix_too_early, 32, a, b),
    RUN(copy_misaligned, 32, a),
    RUN(copy_past_the_end, 32, a),
    RUN(copy_to_hbm, 32, a, AS_4(b)),
    RUN(copy_from_smem, 32, a),
    RUN(row_misaligned, 32, b),
    RUN(row_in_hbm, 32, a, b),
    RUN(red_misaligned, 32, b),
    RUN(row_unwritten, 32, b),
    RUN(row_without_syncwarp, 32, b),
    RUN(row_overwritten, 32, b),
    RUN(product_in_a_branch, 32, b, n),
    RUN(two_products, 32, b, n),
    RUN(half_a_warp, 48, b),
    RUN(two_stages, 64, a, AS_4(b), n),
};

} // namespace sim_instructions

void sim_instruction_run(const char *name, float *a, float *b, int n) {
    for (auto &k : sim_instructions::kernels)
        if (!strcmp(k.name, name)) return k.run(a, b, n);
    fprintf(stderr, "no kernel %s in sim_instructions.cu\n", name);
    abort();
}

int sim_instruction_line(const char *name) { return marked_line(__FILE__, name); }

// sim_kernels.cu - small kernels for the simulator's own tests, each with one property to observe.
//
// Where a kernel has a fault, the line of the fault carries the mark `//! name`, and the test
// requires that the simulator's message names exactly that line. The profile's tests find their
// lines in the same way.

#include "sim_kernels.h"
#include "kernel.h"
#include "marks.h"

#include <stdlib.h>

namespace sim_kernels {

// ---- what a thread is told about itself ---------------------------------------------------------

__global__ void indices(float *out) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = 1000.f * block + thread;
}

// ---- counting -----------------------------------------------------------------------------------

__global__ void copy4(const float *a, float *b) { b[threadIdx.x] = a[threadIdx.x]; }
__global__ void copy16(const float *a, float *b) {
    reinterpret_cast<float4 *>(b)[threadIdx.x] = reinterpret_cast<const float4 *>(a)[threadIdx.x];
}
__global__ void copy8(const float *a, float *b) {
    reinterpret_cast<float2 *>(b)[threadIdx.x] = reinterpret_cast<const float2 *>(a)[threadIdx.x];
}
__global__ void copy2(const float *a, float *b) {
    reinterpret_cast<__half *>(b)[threadIdx.x] = reinterpret_cast<const __half *>(a)[threadIdx.x];
}
__global__ void broadcast(const float *a, float *b) { b[threadIdx.x] = a[7]; }
__global__ void strided(const float *a, float *b, int n) { b[threadIdx.x] = a[threadIdx.x * n]; }
__global__ void reversed(const float *a, float *b) { b[threadIdx.x] = a[31 - threadIdx.x]; }
__global__ void shifted(const float *a, float *b) { b[threadIdx.x] = a[threadIdx.x + 1]; }
__global__ void first_lanes(const float *a, float *b, int n) {
    if ((int)threadIdx.x < n) b[threadIdx.x] = a[threadIdx.x];
}
__global__ void add_atomically(float *a, float *b) {
    atomicAdd(&a[0], 1.f);
    atomicAdd(&b[threadIdx.x], 1.f);
}
__global__ void read_and_write(float *a) { a[threadIdx.x] += 1; }

// A lane skips its second load in every other turn: 16 lanes make it together, not each alone.
__global__ void skipping(const float *a, float *b, int n) {
    int lane = threadIdx.x;
    float sum = 0;
    for (int i = 0; i < n; i++) {
        sum += a[i * 32 + lane];
        if ((i + lane) % 2 == 0) sum += a[1024 + i * 32 + lane]; //! skipping
    }
    b[lane] = sum;
}

// Inner loops of different lengths: in turn i lane t makes 1 + (t + i) % 4 inner turns.
__global__ void ragged(const float *a, float *b, int n) {
    int lane = threadIdx.x;
    float sum = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= (lane + i) % 4; j++) sum += a[(i * 4 + j) * 32 + lane];
    b[lane] = sum;
}

// One lane of four takes the other branch; the load after it is one request again.
__global__ void branching(const float *a, float *b) {
    int lane = threadIdx.x;
    float x = lane % 4 ? a[lane] : a[lane + 32];
    b[lane] = x + a[lane + 64];
}

// ---- what a profile tells apart -----------------------------------------------------------------

// Two buffers in one expression, and one of them twice.
__global__ void three_loads(const float *a, const float *b, float *c) {
    int lane = threadIdx.x;
    c[lane] = a[lane * 8] + b[lane] + a[7]; //! three_loads
}
// Half a warp reads one buffer and half the other, in one instruction.
__global__ void two_buffers(const float *a, const float *b, float *c) {
    int lane = threadIdx.x;
    const float *from = lane < 16 ? a : b;
    c[lane] = from[lane * 8]; //! two_buffers
}
// Turns with 32, 24, 16 and 8 lanes.
__global__ void leaving(const float *a, float *b) {
    int lane = threadIdx.x;
    float sum = 0;
    for (int i = 0; i < 4; i++)
        if (lane >= 8 * i) sum += a[32 * i + lane]; //! leaving
    b[32 * blockIdx.x + lane] = sum;
}
// Two arrays: one read without conflicts, one with two words in each of 16 banks.
__global__ void two_tiles(float *b) {
    __shared__ float straight[32];
    __shared__ float twice[64];
    int lane = threadIdx.x;
    straight[lane] = lane;
    twice[lane] = twice[lane + 32] = lane;
    __syncthreads();
    b[32 * blockIdx.x + lane] = straight[lane] + twice[2 * lane]; //! two_tiles
}
// A helper that two kernels call: one line, two rows.
__device__ inline float helped(const float *a) {
    return a[threadIdx.x]; //! helped
}
__global__ void first_caller(const float *a, float *b) { b[threadIdx.x] = helped(a); }
__global__ void second_caller(const float *a, float *b) { b[threadIdx.x] = 2 * helped(a); }

// ---- shared memory ------------------------------------------------------------------------------

// All of smem's first 1200 words hold a value, without conflicts.
__device__ inline float *filled_words() {
    float *words = reinterpret_cast<float *>(smem);
    for (int i = threadIdx.x; i < 1200; i += 32) words[i] = i;
    __syncthreads();
    return words;
}
// Lane t reads word t * n: n = 1 no conflict, 2 two-way, 32 all in one bank, 0 a broadcast.
__global__ void bank_stride(float *b, int n) {
    float *words = filled_words();
    b[threadIdx.x] = words[threadIdx.x * n];
}
// 16 bytes a lane; with stride 1 (n = 4 words) a quarter warp covers all banks once.
__global__ void bank_stride16(float *b, int n) {
    float *words = filled_words();
    float4 x = *reinterpret_cast<float4 *>(&words[threadIdx.x * n]);
    b[threadIdx.x] = x.x + x.y + x.z + x.w;
}
// Neighbours exchange through a __shared__ array.
__global__ void exchange(const float *a, float *b) {
    __shared__ float tile[64];
    tile[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    b[threadIdx.x] = tile[63 - threadIdx.x];
}
__global__ void static_bytes(float *b) {
    __shared__ float first[100];
    __shared__ double second[10];
    first[threadIdx.x] = 1;
    if (threadIdx.x < 10) second[threadIdx.x] = 2;
    __syncthreads();
    b[threadIdx.x] = first[threadIdx.x] + (float)second[threadIdx.x % 10];
}
__global__ void too_much_static(float *b) {
    __shared__ float tile[12 * 1024 + 1];
    tile[threadIdx.x] = 0;
    __syncthreads();
    b[threadIdx.x] = tile[31 - threadIdx.x];
}
__global__ void touch_dynamic(float *b, int n) {
    float *words = reinterpret_cast<float *>(smem);
    if (threadIdx.x == 0) {
        words[n] = 1; //! touch_dynamic
        b[0] = words[n];
    }
}

// ---- collectives --------------------------------------------------------------------------------

__global__ void shuffles(float *b) {
    int lane = threadIdx.x;
    b[lane] = __shfl_sync(~0u, lane, 5);
    b[32 + lane] = __shfl_xor_sync(~0u, lane, 3);
    b[64 + lane] = __shfl_down_sync(~0u, lane, 4);
    b[96 + lane] = __shfl_up_sync(~0u, lane, 4);
    b[128 + lane] = __shfl_sync(~0u, lane, 5, 8);
    b[160 + lane] = __shfl_down_sync(~0u, lane, 3, 8);
    b[192 + lane] = __shfl_up_sync(~0u, lane, 3, 8);
    b[224 + lane] = __shfl_xor_sync(~0u, lane, 16, 8);
}
__global__ void votes(float *b) {
    int lane = threadIdx.x;
    b[lane] = __ballot_sync(~0u, lane % 3 == 0) == 0x49249249u;
    b[32 + lane] = __any_sync(~0u, lane == 9) && !__any_sync(~0u, lane == 99);
    b[64 + lane] = __all_sync(~0u, lane < 32) && !__all_sync(~0u, lane < 31);
}
// The halves of a warp go through a collective of their own each, at the same time.
__global__ void half_warps(float *b) {
    int lane = threadIdx.x;
    unsigned mine = lane < 16 ? 0xffffu : 0xffff0000u;
    float sum = lane;
    for (int bits = 8; bits; bits /= 2) sum += __shfl_xor_sync(mine, sum, bits);
    b[lane] = sum;
}
__global__ void block_votes(float *b) {
    int t = threadIdx.x;
    b[t] = __syncthreads_count(t % 5 == 0);
    b[blockDim.x + t] = __syncthreads_or(t == 3) && !__syncthreads_or(t < 0);
    b[2 * blockDim.x + t] = __syncthreads_and(t >= 0) && !__syncthreads_and(t != 3);
}
__global__ void integer_atomics(float *b) {
    __shared__ int count;
    __shared__ unsigned turns; // 0 to 6, and again
    if (threadIdx.x == 0) count = 0, turns = 0;
    __syncthreads();
    atomicAdd(&count, 2);
    int before = atomicInc(&turns, 6);
    __syncthreads();
    b[threadIdx.x] = count;
    b[blockDim.x + threadIdx.x] = before;
    b[2 * blockDim.x + threadIdx.x] = turns;
}

// ---- faults -------------------------------------------------------------------------------------

__global__ void past_the_end(float *a, int n) {
    a[blockIdx.x * blockDim.x + threadIdx.x + n] = 1; //! past_the_end
}
__global__ void before_the_start(float *a, float *b) {
    b[threadIdx.x] = a[(int)threadIdx.x - 2]; //! before_the_start
}
__global__ void misaligned(float *a, float *b) {
    float4 x = reinterpret_cast<float4 *>(a + 1)[threadIdx.x]; //! misaligned
    b[threadIdx.x] = x.x + x.y;
}
__global__ void null_pointer(float *b) {
    float *nothing = reinterpret_cast<float *>(size_t(4) * threadIdx.x);
    b[threadIdx.x] = *nothing; //! null_pointer
}
__global__ void divergent_barrier(float *b) {
    if (threadIdx.x < 40) __syncthreads(); //! divergent_barrier
    b[threadIdx.x] = 1;
}
__global__ void two_barriers(float *b) {
    if (threadIdx.x < 32)
        __syncthreads(); //! two_barriers
    else
        __syncthreads();
    b[threadIdx.x] = 1;
}
__global__ void early_exit(float *b) {
    if (threadIdx.x % 32 == 31) return;
    b[threadIdx.x] = __shfl_xor_sync(~0u, 1.f, 1); //! early_exit
}
__global__ void left_out(float *b) {
    b[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.f, 1); //! left_out
}
__global__ void two_collectives(float *b) {
    if (threadIdx.x < 16)
        b[threadIdx.x] = __shfl_xor_sync(~0u, 1.f, 1); //! two_collectives
    else
        b[threadIdx.x] = __any_sync(~0u, 1);
}
__global__ void static_past_the_end(float *b, int n) {
    __shared__ float tile[8];
    tile[threadIdx.x] = 1;
    b[threadIdx.x] = tile[(int)threadIdx.x + n]; //! static_past_the_end
}

__global__ void host_pointer(float *b, float *host) {
    b[threadIdx.x] = 1;
    host[threadIdx.x] = 2; //! host_pointer
}
__global__ void divide_by_zero(float *b, int n) {
    b[threadIdx.x] = 100 / (n + (int)threadIdx.x); //! divide_by_zero
}
__global__ void own_name(float *b) {
    __shared__ float tile[32];
    tile[threadIdx.x] = 1;
    __syncwarp();
    b[threadIdx.x] = tile[threadIdx.x + 1]; //! own_name
}
__global__ void reset_races_with_atomic(float *b) {
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0;
    atomicAdd(&sum, 1.f); //! reset_races_with_atomic
    __syncthreads();
    b[threadIdx.x] = sum;
}
// Warp 1 adds again while warp 0 still reads the sum of the turn before.
__global__ void read_races_with_atomic(float *b) {
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    for (int turn = 0; turn < 2; turn++) {
        if (threadIdx.x >= 32) atomicAdd(&sum, 1.f); //! read_races_with_atomic
        __syncthreads();
        if (threadIdx.x < 32) b[threadIdx.x] = sum;
    }
}

// What is missing is the block's barrier, although two lanes of the first warp race before any two
// warps do.
__device__ static void fill(float *tile, const float *a) {
    tile[threadIdx.x] = a[threadIdx.x]; //! fill_without_barrier
}
__global__ void fill_without_barrier(const float *a, float *b) {
    __shared__ float tile[64];
    fill(tile, a); //! the call of fill
    float neighbour = tile[threadIdx.x ^ 1];
    b[threadIdx.x] = neighbour + tile[63 - threadIdx.x];
}
// And here it is each warp's own: the block's barrier comes too late.
__global__ void warps_without_syncwarp(const float *a, float *b) {
    __shared__ float tile[64];
    tile[threadIdx.x] = a[threadIdx.x];
    float neighbour = tile[threadIdx.x ^ 1]; //! warps_without_syncwarp
    __syncthreads();
    b[threadIdx.x] = neighbour + tile[63 - threadIdx.x];
}

// ---- right, and close to something wrong: nobody may be accused ---------------------------------

// A warp updates its own numbers in place between meetings.
__global__ void update_in_place(const float *a, float *b) {
    int lane = threadIdx.x;
    b[lane] = a[lane];
    __syncwarp();
    float x = b[31 - lane];
    __syncwarp();
    b[lane] *= 2;
    __syncwarp();
    b[32 + lane] = b[lane ^ 1] + x;
}
// A running value that all read and lane 0 updates.
__global__ void running_value(const float *a, float *b) {
    __shared__ float m;
    int lane = threadIdx.x;
    if (lane == 0) m = 0;
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        float old = m;
        __syncwarp();
        if (lane == 0) m = old + a[i];
        __syncwarp();
        b[lane] = m;
    }
}
// One lane sets to zero, then all lanes of the warp add.
__global__ void zero_then_add(const float *a, float *b) {
    __shared__ float sum;
    int lane = threadIdx.x;
    if (lane == 0) sum = 0;
    __syncwarp();
    atomicAdd(&sum, a[lane]);
    __syncwarp();
    b[lane] = sum;
}
// A pair is read whole by one lane and by halves by another, who own the halves.
__global__ void mixed_widths(float *b) {
    __shared__ __align__(4) __half tile[64];
    int t = threadIdx.x;
    tile[t] = __float2half(t);
    __syncthreads();
    __half2 both = reinterpret_cast<__half2 *>(tile)[t / 2];
    __syncthreads();
    tile[t] = __float2half(2 * __half2float(tile[t]));
    __syncthreads();
    b[t] = __half2float(both.x) + __half2float(tile[63 - t]);
}
// Neighbours own the halves of a word.
__global__ void halves_in_place(float *b) {
    __shared__ __half tile[64];
    int t = threadIdx.x;
    tile[t] = __float2half(t);
    __syncthreads();
    tile[t] = __float2half(2 * __half2float(tile[t]));
    __syncthreads();
    b[t] = __half2float(tile[63 - t]);
}
// Blocks of 33 halves share words at their borders.
__global__ void halves_across_blocks(float *b) {
    __half *h = reinterpret_cast<__half *>(b);
    int i = blockIdx.x * 33 + threadIdx.x;
    if (threadIdx.x >= 33) return;
    h[i] = __float2half(i);
    h[i] = __float2half(2 * __half2float(h[i]));
}
// One half of a warp hands numbers to the other; the consumer stands first in the code.
__global__ void producer_below(const float *a, float *b) {
    __shared__ float tile[16];
    int lane = threadIdx.x;
    for (int turn = 0; turn < 2; turn++) {
        if (lane >= 16 && turn == 1) b[lane] = tile[lane - 16];
        if (lane < 16 && turn == 0) tile[lane] = a[lane];
        if (turn == 0) __syncwarp(lane < 16 ? 0xffff : 0xffff0000);
        __syncwarp();
    }
}
// The last block to finish adds up what all have published.
__global__ void last_block(const float *a, float *b) {
    int t = threadIdx.x, block = blockIdx.x;
    b[block * 32 + t] = a[block * 32 + t];
    __threadfence();
    __shared__ int last;
    __syncthreads();
    if (t == 0) last = atomicAdd(&b[2048], 1.f) == 3;
    __syncthreads();
    if (last) b[1024 + t] = b[t] + b[32 + t] + b[64 + t] + b[96 + t];
}
// Two buffers by turns: one barrier a turn is enough.
__global__ void by_turns(const float *a, float *b) {
    __shared__ float tile[2][64];
    int t = threadIdx.x;
    for (int i = 0; i < 6; i++) {
        tile[i % 2][t] = a[64 * i + t];
        __syncthreads();
        b[64 * i + t] = tile[i % 2][63 - t];
    }
}
// More accesses between two meetings than a log holds, and not the same in all lanes.
__global__ void long_and_uneven(const float *a, float *b, int n) {
    int lane = threadIdx.x;
    float sum = 0;
    for (int i = 0; i < n; i++) {
        const float *row = a + i % 8 * 128;
        sum += row[lane];
        if ((i + lane) % 3 == 0) sum += row[32 + lane] + row[64 + lane];
    }
    b[lane] = sum;
}

static float on_the_host[64];
using A = sim_arguments;
static const struct {
    const char *name;
    void (*run)(A);
} kernels[] = {
    {"indices", [](A x) { LAUNCH(indices, dim3(3, 2, 2), dim3(4, 3, 2), 0, x.a); }},
    {"copy4", [](A x) { LAUNCH(copy4, 1, 32, 0, x.a, x.b); }},
    {"copy8", [](A x) { LAUNCH(copy8, 1, 32, 0, x.a, x.b); }},
    {"copy16", [](A x) { LAUNCH(copy16, 1, 32, 0, x.a, x.b); }},
    {"copy2", [](A x) { LAUNCH(copy2, 1, 32, 0, x.a, x.b); }},
    {"broadcast", [](A x) { LAUNCH(broadcast, 1, 32, 0, x.a, x.b); }},
    {"strided", [](A x) { LAUNCH(strided, 1, 32, 0, x.a, x.b, x.n); }},
    {"reversed", [](A x) { LAUNCH(reversed, 1, 32, 0, x.a, x.b); }},
    {"shifted", [](A x) { LAUNCH(shifted, 1, 32, 0, x.a, x.b); }},
    {"first_lanes", [](A x) { LAUNCH(first_lanes, 1, 32, 0, x.a, x.b, x.n); }},
    {"add_atomically", [](A x) { LAUNCH(add_atomically, 4, 64, 0, x.a, x.b); }},
    {"read_and_write", [](A x) { LAUNCH(read_and_write, 1, 32, 0, x.a); }},
    {"skipping", [](A x) { LAUNCH(skipping, 1, 32, 0, x.a, x.b, x.n); }},
    {"ragged", [](A x) { LAUNCH(ragged, 1, 32, 0, x.a, x.b, x.n); }},
    {"branching", [](A x) { LAUNCH(branching, 1, 32, 0, x.a, x.b); }},
    {"three_loads", [](A x) { LAUNCH(three_loads, 1, 32, 0, x.a, x.b, x.c); }},
    {"two_buffers", [](A x) { LAUNCH(two_buffers, 1, 32, 0, x.a, x.b, x.c); }},
    {"leaving", [](A x) { LAUNCH(leaving, 3, 32, 0, x.a, x.b); }},
    {"two_tiles", [](A x) { LAUNCH(two_tiles, 2, 32, 0, x.b); }},
    {"helped",
     [](A x) {
         LAUNCH(first_caller, 1, 32, 0, x.a, x.b);
         LAUNCH((second_caller), 1, 32, 0, x.a, x.b);
         LAUNCH((second_caller), 1, 32, 0, x.a, x.b);
     }},
    {"two_names",
     [](A x) {
         auto same = copy4;
         LAUNCH(copy4, 1, 32, 0, x.a, x.b);
         LAUNCH(same, 1, 32, 0, x.a, x.b);
     }},
    {"bank_stride", [](A x) { LAUNCH(bank_stride, 1, 32, 8192, x.b, x.n); }},
    {"bank_stride16", [](A x) { LAUNCH(bank_stride16, 1, 32, 8192, x.b, x.n); }},
    {"exchange", [](A x) { LAUNCH(exchange, 1, 64, 0, x.a, x.b); }},
    {"static_bytes", [](A x) { LAUNCH(static_bytes, 1, 100, 1000, x.b); }},
    {"too_much_static", [](A x) { LAUNCH(too_much_static, 1, 32, 0, x.b); }},
    {"touch_dynamic", [](A x) { LAUNCH(touch_dynamic, 1, 32, 4096, x.b, x.n); }},
    {"dynamic_not_allowed", [](A x) { LAUNCH(touch_dynamic, 1, 32, x.n, x.b, 0); }},
    {"dynamic_allowed",
     [](A x) {
         if (cudaFuncSetAttribute(touch_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  x.n) == cudaSuccess)
             LAUNCH(touch_dynamic, 1, 32, x.n, x.b, x.n / 4 - 1);
         else
             x.b[0] = -1;
     }},
    {"shuffles", [](A x) { LAUNCH(shuffles, 1, 32, 0, x.b); }},
    {"votes", [](A x) { LAUNCH(votes, 1, 32, 0, x.b); }},
    {"half_warps", [](A x) { LAUNCH(half_warps, 1, 32, 0, x.b); }},
    {"block_votes", [](A x) { LAUNCH(block_votes, 1, 70, 0, x.b); }},
    {"integer_atomics", [](A x) { LAUNCH(integer_atomics, 1, 100, 0, x.b); }},
    {"past_the_end", [](A x) { LAUNCH(past_the_end, 2, 64, 0, x.a, x.n); }},
    {"before_the_start", [](A x) { LAUNCH(before_the_start, 1, 32, 0, x.a, x.b); }},
    {"misaligned", [](A x) { LAUNCH(misaligned, 1, 32, 0, x.a, x.b); }},
    {"null_pointer", [](A x) { LAUNCH(null_pointer, 1, 32, 0, x.b); }},
    {"divergent_barrier", [](A x) { LAUNCH(divergent_barrier, 1, 64, 0, x.b); }},
    {"two_barriers", [](A x) { LAUNCH(two_barriers, 1, 64, 0, x.b); }},
    {"early_exit", [](A x) { LAUNCH(early_exit, 1, 32, 0, x.b); }},
    {"left_out", [](A x) { LAUNCH(left_out, 1, 32, 0, x.b); }},
    {"two_collectives", [](A x) { LAUNCH(two_collectives, 1, 32, 0, x.b); }},
    {"static_past_the_end", [](A x) { LAUNCH(static_past_the_end, 1, 8, 0, x.b, x.n); }},
    {"host_pointer", [](A x) { LAUNCH(host_pointer, 1, 32, 0, x.b, on_the_host); }},
    {"divide_by_zero", [](A x) { LAUNCH(divide_by_zero, 1, 32, 0, x.b, -3); }},
    {"own_name", [](A x) { LAUNCH(own_name, 1, 32, 0, x.b); }},
    {"reset_races_with_atomic", [](A x) { LAUNCH(reset_races_with_atomic, 1, 64, 0, x.b); }},
    {"fill_without_barrier", [](A x) { LAUNCH(fill_without_barrier, 1, 64, 0, x.a, x.b); }},
    {"warps_without_syncwarp", [](A x) { LAUNCH(warps_without_syncwarp, 1, 64, 0, x.a, x.b); }},
    {"read_races_with_atomic", [](A x) { LAUNCH(read_races_with_atomic, 1, 64, 0, x.b); }},
    {"zero_then_add", [](A x) { LAUNCH(zero_then_add, 1, 32, 0, x.a, x.b); }},
    {"mixed_widths", [](A x) { LAUNCH(mixed_widths, 1, 64, 0, x.b); }},
    {"update_in_place", [](A x) { LAUNCH(update_in_place, 1, 32, 0, x.a, x.b); }},
    {"running_value", [](A x) { LAUNCH(running_value, 1, 32, 0, x.a, x.b); }},
    {"halves_in_place", [](A x) { LAUNCH(halves_in_place, 1, 64, 0, x.b); }},
    {"halves_across_blocks", [](A x) { LAUNCH(halves_across_blocks, 20, 64, 0, x.b); }},
    {"producer_below", [](A x) { LAUNCH(producer_below, 1, 32, 0, x.a, x.b); }},
    {"last_block", [](A x) { LAUNCH(last_block, 4, 32, 0, x.a, x.b); }},
    {"by_turns", [](A x) { LAUNCH(by_turns, 1, 64, 0, x.a, x.b); }},
    {"long_and_uneven", [](A x) { LAUNCH(long_and_uneven, 1, 32, 0, x.a, x.b, x.n); }},
    {"empty_launch", [](A x) { LAUNCH(copy4, 0, 32, 0, x.a, x.b); }},
    {"too_many_threads", [](A x) { LAUNCH(copy4, 1, 1025, 0, x.a, x.b); }},
    {"too_many_blocks", [](A x) { LAUNCH(copy4, dim3(1, 65536), 32, 0, x.a, x.b); }},
};

} // namespace sim_kernels

void sim_run(const char *name, struct sim_arguments arguments) {
    for (auto &k : sim_kernels::kernels)
        if (!strcmp(k.name, name)) return k.run(arguments);
    fprintf(stderr, "no kernel %s in sim_kernels.cu\n", name);
    abort();
}

int sim_marked_line(const char *name) { return marked_line(__FILE__, name); }

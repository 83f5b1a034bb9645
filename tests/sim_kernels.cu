// sim_kernels.cu - small kernels for the simulator's own tests, each with one property to observe.
//
// Where a kernel has a fault, the line of the fault carries the mark `//! name`, and the test
// requires that the simulator's message names exactly that line. The profile's tests find their lines
// in the same way.

#include "sim_kernels.h"
#include "kernel.h"

#include <stdlib.h>

namespace sim_kernels {

// ---- what a thread is told about itself ----------------------------------------------------------

__global__ void indices(float *out) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = 1000.f * block + thread;
}

// ---- counting --------------------------------------------------------------------------------------

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

// ---- what a profile tells apart ----------------------------------------------------------------------

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

// ---- shared memory -----------------------------------------------------------------------------------

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

// ---- collectives ---------------------------------------------------------------------------------------

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
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    atomicAdd(&count, 2);
    __syncthreads();
    b[threadIdx.x] = count;
}

// ---- faults ----------------------------------------------------------------------------------------------

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
         if (cudaFuncSetAttribute(touch_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, x.n) == cudaSuccess)
             LAUNCH(touch_dynamic, 1, 32, x.n, x.b, x.n / 4 - 1);
         else x.b[0] = -1;
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
    {"empty_launch", [](A x) { LAUNCH(copy4, 0, 32, 0, x.a, x.b); }},
    {"too_many_threads", [](A x) { LAUNCH(copy4, 1, 1025, 0, x.a, x.b); }},
    {"too_many_blocks", [](A x) { LAUNCH(copy4, dim3(1, 65536), 32, 0, x.a, x.b); }},
};

}    // namespace sim_kernels

void sim_run(const char *name, struct sim_arguments arguments) {
    for (auto &k : sim_kernels::kernels)
        if (!strcmp(k.name, name)) return k.run(arguments);
    fprintf(stderr, "no kernel %s in sim_kernels.cu\n", name);
    abort();
}

int sim_marked_line(const char *name) {
    char line[400], mark[100];
    snprintf(mark, sizeof mark, "//! %s\n", name);
    FILE *f = fopen(__FILE__, "r");
    int number = 0, found = 0;
    while (f && !found && fgets(line, sizeof line, f)) {
        number++;
        const char *at = strstr(line, "//! ");
        if (at && !strcmp(at, mark)) found = number;
    }
    if (f) fclose(f);
    return found;
}

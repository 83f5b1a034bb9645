// cuda.h - CUDA C on a CPU: what a kernel file sees in place of NVIDIA's headers.
//
// The only C++ of the simulator, because kernels use templates, overloads and lambdas. Everything
// here is thin: words of the language become attributes, built-in variables become calls, and each
// warp-wide operation becomes "the lanes meet, the last one works for all" (sim.h).
#ifndef SIM_CUDA_H
#define SIM_CUDA_H

#include "sim.h"

#include <cmath>
#include <cstring>

// ---- the language ------------------------------------------------------------------------------

// `flatten` inlines all that a kernel calls, as nvcc does: the meter compares positions in the
// code, and a function in another place would look like a jump.
#define __global__ __attribute__((flatten))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
// A block runs on one OS thread, so thread_local is per block. Declare __shared__ arrays in the
// kernel itself, not in functions it calls: they are found by the kernel's name (symbols.c).
#define __shared__ thread_local
#define __constant__ static
#define SIM_INLINE inline __attribute__((always_inline))

extern "C" {
extern __thread unsigned char smem[]; // dynamic shared memory
}

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
using uint3 = sim_dim3;

#define threadIdx (sim_thread_idx())
#define blockIdx (sim_block_idx())
#define blockDim (sim_block_dim())
#define gridDim (sim_grid_dim())
#define warpSize 32

// Default arguments are evaluated where the function is called: this is how a barrier knows its
// line.
#define SIM_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define SIM_PLACE                                                                                  \
    sim_place { file, line }

template <class... Parameters, class... Arguments>
void sim_launch_kernel(const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                       size_t smem_bytes, sim_place place, Arguments... arguments) {
    auto call = [=] { kernel(arguments...); };
    struct sim_launch launch = {name,
                                (const void *)kernel,
                                [](void *c) { (*static_cast<decltype(call) *>(c))(); },
                                &call,
                                sizeof call,
                                {grid.x, grid.y, grid.z},
                                {block.x, block.y, block.z},
                                smem_bytes,
                                place};
    ::sim_launch(&launch);
}

#define LAUNCH(kernel, grid, block, smem_bytes, ...)                                               \
    sim_launch_kernel(#kernel, kernel, grid, block, smem_bytes,                                    \
                      sim_place{__FILE__, __LINE__} __VA_OPT__(, ) __VA_ARGS__)

// ---- barriers, shuffles, votes -----------------------------------------------------------------

SIM_INLINE void __syncthreads(SIM_HERE) { sim_block_barrier(0, "__syncthreads()", SIM_PLACE); }
SIM_INLINE int __syncthreads_count(int p, SIM_HERE) {
    return sim_block_barrier(p, "__syncthreads_count()", SIM_PLACE);
}
SIM_INLINE int __syncthreads_or(int p, SIM_HERE) {
    return sim_block_barrier(p, "__syncthreads_or()", SIM_PLACE) != 0;
}
SIM_INLINE int __syncthreads_and(int p, SIM_HERE) {
    return sim_block_barrier(!p, "__syncthreads_and()", SIM_PLACE) == 0;
}
SIM_INLINE void __syncwarp(uint32_t mask = ~0u, SIM_HERE) {
    sim_warp_collective(mask, nullptr, nullptr, "__syncwarp()", SIM_PLACE);
}

template <class T> struct sim_shuffle {
    T value, result;
    int from; // the lane to read
};

template <class T> void sim_shuffle_all(void *const lanes[32], uint32_t mask) {
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        auto *me = static_cast<sim_shuffle<T> *>(lanes[i]);
        // Reading a lane that does not take part is undefined on a GPU: poison, so that it shows.
        if (mask >> me->from & 1)
            me->result = static_cast<sim_shuffle<T> *>(lanes[me->from])->value;
        else
            std::memset((void *)&me->result, 0xff, sizeof(T));
    }
}

template <class T>
T sim_shuffle_from(uint32_t mask, T value, int from, const char *what, sim_place place) {
    sim_shuffle<T> mine = {value, value, from};
    sim_warp_collective(mask, sim_shuffle_all<T>, &mine, what, place);
    return mine.result;
}

// `width` cuts the warp into segments; a source outside the own segment means the own lane.
template <class T>
SIM_INLINE T __shfl_sync(uint32_t mask, T value, int source, int width = 32, SIM_HERE) {
    int segment = sim_lane() / width * width;
    return sim_shuffle_from(mask, value, segment + (source & (width - 1)), "__shfl_sync()",
                            SIM_PLACE);
}
template <class T>
SIM_INLINE T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32, SIM_HERE) {
    int lane = sim_lane(), from = lane ^ bits;
    // As documented: a later segment gives the own value, an earlier one may be read.
    return sim_shuffle_from(mask, value, from / width > lane / width ? lane : from,
                            "__shfl_xor_sync()", SIM_PLACE);
}
template <class T>
SIM_INLINE T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32, SIM_HERE) {
    int lane = sim_lane(), from = lane + (int)by;
    return sim_shuffle_from(mask, value, from / width == lane / width ? from : lane,
                            "__shfl_down_sync()", SIM_PLACE);
}
template <class T>
SIM_INLINE T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32, SIM_HERE) {
    int lane = sim_lane(), from = lane - (int)by;
    return sim_shuffle_from(mask, value, from >= lane / width * width ? from : lane,
                            "__shfl_up_sync()", SIM_PLACE);
}

struct sim_vote {
    bool predicate;
    uint32_t ballot;
};

inline void sim_vote_all(void *const lanes[32], uint32_t mask) {
    uint32_t ballot = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) ballot |= uint32_t(static_cast<sim_vote *>(lanes[i])->predicate) << i;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) static_cast<sim_vote *>(lanes[i])->ballot = ballot;
}

SIM_INLINE uint32_t sim_ballot(uint32_t mask, bool predicate, const char *what, sim_place place) {
    sim_vote mine = {predicate, 0};
    sim_warp_collective(mask, sim_vote_all, &mine, what, place);
    return mine.ballot;
}
SIM_INLINE uint32_t __ballot_sync(uint32_t mask, int predicate, SIM_HERE) {
    return sim_ballot(mask, predicate, "__ballot_sync()", SIM_PLACE);
}
SIM_INLINE int __any_sync(uint32_t mask, int predicate, SIM_HERE) {
    return sim_ballot(mask, predicate, "__any_sync()", SIM_PLACE) != 0;
}
SIM_INLINE int __all_sync(uint32_t mask, int predicate, SIM_HERE) {
    return sim_ballot(mask, !predicate, "__all_sync()", SIM_PLACE) == 0;
}

SIM_INLINE void __threadfence() { sim_thread_fence(); }
SIM_INLINE void __threadfence_block() {} // a block's fibers take turns: always ordered

// ---- atomics -----------------------------------------------------------------------------------

SIM_INLINE float atomicAdd(float *p, float v) { return sim_atomic_add_f32(p, v); }
SIM_INLINE double atomicAdd(double *p, double v) { return sim_atomic_add_f64(p, v); }
SIM_INLINE unsigned atomicAdd(unsigned *p, unsigned v) { return sim_atomic_add_u32(p, v); }
SIM_INLINE int atomicAdd(int *p, int v) {
    return (int)sim_atomic_add_u32((uint32_t *)p, (uint32_t)v);
}
SIM_INLINE unsigned long long atomicAdd(unsigned long long *p, unsigned long long v) {
    return sim_atomic_add_u64((uint64_t *)p, v);
}
SIM_INLINE unsigned atomicInc(unsigned *p, unsigned last) { return sim_atomic_inc_u32(p, last); }

// ---- vector types: one access of 8 or 16 bytes, as on the GPU -----------------------------------

// Left to itself gcc copies a struct of four floats in four accesses and clang calls memcpy; a
// copy of the vector member is one access in both.
#define SIM_VECTOR(name, T, bytes, ...)                                                            \
    struct __align__(bytes) name {                                                                 \
        typedef T raw_type __attribute__((vector_size(bytes)));                                    \
        union {                                                                                    \
            raw_type raw;                                                                          \
            struct {                                                                               \
                T __VA_ARGS__;                                                                     \
            };                                                                                     \
        };                                                                                         \
        name() = default;                                                                          \
        SIM_INLINE name(const name &o) : raw(o.raw) {}                                             \
        SIM_INLINE name &operator=(const name &o) {                                                \
            raw = o.raw;                                                                           \
            return *this;                                                                          \
        }                                                                                          \
        SIM_INLINE explicit name(raw_type r) : raw(r) {}                                           \
    };
SIM_VECTOR(float2, float, 8, x, y)
SIM_VECTOR(float4, float, 16, x, y, z, w)
SIM_VECTOR(int2, int, 8, x, y)
SIM_VECTOR(int4, int, 16, x, y, z, w)
SIM_VECTOR(uint2, uint32_t, 8, x, y)
SIM_VECTOR(uint4, uint32_t, 16, x, y, z, w)
#undef SIM_VECTOR
SIM_INLINE float2 make_float2(float x, float y) { return float2(float2::raw_type{x, y}); }
SIM_INLINE float4 make_float4(float x, float y, float z, float w) {
    return float4(float4::raw_type{x, y, z, w});
}
SIM_INLINE int2 make_int2(int x, int y) { return int2(int2::raw_type{x, y}); }
SIM_INLINE int4 make_int4(int x, int y, int z, int w) { return int4(int4::raw_type{x, y, z, w}); }
SIM_INLINE uint2 make_uint2(uint32_t x, uint32_t y) { return uint2(uint2::raw_type{x, y}); }
SIM_INLINE uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return uint4(uint4::raw_type{x, y, z, w});
}

// ---- 16-bit floats: kept as bits, computed in fp32 ---------------------------------------------

#include "dtype.h"

// Aggregates without constructors: a __shared__ array of them must not need initialisation.
struct __half {
    uint16_t bits;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
#define SIM_PAIR(name, T)                                                                          \
    struct __align__(4) name {                                                                     \
        union {                                                                                    \
            uint32_t raw;                                                                          \
            struct {                                                                               \
                T x, y;                                                                            \
            };                                                                                     \
        };                                                                                         \
        name() = default;                                                                          \
        SIM_INLINE name(const name &o) : raw(o.raw) {}                                             \
        SIM_INLINE name(T a, T b) : x(a), y(b) {}                                                  \
        SIM_INLINE name &operator=(const name &o) {                                                \
            raw = o.raw;                                                                           \
            return *this;                                                                          \
        }                                                                                          \
    };
SIM_PAIR(__half2, __half)
SIM_PAIR(__nv_bfloat162, __nv_bfloat16)
#undef SIM_PAIR
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

SIM_INLINE __half __float2half(float f) { return {fp16_from_float(f)}; }
SIM_INLINE __half __float2half_rn(float f) { return {fp16_from_float(f)}; }
SIM_INLINE float __half2float(__half h) { return fp16_to_float(h.bits); }
SIM_INLINE __half2 __floats2half2_rn(float x, float y) {
    return __half2(__float2half(x), __float2half(y));
}
SIM_INLINE float2 __half22float2(__half2 h) {
    return make_float2(__half2float(h.x), __half2float(h.y));
}
SIM_INLINE __nv_bfloat16 __float2bfloat16(float f) { return {bf16_from_float(f)}; }
SIM_INLINE __nv_bfloat16 __float2bfloat16_rn(float f) { return {bf16_from_float(f)}; }
SIM_INLINE float __bfloat162float(__nv_bfloat16 b) { return bf16_to_float(b.bits); }
SIM_INLINE __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return __nv_bfloat162(__float2bfloat16(x), __float2bfloat16(y));
}
SIM_INLINE float2 __bfloat1622float2(__nv_bfloat162 b) {
    return make_float2(__bfloat162float(b.x), __bfloat162float(b.y));
}

// ---- arithmetic --------------------------------------------------------------------------------

template <class T> SIM_INLINE T min(T a, T b) { return b < a ? b : a; }
template <class T> SIM_INLINE T max(T a, T b) { return a < b ? b : a; }
SIM_INLINE float __expf(float x) { return expf(x); }
SIM_INLINE float __logf(float x) { return logf(x); }
SIM_INLINE float __fdividef(float a, float b) { return a / b; }
SIM_INLINE float rsqrtf(float x) { return 1 / sqrtf(x); }
SIM_INLINE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
SIM_INLINE int __popc(uint32_t x) { return __builtin_popcount(x); }
SIM_INLINE int __ffs(int x) { return __builtin_ffs(x); }
SIM_INLINE uint32_t __float_as_uint(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
SIM_INLINE float __uint_as_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// ---- the part of CUDA's host library that steps use --------------------------------------------

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel *kernel, cudaFuncAttribute, int bytes) {
    return (cudaError_t)sim_allow_dynamic_smem((const void *)kernel, bytes);
}

#endif

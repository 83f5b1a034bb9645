// peak_wgmma.cu - the matrix units' peak by wgmma, for sm_90.
#include "gpu/peak.h"

#include "kernel.h"
#include "ptx_sm90.h"

namespace {

constexpr int Warpgroups = 2, Threads = 128 * Warpgroups, Steps = 1 << 10, Rounds = 4;
constexpr int N = 256, RowBytes = 128; // columns of a product; what a row of a tile takes

// From -1 to 1, another for each n.
__device__ float random_number(uint32_t n) {
    n = (n ^ n >> 16) * 0x7feb352du;
    n = (n ^ n >> 15) * 0x846ca68bu;
    return (float)(int32_t)(n ^ n >> 16) / 2147483648.0f;
}

template <bool FP8> __device__ void fill(unsigned char *tile, int bytes, uint32_t seed) {
    for (int i = threadIdx.x; i < bytes / 4; i += Threads) {
        float x[4];
        for (int e = 0; e < 4; e++) x[e] = random_number(seed + 4 * i + e);
        ((uint32_t *)tile)[i] =
            FP8 ? pack_e4m3(x[0], x[1], x[2], x[3]) : pack<__nv_bfloat16>(x[0], x[1]);
    }
}

// Two warpgroups: while one waits at the end of a step, the other keeps the units busy.
template <bool FP8> __global__ void __launch_bounds__(Threads) products(float *never_written) {
    __shared__ alignas(1024) unsigned char A[Warpgroups][64 * RowBytes], B[N * RowBytes];
    fill<FP8>(A[0], sizeof A, 1);
    fill<FP8>(B, sizeof B, 1 << 20);
    fence_proxy_async(); // what is stored is there for wgmma
    __syncthreads();
    uint64_t a = wgmma_k_major(A[threadIdx.x / 128]), b = wgmma_k_major(B);
    float d[N / 2] = {};
    for (int step = 0; step < Steps; step++) {
        wgmma_fence(d);
#pragma unroll
        for (int k = 0; k < Rounds * RowBytes; k += 32) { // 32 bytes of each row are one product
            uint64_t at = k % RowBytes;
            if (FP8)
                wgmma_m64k32<N>(d, wgmma_moved(a, at), wgmma_moved(b, at), true);
            else
                wgmma_m64k16<N, __nv_bfloat16>(d, wgmma_moved(a, at), wgmma_moved(b, at), true);
        }
        wgmma_commit();
        wgmma_wait<0>(d);
    }
    float sum = 0;
    for (int n = 0; n < N / 2; n++) sum += d[n];
    if (isnan(sum)) *never_written = sum; // or the compiler would drop the loop
}

} // namespace

double peak_wgmma(int sm_count, bool fp8) {
    if (fp8)
        products<true><<<sm_count, Threads>>>(nullptr);
    else
        products<false><<<sm_count, Threads>>>(nullptr);
    return 2.0 * 64 * N * (fp8 ? 32 : 16) * Rounds * (RowBytes / 32) * Steps * Warpgroups *
           sm_count;
}

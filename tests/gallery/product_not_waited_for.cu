// The product of two matrices of ones, 64 x 64 and 64 x 8.

#include "gallery.h"
#include "ptx_sm90.h"

namespace product_not_waited_for {

constexpr uint32_t ONES = 0x3c003c00; // two times 1.0 in fp16

__global__ void faulty(float *out) {
    unsigned char *A = smem, *B = smem + 8192;
    int t = threadIdx.x;
    for (int i = t; i < 4096; i += 128) reinterpret_cast<uint32_t *>(smem)[i] = ONES;
    fence_proxy_async(); // what this thread has stored is there for the tensor cores,
    __syncthreads();     // and so is what the others have
    float d[4];
    wgmma_fence();
    for (int k = 0; k < 4; k++)
        wgmma_m64k16<8, __half>(d, wgmma_k_major(A + 32 * k), wgmma_k_major(B + 32 * k), k > 0);
    wgmma_commit();
    for (int i = 0; i < 4; i++) out[4 * t + i] = d[i];
    wgmma_wait<0>();
}

static void launch_faulty(const float *, float *out) { LAUNCH(faulty, 1, 128, 16384, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(float *out) {
    unsigned char *A = smem, *B = smem + 8192;
    int t = threadIdx.x;
    for (int i = t; i < 4096; i += 128) reinterpret_cast<uint32_t *>(smem)[i] = ONES;
    fence_proxy_async(); // what this thread has stored is there for the tensor cores,
    __syncthreads();     // and so is what the others have
    float d[4];
    wgmma_fence();
    for (int k = 0; k < 4; k++)
        wgmma_m64k16<8, __half>(d, wgmma_k_major(A + 32 * k), wgmma_k_major(B + 32 * k), k > 0);
    wgmma_commit();
    wgmma_wait<0>(); // until then the registers belong to the tensor cores
    for (int i = 0; i < 4; i++) out[4 * t + i] = d[i];
}

static void launch_correct(const float *, float *out) { LAUNCH(correct, 1, 128, 16384, out); }
static float expected(const float *, int) { return 64; }

GALLERY(product_not_waited_for, "accumulators are read while the product is under way", 512,
        expected);

} // namespace product_not_waited_for

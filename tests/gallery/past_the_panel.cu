// The product of two matrices of ones, 64 x 128 and 128 x 8, swizzled: a row has room for 64 of k.

#include "gallery.h"
#include "ptx_sm90.h"

namespace past_the_panel {

constexpr uint32_t ONES = 0x3c003c00; // two times 1.0 in fp16
constexpr int BYTES = 2 * (64 + 8) * 128;

__global__ void faulty(float *out) {
    unsigned char *A = smem, *B = smem + 2 * 64 * 128; // two panels each, of 64 and of 8 rows
    int t = threadIdx.x;
    for (int i = t; i < BYTES / 4; i += 128) reinterpret_cast<uint32_t *>(smem)[i] = ONES;
    fence_proxy_async(); // what this thread has stored is there for the tensor cores,
    __syncthreads();     // and so is what the others have
    float d[4];
    wgmma_fence(d);
    for (int k = 0; k < 8; k++) { // 16 of k each
        uint64_t a = wgmma_k_major(A + 32 * k), b = wgmma_k_major(B + 32 * k);
        wgmma_m64k16<8, __half>(d, a, b, k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>(d);
    for (int i = 0; i < 4; i++) out[4 * t + i] = d[i];
}

static void launch_faulty(const float *, float *out) { LAUNCH(faulty, 1, 128, BYTES, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(float *out) {
    unsigned char *A = smem, *B = smem + 2 * 64 * 128; // two panels each, of 64 and of 8 rows
    int t = threadIdx.x;
    for (int i = t; i < BYTES / 4; i += 128) reinterpret_cast<uint32_t *>(smem)[i] = ONES;
    fence_proxy_async(); // what this thread has stored is there for the tensor cores,
    __syncthreads();     // and so is what the others have
    float d[4];
    wgmma_fence(d);
    for (int k = 0; k < 8; k++) {        // 16 of k each
        int panel = k / 4, step = k % 4; // four steps of 32 bytes are a row
        uint64_t a = wgmma_k_major(A + panel * 64 * 128 + 32 * step);
        uint64_t b = wgmma_k_major(B + panel * 8 * 128 + 32 * step);
        wgmma_m64k16<8, __half>(d, a, b, k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>(d);
    for (int i = 0; i < 4; i++) out[4 * t + i] = d[i];
}

static void launch_correct(const float *, float *out) { LAUNCH(correct, 1, 128, BYTES, out); }
static float expected(const float *, int) { return 128; }

GALLERY(past_the_panel, "the fifth step along k runs out of the swizzled row", 512, expected);

} // namespace past_the_panel

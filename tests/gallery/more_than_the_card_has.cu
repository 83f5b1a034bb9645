// Asks for 228 KB; a block of sm_90 has 227.

#include "gallery.h"

namespace more_than_the_card_has {

__global__ void faulty(const float *in, float *out) {
    float *tile = reinterpret_cast<float *>(smem);
    int t = threadIdx.x;
    tile[t] = in[t];
    __syncthreads();
    out[t] = tile[255 - t];
}

static void launch_faulty(const float *in, float *out) {
    cudaFuncSetAttribute(faulty, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10);
    LAUNCH(faulty, 1, 256, 228 << 10, in, out);
}

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    float *tile = reinterpret_cast<float *>(smem);
    int t = threadIdx.x;
    tile[t] = in[t];
    __syncthreads();
    out[t] = tile[255 - t];
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(correct, 1, 256, 1 << 10, in, out);
}
static float expected(const float *in, int i) { return in[255 - i]; }

GALLERY(more_than_the_card_has, "more shared memory than a block can have at all", 256, expected);

} // namespace more_than_the_card_has

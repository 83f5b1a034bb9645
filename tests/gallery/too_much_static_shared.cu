// Reverses through a tile of 13000 numbers.

#include "gallery.h"

namespace too_much_static_shared {

__global__ void faulty(const float *in, float *out) {
    __shared__ float tile[13000];
    int t = threadIdx.x;
    tile[t] = in[t];
    __syncthreads();
    out[t] = tile[255 - t];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 256, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    float *tile = reinterpret_cast<float *>(smem); // 13000 numbers, dynamic
    int t = threadIdx.x;
    tile[t] = in[t];
    __syncthreads();
    out[t] = tile[255 - t];
}

static void launch_correct(const float *in, float *out) {
    cudaFuncSetAttribute(correct, cudaFuncAttributeMaxDynamicSharedMemorySize, 52000);
    LAUNCH(correct, 1, 256, 52000, in, out);
}
static float expected(const float *in, int i) { return in[255 - i]; }

GALLERY(too_much_static_shared, "more than 48 KB of __shared__ arrays", 256, expected);

} // namespace too_much_static_shared

// Reverses through 60 KB of dynamic shared memory.

#include "gallery.h"

namespace not_opted_in {

__global__ void faulty(const float *in, float *out) {
    float *tile = reinterpret_cast<float *>(smem);
    int t = threadIdx.x;
    tile[t] = in[t];
    __syncthreads();
    out[t] = tile[255 - t];
}

static void launch_faulty(const float *in, float *out) {
    LAUNCH(faulty, 1, 256, 60 << 10, in, out);
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
    cudaFuncSetAttribute(correct, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 << 10);
    LAUNCH(correct, 1, 256, 60 << 10, in, out);
}
static float expected(const float *in, int i) { return in[255 - i]; }

GALLERY(not_opted_in, "more than 48 KB of dynamic shared memory without asking", 256, expected);

} // namespace not_opted_in

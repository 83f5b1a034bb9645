// Two tiles of 256 numbers; the launch was written for one.

#include "gallery.h"

namespace smem_too_small {

__global__ void faulty(const float *in, float *out) {
    float *first = reinterpret_cast<float *>(smem), *second = first + 256;
    int t = threadIdx.x;
    first[t] = in[t];
    second[t] = in[256 + t];
    __syncthreads();
    out[t] = first[255 - t] + second[t];
}

static void launch_faulty(const float *in, float *out) {
    LAUNCH(faulty, 1, 256, 256 * sizeof(float), in, out);
}

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    float *first = reinterpret_cast<float *>(smem), *second = first + 256;
    int t = threadIdx.x;
    first[t] = in[t];
    second[t] = in[256 + t];
    __syncthreads();
    out[t] = first[255 - t] + second[t];
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(correct, 1, 256, 2 * 256 * sizeof(float), in, out);
}
static float expected(const float *in, int i) { return in[255 - i] + in[256 + i]; }

GALLERY(smem_too_small, "the launch gives less shared memory than the kernel lays out", 256,
        expected);

} // namespace smem_too_small

// Adds 4 blocks of numbers into one with atomics.

#include "gallery.h"

namespace unwritten_global {

__global__ void faulty(const float *in, float *out) {
    atomicAdd(&out[threadIdx.x], in[64 * blockIdx.x + threadIdx.x]);
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 4, 64, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void clear(float *out) { out[threadIdx.x] = 0; }
__global__ void correct(const float *in, float *out) {
    atomicAdd(&out[threadIdx.x], in[64 * blockIdx.x + threadIdx.x]);
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(clear, 1, 64, 0, out);
    LAUNCH(correct, 4, 64, 0, in, out);
}
static float expected(const float *in, int i) {
    return in[i] + in[64 + i] + in[128 + i] + in[192 + i];
}

GALLERY(unwritten_global, "an accumulator that nobody set to zero", 64, expected);

} // namespace unwritten_global

// Doubles numbers, with one block.

#include "gallery.h"

namespace too_many_threads {

__global__ void faulty(const float *in, float *out) { out[threadIdx.x] = 2 * in[threadIdx.x]; }

static void launch_faulty(const float *in, float *out) {
    LAUNCH(faulty, 1, dim3(64, 32), 0, in, out);
}

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = 2 * in[i];
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 2, 512, 0, in, out); }
static float expected(const float *in, int i) { return 2 * in[i]; }

GALLERY(too_many_threads, "a block of more than 1024 threads", 1024, expected);

} // namespace too_many_threads

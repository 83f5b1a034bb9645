// Doubles n = 1000 numbers with blocks of 128 threads, in a buffer of 1024.

#include "gallery.h"

namespace tail_not_guarded {

__global__ void faulty(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) out[i + 24] = 2 * in[i];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 8, 128, 0, in, out, 1000); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(correct, 8, 128, 0, in, out, 1000);
}
static float expected(const float *in, int i) { return 2 * in[i]; }

GALLERY(tail_not_guarded, "the last block runs past the end", 1000, expected);

} // namespace tail_not_guarded

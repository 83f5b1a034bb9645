// Adds each number to its left neighbour.

#include "gallery.h"

namespace before_the_start {

__global__ void faulty(const float *in, float *out) {
    int i = threadIdx.x;
    out[i] = in[i] + in[i - 1];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 256, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    int i = threadIdx.x;
    out[i] = in[i] + (i > 0 ? in[i - 1] : 0);
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 256, 0, in, out); }
static float expected(const float *in, int i) { return in[i] + (i > 0 ? in[i - 1] : 0); }

GALLERY(before_the_start, "a stencil reads to the left of element 0", 256, expected);

} // namespace before_the_start

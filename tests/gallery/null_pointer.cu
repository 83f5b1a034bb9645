// Adds a bias, if there is one.

#include "gallery.h"

namespace null_pointer {

__global__ void faulty(const float *in, const float *bias, float *out) {
    int t = threadIdx.x;
    out[t] = in[t] + bias[t];
}

static void launch_faulty(const float *in, float *out) {
    LAUNCH(faulty, 1, 256, 0, in, nullptr, out);
}

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, const float *bias, float *out) {
    int t = threadIdx.x;
    out[t] = in[t] + (bias ? bias[t] : 0);
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(correct, 1, 256, 0, in, nullptr, out);
}
static float expected(const float *in, int i) { return in[i]; }

GALLERY(null_pointer, "an optional tensor is used although it is not there", 256, expected);

} // namespace null_pointer

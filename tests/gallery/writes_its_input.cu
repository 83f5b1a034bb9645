// Halves numbers in place, then copies them.

#include "gallery.h"

namespace writes_its_input {

__global__ void faulty(const float *in, float *out) {
    int t = threadIdx.x;
    float *x = const_cast<float *>(in);
    x[t] = x[t] / 2;
    out[t] = x[t];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 256, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    int t = threadIdx.x;
    out[t] = in[t] / 2; // the caller still needs its input
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 256, 0, in, out); }
static float expected(const float *in, int i) { return in[i] / 2; }

GALLERY(writes_its_input, "an input is normalised where it stands", 256, expected);

} // namespace writes_its_input

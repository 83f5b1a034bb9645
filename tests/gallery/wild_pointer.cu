// Reads through an offset that was meant to be small.

#include "gallery.h"

namespace wild_pointer {

__global__ void faulty(const float *in, float *out, size_t offset) {
    int t = threadIdx.x;
    out[t] = in[offset + t];
}

static void launch_faulty(const float *in, float *out) {
    LAUNCH(faulty, 1, 256, 0, in, out, size_t(-1) << 40);
}

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out, size_t offset) {
    int t = threadIdx.x;
    out[t] = in[offset + t];
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 256, 0, in, out, 5); }
static float expected(const float *in, int i) { return in[i + 5]; }

GALLERY(wild_pointer, "a pointer made of a number that was none", 256, expected);

} // namespace wild_pointer

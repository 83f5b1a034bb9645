// Adds up 20 numbers with shuffles.

#include "gallery.h"

namespace shuffle_in_a_branch {

__global__ void faulty(const float *in, float *out, int n) {
    int lane = threadIdx.x;
    if (lane < n) {
        float sum = in[lane];
        for (int bits = 16; bits; bits /= 2) sum += __shfl_xor_sync(~0u, sum, bits);
        out[lane] = sum;
    }
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 32, 0, in, out, 20); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out, int n) {
    int lane = threadIdx.x;
    float sum = lane < n ? in[lane] : 0; // lanes without a number take part with 0
    for (int bits = 16; bits; bits /= 2) sum += __shfl_xor_sync(~0u, sum, bits);
    if (lane < n) out[lane] = sum;
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 32, 0, in, out, 20); }
static float expected(const float *, int i) { return i < 20 ? 190.f : 0; }

GALLERY(shuffle_in_a_branch, "a shuffle names lanes that do not call it", 20, expected);

} // namespace shuffle_in_a_branch

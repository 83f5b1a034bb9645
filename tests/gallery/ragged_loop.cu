// Sums 1000 numbers: lane t takes t, t + 32, t + 64, ...

#include "gallery.h"

namespace ragged_loop {

__global__ void faulty(const float *in, float *out, int n) {
    int lane = threadIdx.x;
    float sum = 0;
    for (int i = lane; i < n; i += 32) sum += in[i];
    out[lane] = sum;
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 32, 0, in, out, 1000); }

// ---- the correct twin: find the fault above first -----------------------------------------------

// Right in both forms; but nvcc may unroll the one above so that lanes of a warp load in different
// turns, and what was one request becomes two.
__global__ void correct(const float *in, float *out, int n) {
    int lane = threadIdx.x;
    float sum = 0;
    for (int i0 = 0; i0 < n; i0 += 32) {
        int i = i0 + lane;
        if (i < n) sum += in[i];
    }
    out[lane] = sum;
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(correct, 1, 32, 0, in, out, 1000);
}
static float expected(const float *in, int i) {
    float sum = 0;
    for (int k = i; k < 1000; k += 32) sum += in[k];
    return sum;
}

GALLERY(ragged_loop, "lanes of a warp make different numbers of turns", 32, expected);

} // namespace ragged_loop

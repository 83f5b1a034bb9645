// Lanes 0 to 15 meet in __syncwarp(), the others go on to the barrier.

#include "gallery.h"

namespace waiting_for_each_other {

__global__ void faulty(const float *in, float *out) {
    int t = threadIdx.x;
    if (t < 16) __syncwarp();
    __syncthreads();
    out[t] = in[t];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 64, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    int t = threadIdx.x;
    if (t < 16) __syncwarp(0xffff); // the mask names those who come
    __syncthreads();
    out[t] = in[t];
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 64, 0, in, out); }
static float expected(const float *in, int i) { return in[i]; }

GALLERY(waiting_for_each_other, "half a warp waits in one place, the other half in another", 64,
        expected);

} // namespace waiting_for_each_other

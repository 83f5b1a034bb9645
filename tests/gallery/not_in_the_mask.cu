// Adds up pairs; the mask was written for half a warp.

#include "gallery.h"

namespace not_in_the_mask {

__global__ void faulty(const float *in, float *out) {
    int lane = threadIdx.x;
    out[lane] = in[lane] + __shfl_xor_sync(0xffff, in[lane], 1);
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 32, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    int lane = threadIdx.x;
    out[lane] = in[lane] + __shfl_xor_sync(0xffffffff, in[lane], 1);
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 32, 0, in, out); }
static float expected(const float *in, int i) { return in[i] + in[i ^ 1]; }

GALLERY(not_in_the_mask, "a lane calls a shuffle whose mask leaves it out", 32, expected);

} // namespace not_in_the_mask

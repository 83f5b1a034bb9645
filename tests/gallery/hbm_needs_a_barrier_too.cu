// Writes row sums to HBM and reads all of them again, in one block.

#include "gallery.h"

namespace hbm_needs_a_barrier_too {

__global__ void faulty(const float *in, float *out) {
    int t = threadIdx.x;
    out[512 + t] = in[t] + 1;
    out[t] = out[512 + (t + 32) % 64];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 64, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    int t = threadIdx.x;
    out[512 + t] = in[t] + 1;
    __syncthreads(); // orders the block's accesses to HBM as well as to shared memory
    out[t] = out[512 + (t + 32) % 64];
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 64, 0, in, out); }
static float expected(const float *in, int i) { return in[(i + 32) % 64] + 1; }

GALLERY(hbm_needs_a_barrier_too, "threads of a block exchange through HBM without a barrier", 64,
        expected);

} // namespace hbm_needs_a_barrier_too

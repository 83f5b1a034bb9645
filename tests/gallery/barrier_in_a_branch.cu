// Reverses the first 100 numbers through shared memory; 128 threads.

#include "gallery.h"

namespace barrier_in_a_branch {

__global__ void faulty(const float *in, float *out) {
    __shared__ float tile[100];
    int t = threadIdx.x;
    if (t < 100) {
        tile[t] = in[t];
        __syncthreads();
        out[t] = tile[99 - t];
    }
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 128, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    __shared__ float tile[100];
    int t = threadIdx.x;
    if (t < 100) tile[t] = in[t];
    __syncthreads(); // all 128 threads come here
    if (t < 100) out[t] = tile[99 - t];
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 128, 0, in, out); }
static float expected(const float *in, int i) { return in[99 - i]; }

GALLERY(barrier_in_a_branch, "a barrier that only some threads reach", 100, expected);

} // namespace barrier_in_a_branch

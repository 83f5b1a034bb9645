// Reverses the last tile, which has 100 numbers; 128 threads.

#include "gallery.h"

namespace return_before_a_barrier {

__global__ void faulty(const float *in, float *out, int n) {
    __shared__ float tile[128];
    int t = threadIdx.x;
    if (t >= n) return;
    tile[t] = in[t];
    __syncthreads();
    out[t] = tile[n - 1 - t];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 128, 0, in, out, 100); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out, int n) {
    __shared__ float tile[128];
    int t = threadIdx.x;
    if (t < n) tile[t] = in[t];
    __syncthreads();
    if (t < n) out[t] = tile[n - 1 - t];
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(correct, 1, 128, 0, in, out, 100);
}
static float expected(const float *in, int i) { return in[99 - i]; }

GALLERY(return_before_a_barrier, "threads without work return, the others wait for them", 100,
        expected);

} // namespace return_before_a_barrier

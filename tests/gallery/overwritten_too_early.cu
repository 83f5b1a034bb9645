// Reverses 4 tiles of 64 numbers, one after the other, through one buffer.

#include "gallery.h"

namespace overwritten_too_early {

__global__ void faulty(const float *in, float *out) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    for (int i = 0; i < 4; i++) {
        tile[t] = in[64 * i + t];
        __syncthreads();
        out[64 * i + t] = tile[63 - t];
    }
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 64, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    for (int i = 0; i < 4; i++) {
        tile[t] = in[64 * i + t];
        __syncthreads(); // complete before it is read
        out[64 * i + t] = tile[63 - t];
        __syncthreads(); // read by all before the next turn overwrites it
    }
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 64, 0, in, out); }
static float expected(const float *in, int i) { return in[i / 64 * 64 + 63 - i % 64]; }

GALLERY(overwritten_too_early, "the next tile overwrites one that is still being read", 256,
        expected);

} // namespace overwritten_too_early

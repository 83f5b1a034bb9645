// Reverses 256 numbers through shared memory.

#include "gallery.h"

namespace missing_barrier {

__global__ void faulty(const float *in, float *out) {
    __shared__ float tile[256];
    int t = threadIdx.x;
    tile[t] = in[t];
    out[t] = tile[255 - t];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 256, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    __shared__ float tile[256];
    int t = threadIdx.x;
    tile[t] = in[t];
    __syncthreads(); // the tile is complete before anyone reads another thread's number
    out[t] = tile[255 - t];
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 256, 0, in, out); }
static float expected(const float *in, int i) { return in[255 - i]; }

GALLERY(missing_barrier, "a tile is read before it is complete", 256, expected);

} // namespace missing_barrier

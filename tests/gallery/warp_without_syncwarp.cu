// Swaps neighbours through shared memory, within one warp.

#include "gallery.h"

namespace warp_without_syncwarp {

__global__ void faulty(const float *in, float *out) {
    __shared__ float tile[32];
    int lane = threadIdx.x;
    tile[lane] = in[lane];
    out[lane] = tile[lane ^ 1];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 32, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

// Since Volta every lane has a program counter of its own: that they ran in step was never
// promised.
__global__ void correct(const float *in, float *out) {
    __shared__ float tile[32];
    int lane = threadIdx.x;
    tile[lane] = in[lane];
    __syncwarp();
    out[lane] = tile[lane ^ 1];
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 32, 0, in, out); }
static float expected(const float *in, int i) { return in[i ^ 1]; }

GALLERY(warp_without_syncwarp, "lanes of one warp are taken to be in step", 32, expected);

} // namespace warp_without_syncwarp

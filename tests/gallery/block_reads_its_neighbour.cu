// Doubles numbers, then adds the left neighbour, in one launch.

#include "gallery.h"

namespace block_reads_its_neighbour {

__global__ void faulty(const float *in, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = 2 * in[i];
    __syncthreads();
    if (i > 0) out[512 + i] = out[i] + out[i - 1];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 4, 64, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

// Blocks run in any order, perhaps one after the other. What orders them is the end of a launch.
__global__ void twice(const float *in, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[512 + i] = 2 * in[i];
}
__global__ void correct(float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = out[512 + i] + (i > 0 ? out[512 + i - 1] : 0);
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(twice, 4, 64, 0, in, out);
    LAUNCH(correct, 4, 64, 0, out);
}
static float expected(const float *in, int i) { return 2 * in[i] + (i > 0 ? 2 * in[i - 1] : 0); }

GALLERY(block_reads_its_neighbour, "a block reads what another block of the same launch writes",
        256, expected);

} // namespace block_reads_its_neighbour

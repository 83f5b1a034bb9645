// Sums 100 numbers; the tile has room for 128 and the sum takes all of it.

#include "gallery.h"

namespace unwritten_shared {

__global__ void faulty(const float *in, float *out, int n) {
    __shared__ float tile[128];
    int t = threadIdx.x;
    if (t < n) tile[t] = in[t];
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < 128; k++) sum += tile[k];
    out[t] = sum;
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 128, 0, in, out, 100); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out, int n) {
    __shared__ float tile[128];
    int t = threadIdx.x;
    tile[t] = t < n ? in[t] : 0; // shared memory holds whatever was there before
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < 128; k++) sum += tile[k];
    out[t] = sum;
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(correct, 1, 128, 0, in, out, 100);
}
static float expected(const float *, int i) { return i >= 0 ? 4950.f : 0; }

GALLERY(unwritten_shared, "a part of the tile is never filled", 128, expected);

} // namespace unwritten_shared

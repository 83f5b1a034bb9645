// Sorts nothing, but reserves a lot.

#include "gallery.h"

namespace local_array_too_large {

__global__ void faulty(const float *in, float *out, int n) {
    float mine[100000];
    for (int i = 0; i < n; i++) mine[i] = in[i % 1024];
    out[threadIdx.x] = mine[n - 1 - threadIdx.x];
}

static void launch_faulty(const float *in, float *out) {
    LAUNCH(faulty, 1, 32, 0, in, out, 100000);
}

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out, int n) {
    out[threadIdx.x] = in[(n - 1 - threadIdx.x) % 1024]; // nothing has to be kept
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(correct, 1, 32, 0, in, out, 100000);
}
static float expected(const float *in, int i) { return in[(99999 - i) % 1024]; }

GALLERY(local_array_too_large, "a thread keeps 400 KB of local variables", 32, expected);

} // namespace local_array_too_large

// Finds the last number that is a multiple of 5.

#include "gallery.h"

namespace lanes_store_together {

__global__ void faulty(const float *in, float *out) {
    int lane = threadIdx.x;
    if ((int)in[lane] % 5 == 0) out[0] = in[lane];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 32, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    int lane = threadIdx.x;
    unsigned found = __ballot_sync(~0u, (int)in[lane] % 5 == 0);
    if (lane == 31 - __builtin_clz(found)) out[0] = in[lane]; // one lane: the last that found one
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 32, 0, in, out); }
static float expected(const float *, int i) { return i == 0 ? 30.f : 0; }

GALLERY(lanes_store_together, "several lanes store to one place in one instruction", 1, expected);

} // namespace lanes_store_together

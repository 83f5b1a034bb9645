// Each thread copies 16 bytes in the background and doubles them.

#include "gallery.h"
#include "ptx.h"

namespace copy_not_committed {

__global__ void faulty(const float *in, float *out) {
    __shared__ __align__(16) float tile[256];
    int t = threadIdx.x;
    cp_async_16(&tile[4 * t], &in[4 * t]);
    cp_async_wait<0>();
    for (int i = 4 * t; i < 4 * t + 4; i++) out[i] = 2 * tile[i];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 64, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    __shared__ __align__(16) float tile[256];
    int t = threadIdx.x;
    cp_async_16(&tile[4 * t], &in[4 * t]);
    cp_async_commit();  // the wait counts groups, and only this makes one
    cp_async_wait<0>(); // no barrier: each thread reads only its own copy
    for (int i = 4 * t; i < 4 * t + 4; i++) out[i] = 2 * tile[i];
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 64, 0, in, out); }
static float expected(const float *in, int i) { return 2 * in[i]; }

GALLERY(copy_not_committed, "a wait for groups, and the copy belongs to none", 256, expected);

} // namespace copy_not_committed

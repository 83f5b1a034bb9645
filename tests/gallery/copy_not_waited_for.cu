// Copies a tile in the background and reverses it.

#include "gallery.h"
#include "ptx.h"

namespace copy_not_waited_for {

__global__ void faulty(const float *in, float *out) {
    __shared__ __align__(16) float tile[256];
    int t = threadIdx.x;
    cp_async_16(&tile[4 * t], &in[4 * t]);
    cp_async_commit();
    __syncthreads();
    for (int i = t; i < 256; i += 64) out[i] = tile[255 - i];
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 64, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    __shared__ __align__(16) float tile[256];
    int t = threadIdx.x;
    cp_async_16(&tile[4 * t], &in[4 * t]);
    cp_async_commit();
    cp_async_wait<0>(); // a barrier waits for threads, not for what they have started
    __syncthreads();
    for (int i = t; i < 256; i += 64) out[i] = tile[255 - i];
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 64, 0, in, out); }
static float expected(const float *in, int i) { return in[255 - i]; }

GALLERY(copy_not_waited_for, "a copy in the background is taken to be complete at a barrier", 256,
        expected);

} // namespace copy_not_waited_for

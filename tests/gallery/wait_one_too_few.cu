// Copies four tiles; while one is stored, the next is on its way.

#include "gallery.h"
#include "ptx.h"

namespace wait_one_too_few {

__global__ void faulty(const float *in, float *out) {
    __shared__ __align__(16) float tile[2][128];
    int t = threadIdx.x;
    cp_async_16(&tile[0][4 * t], &in[4 * t]);
    cp_async_commit();
    for (int i = 0; i < 4; i++) {
        if (i < 3) {
            cp_async_16(&tile[(i + 1) % 2][4 * t], &in[128 * (i + 1) + 4 * t]);
            cp_async_commit();
        }
        cp_async_wait<1>();
        float4 x = *reinterpret_cast<float4 *>(&tile[i % 2][4 * t]);
        *reinterpret_cast<float4 *>(&out[128 * i + 4 * t]) = x;
    }
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 32, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    __shared__ __align__(16) float tile[2][128];
    int t = threadIdx.x;
    cp_async_16(&tile[0][4 * t], &in[4 * t]);
    cp_async_commit();
    for (int i = 0; i < 4; i++) {
        if (i < 3) cp_async_16(&tile[(i + 1) % 2][4 * t], &in[128 * (i + 1) + 4 * t]);
        cp_async_commit();  // in the last turn an empty group, so that the wait counts right
        cp_async_wait<1>(); // all but the youngest: tile i is there
        float4 x = *reinterpret_cast<float4 *>(&tile[i % 2][4 * t]);
        *reinterpret_cast<float4 *>(&out[128 * i + 4 * t]) = x;
    }
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 32, 0, in, out); }
static float expected(const float *in, int i) { return in[i]; }

GALLERY(wait_one_too_few, "in a pipeline's last turn the wait lets the last copy be pending", 512,
        expected);

} // namespace wait_one_too_few

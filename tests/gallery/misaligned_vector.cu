// Copies numbers 1 to 128 to the front, four at a time.

#include "gallery.h"

namespace misaligned_vector {

__global__ void faulty(const float *in, float *out) {
    int t = threadIdx.x;
    float4 x = *reinterpret_cast<const float4 *>(in + 4 * t + 1);
    *reinterpret_cast<float4 *>(out + 4 * t) = x;
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 32, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    int t = threadIdx.x;
    for (int k = 0; k < 4; k++)
        out[32 * k + t] = in[32 * k + t + 1]; // 4 bytes at any multiple of 4
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 32, 0, in, out); }
static float expected(const float *in, int i) { return in[i + 1]; }

GALLERY(misaligned_vector, "16 bytes at an address that is no multiple of 16", 128, expected);

} // namespace misaligned_vector

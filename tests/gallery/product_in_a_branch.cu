// Adds A B, all ones, to 16 rows of numbers, of which the last 4 are not wanted.

#include "gallery.h"
#include "ptx.h"

namespace product_in_a_branch {

constexpr uint32_t ONES = 0x3c003c00; // two times 1.0 in fp16

__global__ void faulty(const float *in, float *out, int rows) {
    int row = threadIdx.x / 4, column = threadIdx.x % 4 * 2;
    uint32_t a[4] = {ONES, ONES, ONES, ONES};
    for (int half = 0; half < 2; half++, row += 8) {
        if (row >= rows) continue;
        float d[4] = {in[8 * row + column], in[8 * row + column + 1], 0, 0};
        mma_m16n8k16<__half>(d, a, ONES, ONES);
        out[8 * row + column] = d[0];
        out[8 * row + column + 1] = d[1];
    }
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 32, 0, in, out, 12); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out, int rows) {
    int row = threadIdx.x / 4, column = threadIdx.x % 4 * 2;
    uint32_t a[4] = {ONES, ONES, ONES, ONES};
    for (int half = 0; half < 2; half++, row += 8) {
        float d[4] = {in[8 * row + column], in[8 * row + column + 1], 0, 0};
        mma_m16n8k16<__half>(d, a, ONES, ONES); // all lanes, whether their row is wanted or not
        if (row >= rows) continue;
        out[8 * row + column] = d[0];
        out[8 * row + column + 1] = d[1];
    }
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 32, 0, in, out, 12); }
static float expected(const float *in, int i) { return in[i] + 16; }

GALLERY(product_in_a_branch, "a matrix product that some lanes of the warp skip", 96, expected);

} // namespace product_in_a_branch

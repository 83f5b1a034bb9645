// Loads an 8 x 8 matrix; the rows are padded against bank conflicts.

#include "gallery.h"
#include "ptx.h"

namespace matrix_row_misaligned {

__global__ void faulty(const float *in, float *out) {
    constexpr int Pitch = 64 + 4; // elements of 2 bytes
    __shared__ __align__(16) __half tile[8 * Pitch];
    int lane = threadIdx.x;
    for (int i = lane; i < 64; i += 32) tile[i / 8 * Pitch + i % 8] = __float2half(in[i]);
    __syncwarp(); // the matrix is complete
    uint32_t r[1];
    ldmatrix_x1(r, &tile[lane % 8 * Pitch]);
    __half low = {(uint16_t)r[0]}, high = {(uint16_t)(r[0] >> 16)};
    out[2 * lane] = __half2float(low);
    out[2 * lane + 1] = __half2float(high);
}

static void launch_faulty(const float *in, float *out) { LAUNCH(faulty, 1, 32, 0, in, out); }

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, float *out) {
    constexpr int Pitch = 64 + 8; // each row begins at a multiple of 16 bytes
    __shared__ __align__(16) __half tile[8 * Pitch];
    int lane = threadIdx.x;
    for (int i = lane; i < 64; i += 32) tile[i / 8 * Pitch + i % 8] = __float2half(in[i]);
    __syncwarp(); // the matrix is complete
    uint32_t r[1];
    ldmatrix_x1(r, &tile[lane % 8 * Pitch]);
    __half low = {(uint16_t)r[0]}, high = {(uint16_t)(r[0] >> 16)};
    out[2 * lane] = __half2float(low);
    out[2 * lane + 1] = __half2float(high);
}

static void launch_correct(const float *in, float *out) { LAUNCH(correct, 1, 32, 0, in, out); }
static float expected(const float *in, int i) { return in[i]; }

GALLERY(matrix_row_misaligned, "rows that ldmatrix reads are padded by 8 bytes", 64, expected);

} // namespace matrix_row_misaligned

// swizzle.h - since rung 3: tiles in shared memory without bank conflicts, and fragments from them.
//
// ldmatrix reads 8 rows of 16 bytes at a time. Rows of 64 elements, or of a multiple, all start in
// the same banks, so that the same 16 bytes of 8 rows would take 8 wavefronts. A swizzle moves them
// about: the 16-byte chunk c of row r lies at place c ^ (r % 8) of its row. So the chunks c of 8
// rows in turn lie in 8 different places, which together are all 32 banks; and no byte more is
// needed.
#ifndef STEP05_SWIZZLE_H
#define STEP05_SWIZZLE_H

#include "shared.h"

namespace step05 {

constexpr int Chunk = 8; // elements of 16 bits in 16 bytes

//> swizzled
// Where element (r, c) of a tile with rows of D elements lies, for c a multiple of 8. Where a row
// is shorter than 128 bytes, as many rows as fill them share all the banks, and move together.
template <int D> __device__ inline int swizzled(int r, int c) {
    constexpr int Places = D < 64 ? D / Chunk : 8, Together = 8 / Places;
    return r * D + ((c / Chunk) ^ (r / Together % Places)) * Chunk;
}
//< swizzled

// What one ldmatrix_x4 brings a lane: a left operand, or the right operands of two neighbouring
// products, b0 and b1 of the first, then of the second.
struct fragment {
    uint32_t x[4];
};

//> fragments
// Rows r .. r + 15 and columns c .. c + 15 of Q, as the left operand of a product.
template <class T, int D> __device__ inline fragment left_operand(const T *tile, int r, int c) {
    int lane = threadIdx.x % Lanes;
    fragment f;
    ldmatrix_x4(f.x, tile + swizzled<D>(r + lane % 16, c + lane / 16 * 8));
    return f;
}

// Keys j .. j + 15 and columns c .. c + 15 of K: what Q's columns c .. c + 15 are multiplied with
// for two products, of keys j .. j + 7 and j + 8 .. j + 15. A row of K is a column of K^T, as the
// instruction wants its right operand.
template <class T, int D> __device__ inline fragment keys_operand(const T *tile, int j, int c) {
    int lane = threadIdx.x % Lanes;
    fragment f;
    ldmatrix_x4(f.x, tile + swizzled<D>(j + lane / 16 * 8 + lane % 8, c + lane / 8 % 2 * 8));
    return f;
}

// The same part of V, for the products with columns c .. c + 7 and c + 8 .. c + 15. Here the keys
// are what is summed over: each 8 x 8 is transposed on the way.
template <class T, int D> __device__ inline fragment values_operand(const T *tile, int j, int c) {
    int lane = threadIdx.x % Lanes;
    fragment f;
    ldmatrix_x4_trans(f.x, tile + swizzled<D>(j + lane % 16, c + lane / 16 * 8));
    return f;
}
//< fragments

// ---- the products of a warp with 16 queries, for rungs 3 to 5 ----------------------------------

// S[16 x 64] = Q K^T for a warp's 16 queries, the rows of Q_smem from `first`.
template <class T, int D>
__device__ inline void multiply_QK(float (&S)[Bc / 8][4], const T *Q_smem, const T *K_smem,
                                   int first) {
    for (int n = 0; n < Bc / 8; n++)
        for (int e = 0; e < 4; e++) S[n][e] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        fragment q = left_operand<T, D>(Q_smem, first, k);
#pragma unroll
        for (int n = 0; n < Bc / 8; n += 2) {
            fragment b = keys_operand<T, D>(K_smem, 8 * n, k);
            mma_m16n8k16<T>(S[n], q.x, b.x[0], b.x[1]);
            mma_m16n8k16<T>(S[n + 1], q.x, b.x[2], b.x[3]);
        }
    }
}

// O[16 x D] += P V. P arrives as it left the softmax: the results of two neighbouring products are
// the left operand of this one.
template <class T, int D>
__device__ inline void multiply_PV(float (&O)[D / 8][4], const float (&P)[Bc / 8][4],
                                   const T *V_smem) {
#pragma unroll
    for (int k = 0; k < Bc / 16; k++) {
        const float(&left)[4] = P[2 * k], (&right)[4] = P[2 * k + 1];
        uint32_t a[4] = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]),
                         pack<T>(right[0], right[1]), pack<T>(right[2], right[3])};
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            fragment b = values_operand<T, D>(V_smem, 16 * k, 8 * n);
            mma_m16n8k16<T>(O[n], a, b.x[0], b.x[1]);
            mma_m16n8k16<T>(O[n + 1], a, b.x[2], b.x[3]);
        }
    }
}

} // namespace step05

#endif

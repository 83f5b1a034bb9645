// swizzle.h - tiles in shared memory without bank conflicts, and fragments from them (since rung
// 3).
//
// ldmatrix reads 8 rows of 16 bytes at a time. Rows of D elements start 128 or 256 bytes apart, all
// in the same banks, so that the same 16 bytes of 8 rows would take 8 wavefronts. A swizzle moves
// them about: the 16-byte chunk c of row r lies at place c ^ (r % 8) of its row. So the chunks c of
// 8 rows in turn lie in 8 different places, which together are all 32 banks; and no byte more is
// needed.
#ifndef STEP05_SWIZZLE_H
#define STEP05_SWIZZLE_H

#include "shared.h"

namespace step05 {

constexpr int Chunk = 8; // elements of 16 bits in 16 bytes

// Where element (r, c) of a tile with rows of D elements lies, for c a multiple of 8.
template <int D> __device__ inline int swizzled(int r, int c) {
    return r * D + ((c / Chunk) ^ (r % 8)) * Chunk;
}

// The right operand of two neighbouring products: b0 and b1 of the first, then of the second.
struct fragment {
    uint32_t x[4];
};

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

} // namespace step05

#endif

// fp8.h - what all parts of FP8 attention agree on: the pre-pass, the attention kernel, and the
// host's baseline that the two are judged by (fp8.c).
//
// An e4m3 (dtype.h) has 3 bits of fraction and nothing beyond 448. So a tensor is scaled before it
// is rounded, all of it by one factor, or each head, or each block of a head's rows by its own
// (--fp8-scale): with the largest element of them,
//
//     x8 = e4m3(x * factor),   factor = 448 / largest          x is about  x8 * scale,
//                                                              scale = largest * (1 / 448)
//
// All of these are fp32, rounded at each step, and so is the product before it becomes an e4m3: GPU
// and host agree to the last bit. (The scale is no quotient, because a division takes a GPU a
// subroutine, and the attention kernel has no registers for it where scales are read.) For Q the
// blocks are rows, for K and V keys; a head's last block can be shorter.
//
// --rotate: first each row of Q and K becomes  x D H / sqrt(d),  with D = diag(fp8_sign(0), …) and
// Hadamard's matrix H: H_1 = 1, H_2n = [H_n H_n; H_n -H_n], d a power of two. D H / sqrt(d) is
// orthogonal, so Q K^T stays what it was, and one large element of a row is spread over all of it.
// In fp32, step by step the same everywhere: signs; then for n = 1, 2, 4, …, d / 2 each two
// elements n apart become their sum and their difference (the former minus the latter); then 1 /
// sqrtf(d) times each.
//
// P is 2^FP8_P_OFFSET exp(S - m) before it is rounded: up to 256 of 448, and weights down to 2^-14
// keep all their bits. l is the sum of what was not rounded yet, and O and l have the factor both.
#ifndef FP8_H
#define FP8_H

#include "attn.h"

#ifdef __CUDACC__
#define FP8_FUNCTION __host__ __device__ static inline
#else
#define FP8_FUNCTION static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { FP8_BLOCK = 128 };  // rows that share a scale, with --fp8-scale block
enum { FP8_P_OFFSET = 8 }; // log2

// What x is multiplied with. Where there is next to nothing, 448 / largest would be infinite.
//> fp8-scale
FP8_FUNCTION float fp8_factor(float largest) { return largest > 0x1p-100f ? 448 / largest : 1; }
FP8_FUNCTION float fp8_scale_of(float largest) {
    return largest > 0x1p-100f ? largest * (1.0f / 448) : 1;
}
//< fp8-scale

// 1 or -1, as if by chance, for each column of a row. (The mixing steps are those of "lowbias32",
// by Chris Wellons, nullprogram.com/blog/2018/07/31.)
FP8_FUNCTION float fp8_sign(int column) {
    uint32_t x = (uint32_t)column + 0x9e3779b9;
    x = (x ^ x >> 16) * 0x7feb352d;
    x = (x ^ x >> 15) * 0x846ca68b;
    x ^= x >> 16;
    return x & 1 ? -1.0f : 1.0f;
}

// ---- on the host: fp8.c -------------------------------------------------------------------------

struct inputs; // inputs.h

// One row times D H / sqrt(d).
void fp8_rotate(float *row, int d);

// A tensor as the kernel sees it: rotated if `rotate`, scaled, rounded to e4m3, and scaled back.
void fp8_quantise(const struct attn_problem *p,
                  const float *x, // [heads, rows, d]
                  int heads, int rows, bool rotate,
                  float *out); // as x

// All of an input, new, without a dO. Free it by inputs_free. False: no memory.
bool fp8_quantise_inputs(const struct attn_problem *p, const struct inputs *in, struct inputs *out);

#ifdef __cplusplus
}
#endif
#endif

// dtype.c - fp32, fp16, bf16 and e4m3 bit by bit.
//
//          sign  exponent (bias)  fraction   smallest normal   largest
//   fp32    1        8 (127)         23          2^-126        3.4e38
//   bf16    1        8 (127)          7          2^-126        3.4e38    the upper half of an fp32
//   fp16    1        5 (15)          10          2^-14         65504
//   e4m3    1        4 (7)            3          2^-6          448       no infinity, one NaN: 0x7f
//
// ("FP8 Formats for Deep Learning", Micikevicius et al., arXiv:2209.05433.)
//
// Plain integer code rather than compiler types: gcc 11 has no _Float16 on x86-64, and here the
// rounding can be read.
#include "dtype.h"

#include <float.h>
#include <math.h>
#include <string.h>

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Drops the low `n` bits, to nearest, ties to even: just under half of the last kept bit is added,
// and one more if that bit is set, so that an exact half carries only into an odd number. A carry
// out of the fraction lands in the exponent, which is the next power of two, or infinity.
static uint32_t round_off(uint32_t bits, int n) {
    uint32_t below_half = (1u << (n - 1)) - 1;
    return (bits + below_half + (bits >> n & 1)) >> n;
}

uint16_t fp16_from_float(float x) {
    const uint32_t infinity = 255u << 23, two_to_16 = 143u << 23, two_to_minus_14 = 113u << 23;
    uint32_t sign = bits_of(x) >> 16 & 0x8000, magnitude = bits_of(x) & 0x7fffffff;
    uint32_t half;
    if (magnitude > infinity) {
        half = 0x7e00 | (magnitude >> 13 & 0x3ff); // a NaN stays one: its quiet bit is set
    } else if (magnitude >= two_to_16) {
        half = 0x7c00;
    } else if (magnitude >= two_to_minus_14) {
        half = round_off(magnitude - ((127u - 15) << 23), 13); // from bias 127 to bias 15
    } else {
        // fp16's subnormals are the multiples of 2^-24, which is also the spacing of fp32 just
        // above 0.5: the addition rounds to one of them, and the bits above those of 0.5 count it.
        half = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    }
    return (uint16_t)(sign | half);
}

float fp16_to_float(uint16_t bits) {
    uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00) return float_of(sign | 255u << 23 | (magnitude & 0x3ff) << 13);
    // Read with fp32's bias the exponent is 127 - 15 too low; the product is exact, and it
    // normalises subnormals on its way.
    float x = float_of(magnitude << 13) * 0x1p112f;
    return float_of(sign | bits_of(x));
}

uint16_t bf16_from_float(float x) {
    if (isnan(x)) return (uint16_t)(bits_of(x) >> 16 | 0x40); // rounding could carry to infinity
    return (uint16_t)round_off(bits_of(x), 16);
}

float bf16_to_float(uint16_t bits) { return float_of((uint32_t)bits << 16); }

uint8_t e4m3_from_float(float x) {
    const uint32_t two_to_minus_6 = 121u << 23;
    uint32_t sign = bits_of(x) >> 24 & 0x80, magnitude = bits_of(x) & 0x7fffffff;
    if (isnan(x)) return 0x7f;
    uint32_t eight;
    if (magnitude >= two_to_minus_6) {
        eight = round_off(magnitude - ((127u - 7) << 23), 20); // from bias 127 to bias 7
        if (eight > 0x7e) eight = 0x7e;                        // 448
    } else {
        // As for fp16: e4m3's subnormals are the multiples of 2^-9, the spacing of fp32 above 2^14.
        eight = bits_of(float_of(magnitude) + 0x1p14f) - bits_of(0x1p14f);
    }
    return (uint8_t)(sign | eight);
}

float e4m3_to_float(uint8_t bits) {
    uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
    if (magnitude == 0x7f) return float_of(sign | 0x7fc00000);
    float x = float_of(magnitude << 20) * 0x1p120f; // the exponent was 127 - 7 too low
    return float_of(sign | bits_of(x));
}

float dtype_round(enum attn_dtype dtype, float x) {
    switch (dtype) {
    case ATTN_FP16: return fp16_to_float(fp16_from_float(x));
    case ATTN_BF16:
    case ATTN_FP8: return bf16_to_float(bf16_from_float(x));
    default: return x;
    }
}

double dtype_ulp(enum attn_dtype dtype, double x) {
    int fraction_bits = dtype == ATTN_FP32 ? 23 : dtype == ATTN_FP16 ? 10 : 7;
    double smallest_normal = dtype == ATTN_FP16 ? 0x1p-14 : (double)FLT_MIN;
    if (!isfinite(x)) return isnan(x) ? x : 0;
    int exponent; // frexp: |x| = m * 2^exponent with 1/2 <= m < 1
    frexp(fmax(fabs(x), smallest_normal), &exponent);
    return ldexp(1, exponent - 1 - fraction_bits);
}

void dtype_pack(enum attn_dtype dtype, const float *from, void *to, uint64_t n) {
    if (dtype == ATTN_FP32) {
        memcpy(to, from, n * sizeof *from);
        return;
    }
    uint16_t *out = to;
    for (uint64_t i = 0; i < n; i++) {
        out[i] = dtype == ATTN_FP16 ? fp16_from_float(from[i]) : bf16_from_float(from[i]);
    }
}

void dtype_unpack(enum attn_dtype dtype, const void *from, float *to, uint64_t n) {
    if (dtype == ATTN_FP32) {
        memcpy(to, from, n * sizeof *to);
        return;
    }
    const uint16_t *in = from;
    for (uint64_t i = 0; i < n; i++) {
        to[i] = dtype == ATTN_FP16 ? fp16_to_float(in[i]) : bf16_to_float(in[i]);
    }
}

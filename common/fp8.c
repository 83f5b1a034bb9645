// fp8.c - what the pre-pass of FP8 attention makes of its inputs, on the host: to the last bit.

#include "fp8.h"
#include "dtype.h"
#include "inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void fp8_rotate(float *row, int d) {
    for (int c = 0; c < d; c++) row[c] *= fp8_sign(c);
    for (int n = 1; n < d; n *= 2)
        for (int c = 0; c < d; c++) {
            if (c & n) continue;
            float a = row[c], b = row[c + n];
            row[c] = a + b;
            row[c + n] = a - b;
        }
    const float shorter = 1 / sqrtf((float)d);
    for (int c = 0; c < d; c++) row[c] *= shorter;
}

static float largest_of(const float *x, uint64_t n) {
    float largest = 0;
    for (uint64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    return largest;
}

// What shares a scale: n elements.
static void quantise_group(float *x, uint64_t n) {
    float largest = largest_of(x, n), factor = fp8_factor(largest), scale = fp8_scale_of(largest);
    for (uint64_t i = 0; i < n; i++) x[i] = e4m3_to_float(e4m3_from_float(x[i] * factor)) * scale;
}

static void quantise_blocks(float *head, uint64_t rows, uint64_t d) {
    for (uint64_t row = 0; row < rows; row += FP8_BLOCK) {
        uint64_t left = rows - row;
        quantise_group(head + row * d, (left < FP8_BLOCK ? left : FP8_BLOCK) * d);
    }
}

void fp8_quantise(const struct attn_problem *p, const float *x, int heads, int rows, bool rotate,
                  float *out) {
    uint64_t d = (uint64_t)p->head_dim, of_head = (uint64_t)rows * d, all = of_head * heads;
    memcpy(out, x, all * sizeof *out);
    for (uint64_t row = 0; rotate && row < all; row += d) fp8_rotate(out + row, p->head_dim);
    switch (p->fp8_scale) {
    case FP8_SCALE_TENSOR: quantise_group(out, all); break;
    case FP8_SCALE_HEAD:
        for (int h = 0; h < heads; h++) quantise_group(out + h * of_head, of_head);
        break;
    case FP8_SCALE_BLOCK:
        for (int h = 0; h < heads; h++) quantise_blocks(out + h * of_head, (uint64_t)rows, d);
        break;
    }
}

bool fp8_quantise_inputs(const struct attn_problem *p, const struct inputs *in,
                         struct inputs *out) {
    uint64_t q = attn_q_elements(p) * sizeof(float), kv = attn_kv_elements(p) * sizeof(float);
    *out = (struct inputs){malloc(q), malloc(kv), malloc(kv), NULL};
    if (!out->Q || !out->K || !out->V) {
        inputs_free(out);
        return false;
    }
    int heads = p->batch * p->heads, kv_heads = p->batch * p->kv_heads;
    fp8_quantise(p, in->Q, heads, p->seqlen_q, p->rotate, out->Q);
    fp8_quantise(p, in->K, kv_heads, p->seqlen_k, p->rotate, out->K);
    fp8_quantise(p, in->V, kv_heads, p->seqlen_k, false, out->V);
    return true;
}

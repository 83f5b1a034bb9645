// inputs.h - where Q, K, V come from: seeded families, or .npy files.
#ifndef INPUTS_H
#define INPUTS_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

// Host tensors, fp32 after rounding to the problem's data type.
struct inputs {
    float *Q;     // [B, H, Nq, d]
    float *K, *V; // [B, Hkv, Nk, d]
    float *dO;    // [B, H, Nq, d]; NULL when no backward is asked for
};

enum data_family {
    DATA_NORMAL,   // N(0, 1)
    DATA_LARGE,    // logits of standard deviation 30: exp without the maximum overflows
    DATA_RISING,   // logits rise from -30 to 30, key by key: each tile raises the maximum
    DATA_OUTLIERS, // N(0, 1) + N(0, 10^2) * Bernoulli(0.001): FlashAttention-3, section 4.3
    DATA_CONSTANT, // equal logits, not 0; V small integers that differ by row: O is a plain mean
    DATA_ONE_HOT,  // each query selects one known key (one_hot_key): O is exactly that row of V
    DATA_FAMILIES
};

const char *data_family_name(enum data_family family); // "one-hot"
bool data_family_parse(const char *name, enum data_family *out);

// The key that query i selects under DATA_ONE_HOT; always one that it sees. -1 when it sees none.
int one_hot_key(const struct attn_problem *p, int i);

// Fills a new set of tensors. The same seed gives the same bits on every machine and compiler: only
// integer operations and + - * / sqrt in double, no log or cos of libm, and one rounding to the
// type. False, with one line in `why`, when there is no memory or the family cannot be made for
// this shape and type.
bool inputs_make(const struct attn_problem *p, enum data_family family, uint64_t seed,
                 bool backward, struct inputs *out, char *why, size_t why_size);

// Reads DIR/Q.npy, K.npy, V.npy (and dO.npy when `backward`) and sets the shape fields of `p`,
// which attn_problem_check has still to judge; p->dtype is read, to which the values are rounded.
// 4-D, C order, float16, float32 or float64; no NaN or infinity. False, with one line in `why`,
// when a file is missing, malformed or does not agree with the others.
bool inputs_load(const char *dir, bool backward, struct attn_problem *p, struct inputs *out,
                 char *why, size_t why_size);

void inputs_free(struct inputs *in);

#ifdef __cplusplus
}
#endif
#endif

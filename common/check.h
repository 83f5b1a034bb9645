// check.h - is this output right? The bar that every kernel has to clear.
#ifndef CHECK_H
#define CHECK_H

#include "oracle.h"

#ifdef __cplusplus
extern "C" {
#endif

// The outcome for one tensor. A comparison is `!(error <= tolerance)`, so NaN fails.
struct check {
    const char *tensor; // "O", "LSE", "dQ", ...
    bool ok;
    double error;     // largest |kernel - oracle|; NaN if any element is NaN
    double rmse;      // root mean square of all of them
    double base_rmse; // FP8: the baseline's; else 0
    double of_bar;    // largest error / tolerance over the elements: above 1 fails; or NaN
    uint64_t bad;     // elements over the bar; FP8: rows
    uint64_t worst;   // index of the element of that; the first NaN if there is one
    double got, want; // there
};

// In all types but FP8:
//
// O may be off by 2x the baseline's largest error, plus two units in the last place of the kernel's
// type around the value, plus in fp32 2 (1 + max|logit|) max|V| 2^-24 (without the last term
// correct fp32 kernels fail a few seeds in a hundred on `large` inputs at short N).
struct check check_O(const struct attn_problem *p, const struct reference *r, const float *O);

// LSE is held to fp32 whatever the type of O: 2x the baseline's largest error, plus two units in
// the last place, plus 2 (1 + max|logit|) 2^-24. -infinity must be -infinity.
struct check check_LSE(const struct attn_problem *p, const struct reference *r, const float *LSE);

// FP8. What quantising costs is far more than what the kernel's own arithmetic does, and differs
// from input to input; so O is judged by its root mean square error against double precision of the
// inputs that are not quantised, and the yardstick is a baseline that quantises just as the kernel
// was told to (fp8.h, oracle.h). They share Q8, K8 and V8, to the bit. P they round from another
// maximum, and of a few rows one of the two may be luckier. So there are two limits:
//
//     RMSE of all n elements of O    (1.25 + 2 / sqrt(n)) x the baseline's      + half a unit
//     RMSE of a row of O             2x the baseline's here, 0.5x in its worst  + half a unit
//
// (units in the last place of bf16, their rms over the elements). The second is there for faults in
// single rows, which do not show among many. LSE has no P, so luck plays no part: 1.25 for all,
// and as above for a row, which is one number; plus 2 units of fp32, 2 (1 + max|logit|) 2^-24, and
// once (for a row 4 times) 2^-10 (1 + max|logit|) for the tensor cores' short sums (sim/wgmma.c).
// tests/test_fp8.c counts how near to these limits comes what is right.

// Gradients (reference_add_backward must have made them) may be off by 3x the baseline's largest
// error, plus two units in the last place, plus in fp32 2 (1 + max|logit|) 2^-24 times
//     scale rms(K) max|dP| for dQ,  scale rms(Q) max|dP| for dK,  max|dO| for dV,
// plus in every type, for dP - D where one weight is 1, 2 * 2^-24 times the longest rows of dO and
// V,
//     times scale max|K| for dQ,  scale max|Q| sqrt(queries to a key, at least 1) for dK.
// So the bar scales with dO as gradients do: that of a tiny dO does not let everything through.
struct check check_dQ(const struct attn_problem *p, const struct reference *r, const float *dQ);
struct check check_dK(const struct attn_problem *p, const struct reference *r, const float *dK);
struct check check_dV(const struct attn_problem *p, const struct reference *r, const float *dV);

#ifdef __cplusplus
}
#endif
#endif

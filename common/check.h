// check.h - is this output right? The bar that every kernel has to clear.
#ifndef CHECK_H
#define CHECK_H

#include "oracle.h"

#ifdef __cplusplus
extern "C" {
#endif

// The outcome for one tensor. A comparison is `!(error <= tolerance)`, so NaN fails.
struct check {
    const char *tensor; // "O", "LSE"
    bool ok;
    double error;     // largest |kernel - oracle|; NaN if any element is NaN
    double of_bar;    // largest error / tolerance over the elements: above 1 fails; or NaN
    uint64_t bad;     // elements over the bar
    uint64_t worst;   // index of the element of that; the first NaN if there is one
    double got, want; // there
};

// O may be off by 2x the baseline's largest error, plus two units in the last place of the kernel's
// type around the value, plus in fp32 2 (1 + max|logit|) max|V| 2^-24 (without the last term
// correct fp32 kernels fail a few seeds in a hundred on `large` inputs at short N).
struct check check_O(const struct attn_problem *p, const struct reference *r, const float *O);

// LSE is held to fp32 whatever the type of O: 2x the baseline's largest error, plus two units in
// the last place, plus 2 (1 + max|logit|) 2^-24. -infinity must be -infinity.
struct check check_LSE(const struct attn_problem *p, const struct reference *r, const float *LSE);

#ifdef __cplusplus
}
#endif
#endif

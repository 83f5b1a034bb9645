// oracle.h - what the right answer is, and how far a plain kernel may be from it.
#ifndef ORACLE_H
#define ORACLE_H

#include "inputs.h"

#ifdef __cplusplus
extern "C" {
#endif

// The naive algorithm in double precision: the definition in attn.h, line by line. False when there
// is no memory for one row of S.
bool oracle_forward(const struct attn_problem *p, const struct inputs *in,
                    double *O,          // [B, H, Nq, d]
                    double *LSE,        // [B, H, Nq], -infinity for a query that sees no key
                    double *max_logit); // largest |scale * q.k| of the visible pairs, one number

// The same algorithm in the kernel's data type, the yardstick of the check: S and LSE are kept in
// fp32, sums are fp32 in the order of the keys, P and O are rounded to p->dtype. False when there
// is no memory for one row of S.
bool baseline_forward(const struct attn_problem *p, const struct inputs *in,
                      float *O,    // [B, H, Nq, d]
                      float *LSE); // [B, H, Nq]

// Both, and what the bar needs besides.
struct reference {
    double *O, *LSE;
    float *base_O, *base_LSE;
    double max_logit, max_v;
    double base_error_O, base_error_LSE; // largest |baseline - oracle|
};

// On the machine's fp64 kernels where the C oracle would take minutes and the machine has them.
// False, with one line in `why`, when there is no memory or fp32 overflows on these inputs.
bool reference_make(const struct attn_problem *p, const struct inputs *in, struct reference *out,
                    char *why, size_t why_size);
void reference_free(struct reference *r);

#ifdef __cplusplus
}
#endif
#endif

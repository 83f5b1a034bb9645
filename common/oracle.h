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
// fp32, sums are fp32 in the order of the keys, P and O are rounded to p->dtype. For FP8: Q, K and
// V are quantised as fp8.h says, then all is double but P, which is rounded to e4m3, and O, to
// bf16. False when there is no memory for one row of S, or the quantised inputs.
bool baseline_forward(const struct attn_problem *p, const struct inputs *in,
                      float *O,    // [B, H, Nq, d]
                      float *LSE); // [B, H, Nq]

// The gradients of L = sum(dO * O), in double precision, P made anew row by row:
//
//   dV = P^T dO             dP = dO V^T       dS = P * (dP - rowsum(P * dP))
//   dQ = scale dS K         dK = scale dS^T Q
//
// A key/value head collects from all the query heads that read it. A query that sees no key adds
// nothing, and its dQ is exactly 0. False when there is no memory for two rows of S.
bool oracle_backward(const struct attn_problem *p, const struct inputs *in,
                     double *dQ,      // [B, H, Nq, d]
                     double *dK,      // [B, Hkv, Nk, d]
                     double *dV,      // [B, Hkv, Nk, d]
                     double *max_dP); // largest |dP| of the visible pairs, one number

// The same as a plain kernel does it, from what a forward left: P = exp(S - LSE), and
// D = rowsum(dO * O), the same number as rowsum(P * dP). S, P, dP and D are fp32, and so are the
// sums; P and dS are rounded to p->dtype where they enter a product, and the results at the end.
void baseline_backward(const struct attn_problem *p, const struct inputs *in,
                       const float *O,   // [B, H, Nq, d], in p->dtype
                       const float *LSE, // [B, H, Nq]
                       float *dQ,        // [B, H, Nq, d]
                       float *dK,        // [B, Hkv, Nk, d]
                       float *dV);       // [B, Hkv, Nk, d]

// Both, and what the bar needs besides.
struct reference {
    double *O, *LSE;
    float *base_O, *base_LSE;
    double max_logit, max_v;
    double base_error_O, base_error_LSE; // largest |baseline - oracle|
    double base_rmse_O, base_rmse_LSE;   // root mean square of it
    double base_row_O;                   // the same of the worst row of O
    // From here on NULL and 0 until reference_add_backward.
    double *dQ, *dK, *dV;
    double rms_q, rms_k, max_q, max_k, max_dO, max_dP; // rms: root mean square of the elements
    double long_dO, long_v;                            // length of the longest row
    // Of two runs of the baseline: from base_O and base_LSE, and from O and LSE rounded.
    double base_error_dQ, base_error_dK, base_error_dV;
};

// On the machine's fp64 kernels where the C oracle would take minutes and the machine has them.
// False, with one line in `why`, when there is no memory or fp32 overflows on these inputs.
bool reference_make(const struct attn_problem *p, const struct inputs *in, struct reference *out,
                    char *why, size_t why_size);

// Adds the gradients to what reference_make made of the same inputs, which need their dO. False as
// above; the forward part then stays as it is.
bool reference_add_backward(const struct attn_problem *p, const struct inputs *in,
                            struct reference *r, char *why, size_t why_size);
void reference_free(struct reference *r);

#ifdef __cplusplus
}
#endif
#endif

// check.c - compares a kernel's output with the oracle's, element by element.
//
// The bar is relative to what a plain kernel of the same data type loses on the same inputs, so it
// needs no table of tolerances. NaN makes every comparison false; each one below is written so that
// false means failure.
#include "check.h"
#include "dtype.h"

#include <math.h>

// What fp32 arithmetic itself may cost: a logit is known to 2^-24 of its size, and an error in it
// shows in LSE as it is, and in O times V.
static double fp32_slack(const struct reference *r) { return 2 * (1 + r->max_logit) * 0x1p-24; }

static void compare(struct check *c, uint64_t index, double got, double want, double tolerance) {
    double error = got == want ? 0 : fabs(got - want); // -infinity may equal -infinity
    double of_bar = error == 0 ? 0 : error / tolerance;
    if (!(error <= tolerance)) c->bad++;
    if (error > c->error || isnan(error)) c->error = error; // once NaN, nothing is larger
    bool worse = of_bar > c->of_bar || (isnan(of_bar) && !isnan(c->of_bar));
    if (!worse && index > 0) return;
    c->of_bar = of_bar;
    c->worst = index;
    c->got = got;
    c->want = want;
}

// `fixed`, which is the same for the whole tensor, plus two units in the last place.
static struct check compare_all(const char *tensor, enum attn_dtype dtype, const float *got,
                                const double *want, uint64_t n, double fixed) {
    struct check c = {.tensor = tensor};
    for (uint64_t i = 0; i < n; i++) {
        // Most elements are right, and less remarkable than the worst so far even by the fixed part
        // of the tolerance: that saves computing the rest of it. (NaN is not less than anything.)
        double error = fabs(got[i] - want[i]);
        if (i > 0 && error <= c.error && error <= fixed * fmin(c.of_bar, 1)) continue;
        compare(&c, i, got[i], want[i], fixed + 2 * dtype_ulp(dtype, want[i]));
    }
    c.ok = c.bad == 0;
    return c;
}

// Of a tensor in the kernel's data type: only fp32 is so fine that the arithmetic shows.
static double slack(const struct attn_problem *p, const struct reference *r, double factor) {
    return p->dtype == ATTN_FP32 ? fp32_slack(r) * factor : 0;
}

struct check check_O(const struct attn_problem *p, const struct reference *r, const float *O) {
    double fixed = 2 * r->base_error_O + slack(p, r, r->max_v);
    return compare_all("O", p->dtype, O, r->O, attn_q_elements(p), fixed);
}

struct check check_LSE(const struct attn_problem *p, const struct reference *r, const float *LSE) {
    double fixed = 2 * r->base_error_LSE + fp32_slack(r);
    return compare_all("LSE", ATTN_FP32, LSE, r->LSE, attn_rows(p), fixed);
}

// In a row where one weight is 1, dP = dO . V is equal to D = dO . O. But they are sums of d
// products, each in an order of its own, so that fp32 leaves a rest of their difference, whatever
// the type of the tensors. (The baseline, with one order for both, leaves none.)
static double rest_of_difference(const struct reference *r) {
    return 2 * 0x1p-24 * r->long_dO * r->long_v;
}

// The weights that a key collects on average, which may add up; but at least one.
static double weights_of_a_key(const struct attn_problem *p) {
    double weights = (double)(p->heads / p->kv_heads) * p->seqlen_q / p->seqlen_k;
    return weights > 1 ? weights : 1;
}

// An error of a logit changes P by its share, so dS = P * (dP - D) too, and with it dS K and dS^T
// Q. A sum of many such errors, of either sign, goes by the rms of K and of Q, not by their
// largest.
struct check check_dQ(const struct attn_problem *p, const struct reference *r, const float *dQ) {
    double fixed = 3 * r->base_error_dQ + slack(p, r, p->scale * r->rms_k * r->max_dP) +
                   p->scale * r->max_k * rest_of_difference(r);
    return compare_all("dQ", p->dtype, dQ, r->dQ, attn_q_elements(p), fixed);
}

struct check check_dK(const struct attn_problem *p, const struct reference *r, const float *dK) {
    double fixed = 3 * r->base_error_dK + slack(p, r, p->scale * r->rms_q * r->max_dP) +
                   p->scale * r->max_q * rest_of_difference(r) * sqrt(weights_of_a_key(p));
    return compare_all("dK", p->dtype, dK, r->dK, attn_kv_elements(p), fixed);
}

struct check check_dV(const struct attn_problem *p, const struct reference *r, const float *dV) {
    double fixed = 3 * r->base_error_dV + slack(p, r, r->max_dO);
    return compare_all("dV", p->dtype, dV, r->dV, attn_kv_elements(p), fixed);
}

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

struct check check_O(const struct attn_problem *p, const struct reference *r, const float *O) {
    struct check c = {.tensor = "O"};
    double fixed = 2 * r->base_error_O;
    if (p->dtype == ATTN_FP32) fixed += fp32_slack(r) * r->max_v;
    for (uint64_t i = 0; i < attn_q_elements(p); i++) {
        compare(&c, i, O[i], r->O[i], fixed + 2 * dtype_ulp(p->dtype, r->O[i]));
    }
    c.ok = c.bad == 0;
    return c;
}

struct check check_LSE(const struct attn_problem *p, const struct reference *r, const float *LSE) {
    struct check c = {.tensor = "LSE"};
    double fixed = 2 * r->base_error_LSE + fp32_slack(r);
    for (uint64_t i = 0; i < attn_rows(p); i++) {
        compare(&c, i, LSE[i], r->LSE[i], fixed + 2 * dtype_ulp(ATTN_FP32, r->LSE[i]));
    }
    c.ok = c.bad == 0;
    return c;
}

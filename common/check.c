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

static double square(double x) { return x * x; }

// -infinity may equal -infinity.
static double difference(double got, double want) { return got == want ? 0 : got - want; }

static void compare(struct check *c, uint64_t index, double got, double want, double tolerance) {
    double error = fabs(difference(got, want));
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
    double squares = 0;
    for (uint64_t i = 0; i < n; i++) {
        squares += square(difference(got[i], want[i]));
        // Most elements are right, and less remarkable than the worst so far even by the fixed part
        // of the tolerance: that saves computing the rest of it. (NaN is not less than anything.)
        double error = fabs(got[i] - want[i]);
        if (i > 0 && error <= c.error && error <= fixed * fmin(c.of_bar, 1)) continue;
        compare(&c, i, got[i], want[i], fixed + 2 * dtype_ulp(dtype, want[i]));
    }
    c.ok = c.bad == 0;
    c.rmse = sqrt(squares / (double)n);
    return c;
}

// ---- FP8: root mean squares ---------------------------------------------------------------------

// What the two limits of check.h consist of, besides the baseline's errors.
struct limits {
    const float *base;          // the baseline's output
    double base_rmse, base_row; // its RMSE, and its worst row's
    double factor;              // that base_rmse may be exceeded by
    double units;               // in the last place of `dtype`, for each element
    double fixed;               // for each element
    double of_sums;             // of all elements, and four times this of a row
    enum attn_dtype dtype;
};

static double allowed(const struct limits *l, double want) {
    return l->fixed + l->units * dtype_ulp(l->dtype, want);
}

// Takes in one row: d elements from `first` on. Adds up squares of errors and of what is allowed.
static void compare_row(struct check *c, const struct limits *l, const float *got,
                        const double *want, uint64_t first, int d, double sums[2]) {
    double errors = 0, of_base = 0, tolerances = 0;
    uint64_t worst = first;
    for (uint64_t i = first; i < first + d; i++) {
        double error = fabs(difference(got[i], want[i]));
        errors += square(error);
        of_base += square(difference(l->base[i], want[i]));
        tolerances += square(allowed(l, want[i]));
        if (error > fabs(difference(got[worst], want[worst])) || isnan(error)) worst = i;
        if (error > c->error || isnan(error)) c->error = error;
    }
    sums[0] += errors, sums[1] += tolerances;
    double row = sqrt(errors / d);
    double limit =
        2 * sqrt(of_base / d) + 0.5 * l->base_row + 4 * l->of_sums + sqrt(tolerances / d);
    double of_bar = row == 0 ? 0 : row / limit;
    if (!(row <= limit)) c->bad++;
    bool worse = of_bar > c->of_bar || (isnan(of_bar) && !isnan(c->of_bar));
    if (!worse && first > 0) return;
    c->of_bar = of_bar;
    c->worst = worst;
    c->got = got[worst];
    c->want = want[worst];
}

static struct check compare_rmse(const char *tensor, const struct limits *l, const float *got,
                                 const double *want, uint64_t rows, int d) {
    struct check c = {.tensor = tensor, .base_rmse = l->base_rmse};
    double sums[2] = {0}, n = (double)rows * d; // of squares: errors, tolerances
    for (uint64_t row = 0; row < rows; row++) compare_row(&c, l, got, want, row * d, d, sums);
    c.rmse = sqrt(sums[0] / n);
    double limit = l->factor * l->base_rmse + l->of_sums + sqrt(sums[1] / n);
    c.ok = c.bad == 0 && c.rmse <= limit;
    if (c.rmse > c.of_bar * limit) c.of_bar = c.rmse / limit;
    return c;
}

static struct check check_fp8_O(const struct attn_problem *p, const struct reference *r,
                                const float *O) {
    struct limits l = {.base = r->base_O,
                       .base_rmse = r->base_rmse_O,
                       .factor = 1.25 + 2 / sqrt((double)attn_q_elements(p)),
                       .base_row = r->base_row_O,
                       .units = 0.5,
                       .dtype = p->dtype};
    return compare_rmse("O", &l, O, r->O, attn_rows(p), p->head_dim);
}

static struct check check_fp8_LSE(const struct attn_problem *p, const struct reference *r,
                                  const float *LSE) {
    struct limits l = {.base = r->base_LSE,
                       .base_rmse = r->base_rmse_LSE,
                       .factor = 1.25,
                       .base_row = r->base_error_LSE,
                       .units = 2,
                       .fixed = fp32_slack(r),
                       .of_sums = (1 + r->max_logit) * 0x1p-10,
                       .dtype = ATTN_FP32};
    return compare_rmse("LSE", &l, LSE, r->LSE, attn_rows(p), 1);
}

// ---- O and LSE ----------------------------------------------------------------------------------

// Of a tensor in the kernel's data type: only fp32 is so fine that the arithmetic shows.
static double slack(const struct attn_problem *p, const struct reference *r, double factor) {
    return p->dtype == ATTN_FP32 ? fp32_slack(r) * factor : 0;
}

struct check check_O(const struct attn_problem *p, const struct reference *r, const float *O) {
    if (p->dtype == ATTN_FP8) return check_fp8_O(p, r, O);
    double fixed = 2 * r->base_error_O + slack(p, r, r->max_v);
    return compare_all("O", p->dtype, O, r->O, attn_q_elements(p), fixed);
}

struct check check_LSE(const struct attn_problem *p, const struct reference *r, const float *LSE) {
    if (p->dtype == ATTN_FP8) return check_fp8_LSE(p, r, LSE);
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

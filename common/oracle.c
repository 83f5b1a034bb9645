// oracle.c - attention as it is defined, in double precision, and as a plain kernel computes it.
//
// Both work on one row of S at a time and never hold the N x N matrix: an array or two of Nk
// numbers are all they need. They are meant to be read beside the formulas in attn.h, and to be
// fast enough for the tests; at large sizes reference_make asks the machine for help.
#include "oracle.h"
#include "dtype.h"
#include "fp8.h"
#include "machine.h"
#include "refuse.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// The rows of one query head, and the key/value head that it reads.
struct head {
    const float *Q, *dO; // [Nq, d]; dO is NULL when no backward is asked for
    const float *K, *V;  // [Nk, d]
    uint64_t first_row;  // of the head, among the B * H * Nq rows of Q, O and LSE
    uint64_t first_key;  // among the B * Hkv * Nk rows of K and V
};

static struct head head_at(const struct attn_problem *p, const struct inputs *in, uint64_t bh) {
    uint64_t b = bh / p->heads, h = bh % p->heads, group = p->heads / p->kv_heads;
    uint64_t first_key = (b * p->kv_heads + h / group) * p->seqlen_k;
    uint64_t first_row = bh * p->seqlen_q, q = first_row * p->head_dim;
    uint64_t kv = first_key * p->head_dim;
    return (struct head){in->Q + q, in->dO ? in->dO + q : NULL, in->K + kv, in->V + kv, first_row,
                         first_key};
}

// ---- double precision --------------------------------------------------------------------------

// Eight partial sums, because d is a multiple of 8 and a single one would make each addition wait
// for the one before.
static double dot(const float *a, const float *b, int d) {
    double sum[8] = {0};
    for (int t = 0; t < d; t += 8) {
        for (int u = 0; u < 8; u++) sum[u] += (double)a[t + u] * b[t + u];
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + (sum[4] + sum[5] + sum[6] + sum[7]);
}

static void add(double *restrict sum, double factor, const float *restrict x, int d) {
    for (int t = 0; t < d; t++) sum[t] += factor * x[t];
}

// Query i of a head: S, then exp(S - max), then P, each in place of the one before.
static void oracle_P(const struct attn_problem *p, const struct head *head, int i, double *P,
                     double *LSE, double *max_logit) {
    int d = p->head_dim, keys = attn_visible_keys(p, i);
    double max = -INFINITY, sum = 0;
    for (int j = 0; j < keys; j++) {
        P[j] = p->scale * dot(head->Q + (uint64_t)i * d, head->K + (uint64_t)j * d, d);
        if (P[j] > max) max = P[j];
        if (fabs(P[j]) > *max_logit) *max_logit = fabs(P[j]);
    }
    for (int j = 0; j < keys; j++) sum += P[j] = exp(P[j] - max);
    for (int j = 0; j < keys; j++) P[j] /= sum;
    *LSE = keys > 0 ? max + log(sum) : -INFINITY;
}

bool oracle_forward(const struct attn_problem *p, const struct inputs *in, double *O, double *LSE,
                    double *max_logit) {
    int d = p->head_dim;
    double *P = malloc(p->seqlen_k * sizeof *P);
    if (!P) return false;
    *max_logit = 0;
    for (uint64_t bh = 0; bh < (uint64_t)p->batch * p->heads; bh++) {
        struct head head = head_at(p, in, bh);
        for (int i = 0; i < p->seqlen_q; i++) {
            uint64_t at = head.first_row + i;
            oracle_P(p, &head, i, P, LSE + at, max_logit);
            for (int t = 0; t < d; t++) O[at * d + t] = 0;
            for (int j = 0; j < attn_visible_keys(p, i); j++) {
                add(O + at * d, P[j], head.V + (uint64_t)j * d, d);
            }
        }
    }
    free(P);
    return true;
}

// Query i of a head: its row of dQ, and its share of dK and dV.
static void oracle_backward_row(const struct attn_problem *p, const struct head *head, int i,
                                double *P, double *dP,  // [Nk]
                                double *dQ,             // [d]
                                double *dK, double *dV, // [Nk, d] of the head
                                double *max_dP) {
    int d = p->head_dim, keys = attn_visible_keys(p, i);
    const float *q = head->Q + (uint64_t)i * d, *dO = head->dO + (uint64_t)i * d;
    double LSE, max_logit = 0, D = 0; // D = rowsum(P * dP)
    oracle_P(p, head, i, P, &LSE, &max_logit);
    for (int j = 0; j < keys; j++) {
        dP[j] = dot(dO, head->V + (uint64_t)j * d, d);
        D += P[j] * dP[j];
        if (fabs(dP[j]) > *max_dP) *max_dP = fabs(dP[j]);
    }
    for (int j = 0; j < keys; j++) {
        uint64_t key = (uint64_t)j * d;
        double dS = P[j] * (dP[j] - D);
        add(dV + key, P[j], dO, d);
        add(dQ, p->scale * dS, head->K + key, d);
        add(dK + key, p->scale * dS, q, d);
    }
}

bool oracle_backward(const struct attn_problem *p, const struct inputs *in, double *dQ, double *dK,
                     double *dV, double *max_dP) {
    double *P = malloc(2 * (size_t)p->seqlen_k * sizeof *P); // and dP
    if (!P) return false;
    *max_dP = 0;
    memset(dQ, 0, attn_q_elements(p) * sizeof *dQ);
    memset(dK, 0, attn_kv_elements(p) * sizeof *dK);
    memset(dV, 0, attn_kv_elements(p) * sizeof *dV);
    for (uint64_t bh = 0; bh < (uint64_t)p->batch * p->heads; bh++) {
        struct head head = head_at(p, in, bh);
        uint64_t kv = head.first_key * p->head_dim;
        for (int i = 0; i < p->seqlen_q; i++) {
            uint64_t row = (head.first_row + i) * p->head_dim;
            oracle_backward_row(p, &head, i, P, P + p->seqlen_k, dQ + row, dK + kv, dV + kv,
                                max_dP);
        }
    }
    free(P);
    return true;
}

// ---- the kernel's data type --------------------------------------------------------------------

static float dot_fp32(const float *a, const float *b, int d) {
    float sum = 0;
    for (int t = 0; t < d; t++) sum += a[t] * b[t];
    return sum;
}

static void add_fp32(float *restrict sum, float factor, const float *restrict x, int d) {
    for (int t = 0; t < d; t++) sum[t] += factor * x[t];
}

// S stays in fp32 in `row`; P = exp(S - max) / sum is rounded to the data type before it meets V.
static void baseline_row(const struct attn_problem *p, const struct head *head, int i, float *row,
                         float *O, float *LSE) {
    int d = p->head_dim, keys = attn_visible_keys(p, i);
    float max = -INFINITY, sum = 0;
    for (int j = 0; j < keys; j++) {
        row[j] = p->scale * dot_fp32(head->Q + (uint64_t)i * d, head->K + (uint64_t)j * d, d);
        if (row[j] > max) max = row[j];
    }
    for (int j = 0; j < keys; j++) sum += row[j] = expf(row[j] - max);
    for (int t = 0; t < d; t++) O[t] = 0;
    for (int j = 0; j < keys; j++) {
        add_fp32(O, dtype_round(p->dtype, row[j] / sum), head->V + (uint64_t)j * d, d);
    }
    for (int t = 0; t < d; t++) O[t] = dtype_round(p->dtype, O[t]);
    *LSE = keys > 0 ? max + logf(sum) : -INFINITY;
}

// FP8, from inputs that are quantised already: only P is rounded besides, and O at the end.
static void fp8_baseline_row(const struct attn_problem *p, const struct head *head, int i,
                             double *row, float *O, float *LSE) {
    int d = p->head_dim, keys = attn_visible_keys(p, i);
    double max = -INFINITY, l = 0, sum[256] = {0}; // [d]
    for (int j = 0; j < keys; j++) {
        row[j] = p->scale * dot(head->Q + (uint64_t)i * d, head->K + (uint64_t)j * d, d);
        if (row[j] > max) max = row[j];
    }
    for (int j = 0; j < keys; j++) {
        double weight = exp(row[j] - max), P = ldexp(weight, FP8_P_OFFSET);
        l += weight;
        add(sum, e4m3_to_float(e4m3_from_float((float)P)), head->V + (uint64_t)j * d, d);
    }
    for (int t = 0; t < d; t++)
        O[t] = keys > 0 ? dtype_round(p->dtype, (float)ldexp(sum[t] / l, -FP8_P_OFFSET)) : 0;
    *LSE = keys > 0 ? (float)(max + log(l)) : -INFINITY;
}

static void baseline_head(const struct attn_problem *p, const struct head *head, void *row,
                          float *O, float *LSE) {
    for (int i = 0; i < p->seqlen_q; i++) {
        uint64_t at = head->first_row + i;
        if (p->dtype == ATTN_FP8)
            fp8_baseline_row(p, head, i, row, O + at * p->head_dim, LSE + at);
        else
            baseline_row(p, head, i, row, O + at * p->head_dim, LSE + at);
    }
}

bool baseline_forward(const struct attn_problem *p, const struct inputs *in, float *O, float *LSE) {
    struct inputs quantised = {0};
    bool fp8 = p->dtype == ATTN_FP8;
    void *row = malloc(p->seqlen_k * sizeof(double));
    bool ok = row && (!fp8 || fp8_quantise_inputs(p, in, &quantised));
    for (uint64_t bh = 0; ok && bh < (uint64_t)p->batch * p->heads; bh++) {
        struct head head = head_at(p, fp8 ? &quantised : in, bh);
        baseline_head(p, &head, row, O, LSE);
    }
    free(row);
    inputs_free(&quantised);
    return ok;
}

// Query i of a head. P and dS keep their fp32 digits until they enter a product; scale comes last.
static void baseline_backward_row(const struct attn_problem *p, const struct head *head, int i,
                                  const float *O, float LSE, // [d], one number
                                  float *dQ,                 // [d]
                                  float *dK, float *dV) {    // [Nk, d] of the head
    int d = p->head_dim;
    const float *q = head->Q + (uint64_t)i * d, *dO = head->dO + (uint64_t)i * d;
    float D = dot_fp32(dO, O, d);
    for (int j = 0; j < attn_visible_keys(p, i); j++) {
        uint64_t key = (uint64_t)j * d;
        float P = expf(p->scale * dot_fp32(q, head->K + key, d) - LSE);
        float dP = dot_fp32(dO, head->V + key, d);
        float dS = dtype_round(p->dtype, P * (dP - D));
        add_fp32(dV + key, dtype_round(p->dtype, P), dO, d);
        add_fp32(dQ, dS, head->K + key, d);
        add_fp32(dK + key, dS, q, d);
    }
}

// A sum is finished: times factor, and rounded.
static void finish(const struct attn_problem *p, float *x, uint64_t n, float factor) {
    for (uint64_t i = 0; i < n; i++) x[i] = dtype_round(p->dtype, factor * x[i]);
}

void baseline_backward(const struct attn_problem *p, const struct inputs *in, const float *O,
                       const float *LSE, float *dQ, float *dK, float *dV) {
    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p), d = p->head_dim;
    memset(dQ, 0, q * sizeof *dQ);
    memset(dK, 0, kv * sizeof *dK);
    memset(dV, 0, kv * sizeof *dV);
    for (uint64_t bh = 0; bh < (uint64_t)p->batch * p->heads; bh++) {
        struct head head = head_at(p, in, bh);
        float *head_dK = dK + head.first_key * d, *head_dV = dV + head.first_key * d;
        for (int i = 0; i < p->seqlen_q; i++) {
            uint64_t at = head.first_row + i;
            baseline_backward_row(p, &head, i, O + at * d, LSE[at], dQ + at * d, head_dK, head_dV);
        }
    }
    finish(p, dQ, q, p->scale);
    finish(p, dK, kv, p->scale);
    finish(p, dV, kv, 1);
}

// ---- both --------------------------------------------------------------------------------------

// As multiples of Q K^T: what the oracle and its baseline take, in a backward the baseline twice.
enum { FORWARD_WORK = 4, BACKWARD_WORK = 15 };

// From here on the C code, on one core, takes more than a few seconds.
static bool is_large(const struct attn_problem *p, int work) {
    double products = (double)attn_q_elements(p) * p->seqlen_k; // in Q K^T, the mask not counted
    return products * work > 0x1p33;
}

// On the machine. It quantises nothing, so for FP8 the baseline takes a second run.
static bool machine_forward_both(const struct attn_problem *p, const struct inputs *in,
                                 struct reference *r) {
    if (!machine_oracle_forward(p, in->Q, in->K, in->V, r->O, r->LSE, r->base_O, r->base_LSE,
                                &r->max_logit))
        return false;
    if (p->dtype != ATTN_FP8) return true;
    struct inputs q = {0};
    double *O = malloc(attn_q_elements(p) * sizeof *O), *LSE = malloc(attn_rows(p) * sizeof *LSE);
    double max_logit;
    bool ok = O && LSE && fp8_quantise_inputs(p, in, &q) &&
              machine_oracle_forward(p, q.Q, q.K, q.V, O, LSE, r->base_O, r->base_LSE, &max_logit);
    free(O);
    free(LSE);
    inputs_free(&q);
    return ok;
}

static bool forward_both(const struct attn_problem *p, const struct inputs *in,
                         struct reference *r) {
    if (is_large(p, FORWARD_WORK) && machine_forward_both(p, in, r)) return true;
    return oracle_forward(p, in, r->O, r->LSE, &r->max_logit) &&
           baseline_forward(p, in, r->base_O, r->base_LSE);
}

// The largest |a - b|; NaN if there is one. Equal infinities do not differ.
static double largest_difference(const float *a, const double *b, uint64_t n) {
    double largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        double difference = a[i] == b[i] ? 0 : fabs(a[i] - b[i]);
        if (difference > largest || isnan(difference)) largest = difference;
    }
    return largest;
}

// Root mean square of a - b; NaN if there is one. Equal infinities do not differ.
static double rms_difference(const float *a, const double *b, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        double difference = a[i] == b[i] ? 0 : a[i] - b[i];
        sum += difference * difference;
    }
    return sqrt(sum / (double)n);
}

static double worst_row(const float *a, const double *b, uint64_t rows, int d) {
    double worst = 0;
    for (uint64_t row = 0; row < rows; row++)
        worst = fmax(worst, rms_difference(a + row * d, b + row * d, d));
    return worst;
}

static double largest_magnitude(const float *x, uint64_t n) {
    double largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (fabs(x[i]) > largest) largest = fabs(x[i]);
    }
    return largest;
}

static double root_mean_square(const float *x, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sqrt(sum / (double)n);
}

// The Euclidean length of the longest row of d elements.
static double longest_row(const float *x, uint64_t n, int d) {
    double longest = 0;
    for (uint64_t first = 0; first < n; first += d) {
        double square = 0;
        for (int c = 0; c < d; c++) square += (double)x[first + c] * x[first + c];
        if (square > longest) longest = square;
    }
    return sqrt(longest);
}

bool reference_make(const struct attn_problem *p, const struct inputs *in, struct reference *out,
                    char *why, size_t why_size) {
    uint64_t elements = attn_q_elements(p), rows = attn_rows(p);
    *out = (struct reference){
        .O = malloc(elements * sizeof *out->O),
        .LSE = malloc(rows * sizeof *out->LSE),
        .base_O = malloc(elements * sizeof *out->base_O),
        .base_LSE = malloc(rows * sizeof *out->base_LSE),
    };
    if (!out->O || !out->LSE || !out->base_O || !out->base_LSE || !forward_both(p, in, out)) {
        reference_free(out);
        return refuse_memory(
            why, why_size,
            "no memory for a reference of %.3g GB; make --batch, --heads or --seqlen smaller",
            12e-9 * (double)(elements + rows));
    }
    out->max_v = largest_magnitude(in->V, attn_kv_elements(p));
    out->base_error_O = largest_difference(out->base_O, out->O, elements);
    out->base_error_LSE = largest_difference(out->base_LSE, out->LSE, rows);
    out->base_rmse_O = rms_difference(out->base_O, out->O, elements);
    out->base_rmse_LSE = rms_difference(out->base_LSE, out->LSE, rows);
    out->base_row_O = worst_row(out->base_O, out->O, rows, p->head_dim);
    // A bar that is infinitely wide would let everything pass. And from step05 on kernels take
    // powers of two, of logits times log2(e).
    bool overflows = out->max_logit * M_LOG2E > FLT_MAX;
    if (isfinite(out->base_error_O) && isfinite(out->base_error_LSE) && !overflows) return true;
    double max_logit = out->max_logit;
    reference_free(out);
    return refuse(why, why_size,
                  "attention overflows fp32 on these inputs (logits to %.3g): "
                  "choose a smaller scale or smaller inputs",
                  max_logit);
}

// ---- the gradients of both ---------------------------------------------------------------------

// A baseline's run, and from what it started.
struct baseline {
    const float *O, *LSE;
    float *dQ, *dK, *dV;
};

static bool oracle_gradients(const struct attn_problem *p, const struct inputs *in,
                             struct reference *r) {
    if (is_large(p, BACKWARD_WORK) &&
        machine_oracle_backward(p, in, r->O, r->LSE, r->dQ, r->dK, r->dV, &r->max_dP)) {
        return true;
    }
    return oracle_backward(p, in, r->dQ, r->dK, r->dV, &r->max_dP);
}

static void raise_to(double *largest, double x) {
    if (!(x <= *largest)) *largest = x;
}

// Runs the baseline and keeps its errors where they are the largest so far. False: not finite.
static bool baseline_gradients(const struct attn_problem *p, const struct inputs *in,
                               const struct baseline *b, struct reference *r) {
    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p);
    if (!is_large(p, BACKWARD_WORK) ||
        !machine_baseline_backward(p, in, b->O, b->LSE, b->dQ, b->dK, b->dV)) {
        baseline_backward(p, in, b->O, b->LSE, b->dQ, b->dK, b->dV);
    }
    raise_to(&r->base_error_dQ, largest_difference(b->dQ, r->dQ, q));
    raise_to(&r->base_error_dK, largest_difference(b->dK, r->dK, kv));
    raise_to(&r->base_error_dV, largest_difference(b->dV, r->dV, kv));
    return isfinite(r->base_error_dQ) && isfinite(r->base_error_dK) && isfinite(r->base_error_dV);
}

static uint64_t scratch_elements(const struct attn_problem *p) {
    return 2 * attn_q_elements(p) + 2 * attn_kv_elements(p) + attn_rows(p);
}

// A backward that starts from its own forward's O and LSE meets the errors of S a second time, and
// in part they cancel; one that is given the right O and LSE meets them in full. Both are correct,
// and over a few rows the one does not tell how far the other gets. So the baseline runs both ways.
static bool both_baselines(const struct attn_problem *p, const struct inputs *in, float *scratch,
                           struct reference *r) {
    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p);
    struct baseline b = {r->base_O, r->base_LSE, scratch, scratch + q, scratch + q + kv};
    float *O = b.dV + kv, *LSE = O + q;
    if (!baseline_gradients(p, in, &b, r)) return false;
    for (uint64_t i = 0; i < q; i++) O[i] = dtype_round(p->dtype, (float)r->O[i]);
    for (uint64_t i = 0; i < attn_rows(p); i++) LSE[i] = (float)r->LSE[i];
    b.O = O, b.LSE = LSE;
    return baseline_gradients(p, in, &b, r);
}

static void free_gradients(struct reference *r) {
    free(r->dQ);
    free(r->dK);
    free(r->dV);
    r->dQ = r->dK = r->dV = NULL;
}

bool reference_add_backward(const struct attn_problem *p, const struct inputs *in,
                            struct reference *r, char *why, size_t why_size) {
    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p);
    r->dQ = malloc(q * sizeof *r->dQ);
    r->dK = malloc(kv * sizeof *r->dK);
    r->dV = malloc(kv * sizeof *r->dV);
    r->rms_q = root_mean_square(in->Q, q);
    r->rms_k = root_mean_square(in->K, kv);
    r->max_q = largest_magnitude(in->Q, q);
    r->max_k = largest_magnitude(in->K, kv);
    r->max_dO = largest_magnitude(in->dO, q);
    r->long_dO = longest_row(in->dO, q, p->head_dim);
    r->long_v = longest_row(in->V, kv, p->head_dim);
    float *scratch = malloc(scratch_elements(p) * sizeof *scratch);
    bool memory = r->dQ && r->dK && r->dV && scratch && oracle_gradients(p, in, r);
    bool ok = memory && both_baselines(p, in, scratch, r);
    free(scratch);
    if (ok) return true;
    free_gradients(r);
    if (!memory) {
        return refuse_memory(why, why_size,
                             "no memory for reference gradients of %.3g GB; make --batch, --heads "
                             "or --seqlen smaller",
                             8e-9 * (double)(q + 2 * kv) + 4e-9 * (double)scratch_elements(p));
    }
    return refuse(why, why_size,
                  "the naive backward overflows %s on these inputs (dO to %.3g, V to %.3g): choose "
                  "smaller ones",
                  attn_dtype_name(p->dtype), r->max_dO, r->max_v);
}

void reference_free(struct reference *r) {
    free_gradients(r);
    free(r->O);
    free(r->LSE);
    free(r->base_O);
    free(r->base_LSE);
    *r = (struct reference){0};
}

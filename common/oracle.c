// oracle.c - attention as it is defined, in double precision, and as a plain kernel computes it.
//
// Both work on one row of S at a time and never hold the N x N matrix: an array of Nk numbers is
// all they need. They are meant to be read beside the formulas in attn.h, and to be fast enough for
// the tests; at large sizes reference_make asks the machine for help.
#include "oracle.h"
#include "dtype.h"
#include "machine.h"
#include "refuse.h"

#include <math.h>
#include <stdlib.h>

// The rows of one query head, and the key/value head that it reads.
struct head {
    const float *Q;     // [Nq, d]
    const float *K, *V; // [Nk, d]
    uint64_t first_row; // of the head, among the B * H * Nq rows of O and LSE
};

static struct head head_at(const struct attn_problem *p, const struct inputs *in, uint64_t bh) {
    uint64_t b = bh / p->heads, h = bh % p->heads, group = p->heads / p->kv_heads;
    uint64_t first_key = (b * p->kv_heads + h / group) * p->seqlen_k;
    uint64_t first_row = bh * p->seqlen_q;
    return (struct head){in->Q + first_row * p->head_dim, in->K + first_key * p->head_dim,
                         in->V + first_key * p->head_dim, first_row};
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

// Query i of a head: S in `row`, then exp(S - max) in its place, then O and LSE.
static void oracle_row(const struct attn_problem *p, const struct head *head, int i, double *row,
                       double *O, double *LSE, double *max_logit) {
    int d = p->head_dim, keys = attn_visible_keys(p, i);
    double max = -INFINITY, sum = 0;
    for (int j = 0; j < keys; j++) {
        row[j] = p->scale * dot(head->Q + (uint64_t)i * d, head->K + (uint64_t)j * d, d);
        if (row[j] > max) max = row[j];
        if (fabs(row[j]) > *max_logit) *max_logit = fabs(row[j]);
    }
    for (int t = 0; t < d; t++) O[t] = 0;
    for (int j = 0; j < keys; j++) {
        const float *v = head->V + (uint64_t)j * d;
        double weight = exp(row[j] - max);
        sum += weight;
        for (int t = 0; t < d; t++) O[t] += weight * v[t];
    }
    for (int t = 0; t < d && keys > 0; t++) O[t] /= sum;
    *LSE = keys > 0 ? max + log(sum) : -INFINITY;
}

bool oracle_forward(const struct attn_problem *p, const struct inputs *in, double *O, double *LSE,
                    double *max_logit) {
    double *row = malloc(p->seqlen_k * sizeof *row);
    if (!row) return false;
    *max_logit = 0;
    for (uint64_t bh = 0; bh < (uint64_t)p->batch * p->heads; bh++) {
        struct head head = head_at(p, in, bh);
        for (int i = 0; i < p->seqlen_q; i++) {
            uint64_t at = head.first_row + i;
            oracle_row(p, &head, i, row, O + at * p->head_dim, LSE + at, max_logit);
        }
    }
    free(row);
    return true;
}

// ---- the kernel's data type --------------------------------------------------------------------

static float dot_fp32(const float *a, const float *b, int d) {
    float sum = 0;
    for (int t = 0; t < d; t++) sum += a[t] * b[t];
    return sum;
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
        const float *v = head->V + (uint64_t)j * d;
        float weight = dtype_round(p->dtype, row[j] / sum);
        for (int t = 0; t < d; t++) O[t] += weight * v[t];
    }
    for (int t = 0; t < d; t++) O[t] = dtype_round(p->dtype, O[t]);
    *LSE = keys > 0 ? max + logf(sum) : -INFINITY;
}

bool baseline_forward(const struct attn_problem *p, const struct inputs *in, float *O, float *LSE) {
    float *row = malloc(p->seqlen_k * sizeof *row);
    if (!row) return false;
    for (uint64_t bh = 0; bh < (uint64_t)p->batch * p->heads; bh++) {
        struct head head = head_at(p, in, bh);
        for (int i = 0; i < p->seqlen_q; i++) {
            uint64_t at = head.first_row + i;
            baseline_row(p, &head, i, row, O + at * p->head_dim, LSE + at);
        }
    }
    free(row);
    return true;
}

// ---- both --------------------------------------------------------------------------------------

// From here on the C code, on one core, takes more than a few seconds.
static const double large_problem = 0x1p31; // multiplications in Q K^T, the mask not counted

static bool forward_both(const struct attn_problem *p, const struct inputs *in,
                         struct reference *r) {
    double products = (double)attn_q_elements(p) * p->seqlen_k;
    if (products > large_problem && machine_oracle_forward(p, in->Q, in->K, in->V, r->O, r->LSE,
                                                           r->base_O, r->base_LSE, &r->max_logit)) {
        return true;
    }
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

static double largest_magnitude(const float *x, uint64_t n) {
    double largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (fabs(x[i]) > largest) largest = fabs(x[i]);
    }
    return largest;
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
        return refuse_memory(why, why_size,
                      "no memory for a reference of %.3g GB: make batch, heads or seqlen smaller",
                      12e-9 * (double)(elements + rows));
    }
    out->max_v = largest_magnitude(in->V, attn_kv_elements(p));
    out->base_error_O = largest_difference(out->base_O, out->O, elements);
    out->base_error_LSE = largest_difference(out->base_LSE, out->LSE, rows);
    // A bar that is infinitely wide would let everything pass.
    if (isfinite(out->base_error_O) && isfinite(out->base_error_LSE)) return true;
    double max_logit = out->max_logit;
    reference_free(out);
    return refuse(why, why_size,
                  "the naive algorithm overflows fp32 on these inputs (logits to %.3g): "
                  "choose a smaller scale or smaller inputs",
                  max_logit);
}

void reference_free(struct reference *r) {
    free(r->O);
    free(r->LSE);
    free(r->base_O);
    free(r->base_LSE);
    *r = (struct reference){0};
}

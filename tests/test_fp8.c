// test_fp8.c - FP8 on the host: what fp8.h says of scales and rotation, the baseline, and whether
// the bar for FP8 (check.h) lets what is right pass and what is wrong not.
//
// What is right is a model of a kernel: quantised inputs, tiles of keys, a running maximum, P
// rounded to e4m3, sums in fp32. The faults are faults of this model.

#include "check.h"
#include "dtype.h"
#include "fp8.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WHY = 512 };

static struct attn_problem problem(int heads, int kv_heads, int nq, int nk, int d) {
    return (struct attn_problem){.batch = 1,
                                 .heads = heads,
                                 .kv_heads = kv_heads,
                                 .seqlen_q = nq,
                                 .seqlen_k = nk,
                                 .head_dim = d,
                                 .scale = 1 / sqrtf((float)d),
                                 .dtype = ATTN_FP8};
}

static struct inputs make(const struct attn_problem *p, enum data_family family, uint64_t seed) {
    struct inputs in;
    char why[WHY] = "";
    cr_assert(inputs_make(p, family, seed, false, &in, why, sizeof why), "%s", why);
    return in;
}

static struct reference refer(const struct attn_problem *p, const struct inputs *in) {
    struct reference r;
    char why[WHY] = "";
    cr_assert(reference_make(p, in, &r, why, sizeof why), "%s", why);
    return r;
}

// ---- rotation -----------------------------------------------------------------------------------

// Element (i, j) of Hadamard's matrix: -1 if i and j have an odd number of bits in common.
static int hadamard(int i, int j) { return __builtin_popcount((unsigned)(i & j)) % 2 ? -1 : 1; }

Test(fp8, rotation_is_the_product_with_the_matrix) {
    for (int d = 8; d <= 256; d *= 2) {
        float row[256], was[256];
        for (int c = 0; c < d; c++) row[c] = was[c] = (float)((c * 37 + 11) % 64 - 32);
        fp8_rotate(row, d);
        for (int j = 0; j < d; j++) {
            double sum = 0;
            for (int i = 0; i < d; i++) sum += was[i] * fp8_sign(i) * hadamard(i, j);
            cr_expect_float_eq(row[j], sum / sqrt(d), 1e-4, "d %d, column %d", d, j);
        }
    }
}

// Without the signs, columns of equal elements would become one large element.
Test(fp8, signs_are_of_both_kinds_and_follow_no_row_of_the_matrix) {
    for (int d = 32; d <= 256; d *= 2)
        for (int j = 0; j < d; j++) {
            int sum = 0;
            for (int i = 0; i < d; i++) {
                cr_assert(fp8_sign(i) == 1 || fp8_sign(i) == -1);
                sum += hadamard(i, j) * (int)fp8_sign(i);
            }
            cr_expect_leq(abs(sum), d / 2, "d %d, row %d", d, j);
        }
}

Test(fp8, rotation_leaves_logits_and_spreads_outliers) {
    enum { D = 128 };
    float q[D], k[D], largest = 0;
    double before = 0, after = 0;
    for (int c = 0; c < D; c++) {
        q[c] = c == 70 ? 100 : (float)(c % 5) - 2;
        k[c] = (float)(c % 7) - 3;
        before += (double)q[c] * k[c];
    }
    fp8_rotate(q, D);
    fp8_rotate(k, D);
    for (int c = 0; c < D; c++) {
        after += (double)q[c] * k[c];
        largest = fmaxf(largest, fabsf(q[c]));
    }
    cr_expect_float_eq(after, before, 1e-3);
    cr_expect_lt(largest, 20, "100 / sqrt(128), and what the others add");
}

// ---- scales -------------------------------------------------------------------------------------

Test(fp8, the_largest_element_becomes_448) {
    const float largest[] = {1, 448, 3.14f, 1e-20f, 1e30f, 0.1f};
    for (unsigned i = 0; i < sizeof largest / sizeof *largest; i++) {
        float factor = fp8_factor(largest[i]), scale = fp8_scale_of(largest[i]);
        cr_expect_eq(e4m3_from_float(largest[i] * factor), 0x7e, "%g", largest[i]);
        cr_expect_float_eq(448 * scale / largest[i], 1, 1e-6, "%g", largest[i]);
    }
    cr_expect_eq(fp8_factor(0), 1);
    cr_expect_eq(fp8_scale_of(0), 1);
    cr_expect_eq(fp8_factor(0x1p-130f), 1, "448 / that would be infinite");
    cr_expect_eq(fp8_scale_of(0x1p-130f), 1);
}

// Two heads of 300 rows; one element after the other is made large, and which rows change with it
// shows what shares a scale.
Test(fp8, a_scale_for_each_tensor_head_or_block) {
    enum { ROWS = 300, D = 8, ALL = 2 * ROWS * D };
    static const int large_row[] = {0, 127, 128, 299, 300, 599}; // through both heads
    static float x[ALL], y[ALL], with[ALL];
    for (int i = 0; i < ALL; i++) x[i] = (float)(i * 29 % 101) / 50 - 1;
    for (int scale = FP8_SCALE_TENSOR; scale <= FP8_SCALE_BLOCK; scale++)
        for (int k = 0; k < 6; k++) {
            struct attn_problem p = {.head_dim = D, .fp8_scale = (enum fp8_scale)scale};
            fp8_quantise(&p, x, 2, ROWS, false, y);
            float was = x[large_row[k] * D + 3];
            x[large_row[k] * D + 3] = -1000;
            fp8_quantise(&p, x, 2, ROWS, false, with);
            x[large_row[k] * D + 3] = was;
            for (int row = 0; row < 2 * ROWS; row++) {
                bool head = row / ROWS == large_row[k] / ROWS;
                bool block = head && row % ROWS / 128 == large_row[k] % ROWS / 128;
                bool shares =
                    scale == FP8_SCALE_TENSOR || (scale == FP8_SCALE_HEAD && head) || block;
                bool changed = memcmp(y + row * D, with + row * D, D * sizeof *y) != 0;
                cr_expect_eq(changed, shares, "%s, %d large: row %d",
                             fp8_scale_name((enum fp8_scale)scale), large_row[k], row);
            }
        }
}

Test(fp8, quantised_elements_are_the_nearest_of_their_grid) {
    struct attn_problem p = problem(2, 1, 40, 50, 64);
    struct inputs in = make(&p, DATA_OUTLIERS, 3), q;
    cr_assert(fp8_quantise_inputs(&p, &in, &q));
    float largest = 0;
    for (uint64_t i = 0; i < attn_q_elements(&p); i++) largest = fmaxf(largest, fabsf(in.Q[i]));
    for (uint64_t i = 0; i < attn_q_elements(&p); i++) {
        double step =
            fmax(fabs(in.Q[i]) / 8, largest / 448 / 64 / 8); // of its binade, or subnormal
        cr_expect_leq(fabs(in.Q[i] - q.Q[i]), step / 2 * (1 + 1e-5), "%g became %g", in.Q[i],
                      q.Q[i]);
    }
    cr_expect_null(q.dO);
    inputs_free(&q);
    p.rotate = true;
    cr_assert(fp8_quantise_inputs(&p, &in, &q));
    float *V = malloc(attn_kv_elements(&p) * sizeof *V),
          *K = malloc(attn_kv_elements(&p) * sizeof *K);
    fp8_quantise(&p, in.V, 1, 50, false, V);
    fp8_quantise(&p, in.K, 1, 50, true, K);
    cr_expect_arr_eq(q.V, V, attn_kv_elements(&p) * sizeof *V, "V is not rotated");
    cr_expect_arr_eq(q.K, K, attn_kv_elements(&p) * sizeof *K);
    free(V), free(K);
    inputs_free(&q), inputs_free(&in);
}

Test(fp8, rotation_needs_a_power_of_two) {
    char why[WHY];
    struct attn_problem p = problem(1, 1, 4, 4, 96);
    p.smem = 1 << 16, p.sm = 90, p.sm_count = 1;
    cr_expect_eq(attn_problem_check(&p, why, sizeof why), 0, "%s", why);
    p.rotate = true;
    cr_expect_eq(attn_problem_check(&p, why, sizeof why), -1);
    cr_expect(strstr(why, "--head-dim 96: must be a power of two with --rotate"), "%s", why);
    p.head_dim = 128;
    cr_expect_eq(attn_problem_check(&p, why, sizeof why), 0, "%s", why);
}

// ---- the baseline -------------------------------------------------------------------------------

// Everything is exact in e4m3 but P: K is 0 in row 0, and so that its weight is 0.3 in row 1.
Test(fp8, the_baseline_rounds_P_times_256) {
    struct attn_problem p = problem(1, 1, 1, 2, 8);
    p.scale = 1;
    float Q[8] = {448}, K[16] = {0}, V[16] = {448, 7}, O[8], LSE;
    K[8] = -448;
    p.scale = 1.2f / (448 * 448); // exp(-1.2) = 0.301: times 256, 77.1, becomes 80
    for (int c = 0; c < 8; c++) V[8 + c] = 448;
    struct inputs in = {Q, K, V, NULL};
    cr_assert(baseline_forward(&p, &in, O, &LSE));
    double w = exp(-(double)p.scale * 448 * 448);
    cr_expect_eq(O[0], bf16_to_float(bf16_from_float((float)((256 + 80.) * 448 / 256 / (1 + w)))));
    cr_expect_eq(O[1],
                 bf16_to_float(bf16_from_float((float)((256 * 7 + 80. * 448) / 256 / (1 + w)))));
    cr_expect_float_eq(LSE, log(1 + w), 1e-6);
}

Test(fp8, the_baseline_is_attention_of_the_quantised_inputs) {
    struct attn_problem p = problem(4, 2, 20, 45, 16), unquantised;
    p.causal = true, p.batch = 2, p.rotate = true, p.fp8_scale = FP8_SCALE_HEAD;
    struct inputs in = make(&p, DATA_NORMAL, 1), q;
    struct reference r = refer(&p, &in), of_q;
    cr_assert(fp8_quantise_inputs(&p, &in, &q));
    unquantised = p, unquantised.dtype = ATTN_FP32;
    of_q = refer(&unquantised, &q);
    double largest = 0;
    for (uint64_t i = 0; i < attn_rows(&p); i++)
        cr_expect_float_eq(r.base_LSE[i], of_q.LSE[i], 1e-5, "row %d", (int)i);
    for (uint64_t i = 0; i < attn_q_elements(&p); i++)
        largest = fmax(largest, fabs(r.base_O[i] - of_q.O[i]));
    cr_expect_lt(largest, 0.0625 * r.max_v, "P is off by a sixteenth at most");
    cr_expect_gt(largest, 1e-3 * r.max_v, "and P is rounded");
    reference_free(&r), reference_free(&of_q), inputs_free(&q), inputs_free(&in);
}

Test(fp8, errors_of_the_baseline_are_those_of_all_and_of_its_worst_row) {
    struct attn_problem p = problem(1, 1, 30, 40, 8);
    p.causal = true;
    struct inputs in = make(&p, DATA_NORMAL, 1);
    struct reference r = refer(&p, &in);
    double all = 0, worst = 0, of_LSE = 0;
    for (int i = 0; i < 30; i++) {
        double row = 0;
        for (int c = 8 * i; c < 8 * i + 8; c++) row += pow(r.base_O[c] - r.O[c], 2);
        all += row, worst = fmax(worst, row), of_LSE += pow(r.base_LSE[i] - r.LSE[i], 2);
    }
    cr_expect_float_eq(r.base_rmse_O, sqrt(all / 240), 1e-12);
    cr_expect_float_eq(r.base_row_O, sqrt(worst / 8), 1e-12);
    cr_expect_float_eq(r.base_rmse_LSE, sqrt(of_LSE / 30), 1e-12);
    reference_free(&r), inputs_free(&in);
}

Test(fp8, a_query_that_sees_no_key) {
    struct attn_problem p = problem(1, 1, 9, 4, 8);
    p.causal = true;
    struct inputs in = make(&p, DATA_NORMAL, 1);
    struct reference r = refer(&p, &in);
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(r.base_LSE[i], -INFINITY);
        for (int c = 0; c < 8; c++) cr_expect_eq(r.base_O[i * 8 + c], 0);
    }
    cr_expect(check_O(&p, &r, r.base_O).ok && check_LSE(&p, &r, r.base_LSE).ok);
    const float wrong[] = {INFINITY, 0, NAN};
    float LSE[9];
    memcpy(LSE, r.base_LSE, sizeof LSE);
    for (int k = 0; k < 3; k++) {
        LSE[2] = wrong[k];
        struct check c = check_LSE(&p, &r, LSE);
        cr_expect(!c.ok && c.bad == 1 && c.worst == 2, "%g for -infinity", wrong[k]);
        LSE[2] = -INFINITY;
    }
    LSE[7] = -INFINITY;
    cr_expect_not(check_LSE(&p, &r, LSE).ok, "-infinity for a number");
    reference_free(&r), inputs_free(&in);
}

// ---- a model of a kernel, and its faults --------------------------------------------------------

enum fault {
    RIGHT,
    OFFSET_IN_LSE, // forgotten
    OFFSET_IN_O,   // l has it, O not
    OTHER_ORDER,   // of keys in P and V
    SCALE_OF_K,    // the first block's for all
    SCALE_OF_V,
    MASK_LATER, // one key more
    MASK_EARLIER,
    LAST_KEY, // is left out
    ONE_ROW,  // is 0
    ONLY_Q_ROTATED,
    GROUPS, // query head h reads key/value head 0
};

struct model {
    int Bc;
    bool backwards; // tiles of keys from last to first
    float growth;   // how much a maximum may grow, log2, before O is rescaled
    enum fault fault;
};

struct row {
    const float *Q, *K, *V; // [d], [Nk, d] of the head twice
    int keys;
    float *O, *LSE; // [d], one number
};

// One tile: keys j0 to j0 + n - 1.
static void take_tile(const struct attn_problem *p, const struct model *model, const struct row *r,
                      int j0, int n, float *m, float *l, float *sum) {
    int d = p->head_dim;
    float S[256], largest = *m;
    for (int j = 0; j < n; j++) {
        const float *k = r->K + (size_t)(j0 + j) * d;
        S[j] = 0;
        for (int c = 0; c < d; c++) S[j] += r->Q[c] * k[c];
        S[j] *= p->scale * 1.44269504f;
        largest = fmaxf(largest, S[j]);
    }
    if (*m == -INFINITY || largest - *m > model->growth) {
        float factor = exp2f(*m - largest);
        *l *= factor, *m = largest;
        for (int c = 0; c < d; c++) sum[c] *= factor;
    }
    for (int j = 0; j < n; j++) {
        float P = exp2f(S[j] - *m + FP8_P_OFFSET);
        // Slots of P hold 0 1 8 9, 2 3 10 11, …: here V's are left as they were.
        int slot = j / 16 * 16 + j % 8 / 2 * 4 + j % 2 + j % 16 / 8 * 2;
        int key = model->fault == OTHER_ORDER && slot < n ? slot : j;
        *l += P;
        P = e4m3_to_float(e4m3_from_float(P));
        for (int c = 0; c < d; c++) sum[c] += P * r->V[(size_t)(j0 + key) * d + c];
    }
}

static void model_row(const struct attn_problem *p, const struct model *model,
                      const struct row *r) {
    float m = -INFINITY, l = 0, sum[256] = {0};
    int tiles = (r->keys + model->Bc - 1) / model->Bc;
    for (int t = 0; t < tiles; t++) {
        int j0 = (model->backwards ? tiles - 1 - t : t) * model->Bc, left = r->keys - j0;
        take_tile(p, model, r, j0, left < model->Bc ? left : model->Bc, &m, &l, sum);
    }
    int offset = model->fault == OFFSET_IN_LSE ? 0 : FP8_P_OFFSET;
    float factor = model->fault == OFFSET_IN_O ? exp2f(-FP8_P_OFFSET) : 1;
    for (int c = 0; c < p->head_dim; c++)
        r->O[c] = tiles ? bf16_to_float(bf16_from_float(factor * sum[c] / l)) : 0;
    *r->LSE = tiles ? 0.693147181f * (m - offset) + logf(l) : -INFINITY;
}

static int keys_of(const struct attn_problem *p, const struct model *model, int i) {
    int keys = attn_visible_keys(p, i);
    if (model->fault == MASK_LATER && keys < p->seqlen_k) return keys + 1;
    if (model->fault == MASK_EARLIER && keys > 1 && p->causal) return keys - 1;
    if (model->fault == LAST_KEY && keys == p->seqlen_k && keys > 1) return keys - 1;
    return keys;
}

// All blocks of rows with the scale of the head's first.
static void spoil_scales(const struct attn_problem *p, const float *x, float *quantised) {
    float scale[2];
    for (int head = 0; head < p->batch * p->kv_heads; head++)
        for (int row = 0; row < p->seqlen_k; row++) {
            int block = row / FP8_BLOCK, first = block * FP8_BLOCK, d = p->head_dim;
            int end = first + FP8_BLOCK < p->seqlen_k ? first + FP8_BLOCK : p->seqlen_k;
            for (int which = 0; which < 2; which++) { // of the first block, of this one
                float largest = 0;
                int from = which ? first : 0, to = which ? end : FP8_BLOCK;
                for (int i = from * d; i < to * d; i++)
                    largest = fmaxf(largest, fabsf(x[(size_t)head * p->seqlen_k * d + i]));
                scale[which] = fp8_scale_of(largest);
            }
            for (int c = 0; c < d; c++)
                quantised[((size_t)head * p->seqlen_k + row) * d + c] *= scale[0] / scale[1];
        }
}

static void run_model(const struct attn_problem *p, const struct inputs *in,
                      const struct model *model, float *O, float *LSE) {
    struct inputs q;
    int d = p->head_dim, group = p->heads / p->kv_heads;
    cr_assert(fp8_quantise_inputs(p, in, &q));
    if (model->fault == SCALE_OF_K) spoil_scales(p, in->K, q.K);
    if (model->fault == SCALE_OF_V) spoil_scales(p, in->V, q.V);
    if (model->fault == ONLY_Q_ROTATED)
        fp8_quantise(p, in->K, p->batch * p->kv_heads, p->seqlen_k, false, q.K);
    for (int bh = 0; bh < p->batch * p->heads; bh++) {
        int h = model->fault == GROUPS ? 0 : bh % p->heads;
        size_t kv = (size_t)(bh / p->heads * p->kv_heads + h / group) * p->seqlen_k * d;
        for (int i = 0; i < p->seqlen_q; i++) {
            size_t at = (size_t)bh * p->seqlen_q + i;
            struct row r = {q.Q + at * d,         q.K + kv,   q.V + kv,
                            keys_of(p, model, i), O + at * d, LSE + at};
            model_row(p, model, &r);
        }
    }
    if (model->fault == ONE_ROW) memset(O + (size_t)p->seqlen_q / 2 * d, 0, d * sizeof *O);
    inputs_free(&q);
}

// ---- the bar ------------------------------------------------------------------------------------

struct verdict {
    struct check O, LSE;
};

static struct verdict judge(const struct attn_problem *p, enum data_family family, uint64_t seed,
                            const struct model *model) {
    struct inputs in = make(p, family, seed);
    struct reference r = refer(p, &in);
    float *O = malloc(attn_q_elements(p) * sizeof *O), *LSE = malloc(attn_rows(p) * sizeof *LSE);
    run_model(p, &in, model, O, LSE);
    struct verdict v = {check_O(p, &r, O), check_LSE(p, &r, LSE)};
    free(O), free(LSE);
    reference_free(&r), inputs_free(&in);
    return v;
}

// Shapes from one key to several blocks of scales, all families, ways to scale, tiles and orders.
// FULL=1: more seeds. The bar of O is nearest where there is one query, and few columns.
Test(fp8, what_is_right_passes_the_bar) {
    static const int shapes[][3] = {{1, 1, 8},   {1, 3, 64},   {2, 2, 32},    {5, 9, 16},
                                    {1, 40, 8},  {16, 16, 64}, {33, 33, 128}, {64, 130, 8},
                                    {1, 400, 8}, {1, 300, 64}, {20, 290, 32}};
    int seeds = getenv("FULL") ? 60 : 4, count = 0;
    double most_O = 0, most_LSE = 0;
    for (int seed = 1; seed <= seeds; seed++)
        for (unsigned k = 0; k < sizeof shapes / sizeof *shapes; k++)
            for (int family = 0; family < DATA_FAMILIES; family++, count++) {
                struct attn_problem p =
                    problem(2, 1 + count % 2, shapes[k][0], shapes[k][1], shapes[k][2]);
                p.causal = seed % 2 == 0;
                p.fp8_scale = (enum fp8_scale)((seed + family) % 3);
                p.rotate = seed / 2 % 2;
                struct model model = {16 << seed % 4, count % 3 == 0, seed % 3 ? 0 : 0.8f, RIGHT};
                struct verdict v = judge(&p, (enum data_family)family, (uint64_t)seed, &model);
                cr_expect(v.O.ok && v.LSE.ok,
                          "Nq %d Nk %d d %d %s seed %d: O %g, LSE %g of the bar", p.seqlen_q,
                          p.seqlen_k, p.head_dim, data_family_name((enum data_family)family), seed,
                          v.O.of_bar, v.LSE.of_bar);
                most_O = fmax(most_O, v.O.of_bar), most_LSE = fmax(most_LSE, v.LSE.of_bar);
            }
    cr_log_info("%d cases: O at most %.3f of the bar, LSE %.3f", count, most_O, most_LSE);
    cr_expect_gt(most_O, 0.5, "the bar is not far away");
}

// In at least one of O and LSE, with each seed.
Test(fp8, what_is_wrong_does_not) {
    static const struct {
        enum fault fault;
        const char *what;
        enum data_family family;
        enum fp8_scale scale;
        bool rotate, causal;
        int heads, kv_heads, n;
    } table[] = {
        {OFFSET_IN_LSE, "offset in LSE", DATA_NORMAL, 0, false, false, 1, 1, 64},
        {OFFSET_IN_O, "offset in O", DATA_NORMAL, 0, false, false, 1, 1, 64},
        {OTHER_ORDER, "order of keys", DATA_NORMAL, 0, false, false, 1, 1, 130},
        {SCALE_OF_K, "K's scale of another block", DATA_OUTLIERS, 2, false, false, 1, 1, 300},
        {SCALE_OF_V, "V's scale of another block", DATA_OUTLIERS, 2, false, false, 1, 1, 300},
        {MASK_LATER, "one key more", DATA_NORMAL, 0, false, true, 1, 1, 130},
        {MASK_EARLIER, "one key less", DATA_NORMAL, 0, false, true, 1, 1, 130},
        {LAST_KEY, "the last key", DATA_CONSTANT, 0, false, false, 1, 1, 33},
        {ONE_ROW, "one row of O", DATA_NORMAL, 0, false, true, 1, 1, 400},
        {ONLY_Q_ROTATED, "K not rotated", DATA_NORMAL, 0, true, false, 1, 1, 64},
        {GROUPS, "key/value heads", DATA_NORMAL, 0, false, false, 4, 2, 64},
    };
    for (unsigned k = 0; k < sizeof table / sizeof *table; k++)
        for (uint64_t seed = 1; seed <= 5; seed++) {
            struct attn_problem p =
                problem(table[k].heads, table[k].kv_heads, table[k].n, table[k].n, 32);
            p.fp8_scale = table[k].scale, p.rotate = table[k].rotate, p.causal = table[k].causal;
            struct model model = {64, false, 0, RIGHT};
            struct verdict v = judge(&p, table[k].family, seed, &model);
            cr_expect(v.O.ok && v.LSE.ok, "%s, right: O %g, LSE %g", table[k].what, v.O.of_bar,
                      v.LSE.of_bar);
            model.fault = table[k].fault;
            v = judge(&p, table[k].family, seed, &model);
            cr_expect_not(v.O.ok && v.LSE.ok, "%s passed, seed %d: O %g, LSE %g of the bar",
                          table[k].what, (int)seed, v.O.of_bar, v.LSE.of_bar);
        }
}

// The formulas of check.h, at their edges: 2 rows of 8, bf16's unit at 1 is 2^-7.
Test(fp8, the_bar_stands_where_it_should) {
    struct attn_problem p = problem(1, 1, 2, 1, 8);
    double want[16], lse[2] = {1, 1};
    float got[16], got_lse[2] = {1, 1}, base[16], base_lse[2] = {1 + 0x1p-6f, 1 + 0x1p-6f};
    struct reference r = {.O = want,
                          .LSE = lse,
                          .base_O = base,
                          .base_LSE = base_lse,
                          .max_logit = 3,
                          .base_rmse_O = 0x1p-4,
                          .base_row_O = 0x1p-3,
                          .base_rmse_LSE = 0x1p-5,
                          .base_error_LSE = 0x1p-4};
    const float off[] = {1.75f * 0x1p-4f + 0x1p-8f, // of all rows; of one
                         2 * 0x1p-5f + 0.5f * 0x1p-3f + 0x1p-8f};
    for (int rows = 2; rows >= 1; rows--) {
        for (int i = 0; i < 16; i++) want[i] = got[i] = 1, base[i] = 1 + 0x1p-5f;
        for (int i = 0; i < 8 * rows; i++) got[i] = 1 + off[rows == 1];
        // One row alone may be as large as its own limit only if all of O are far from theirs.
        r.base_rmse_O = rows == 1 ? 1 : 0x1p-4;
        struct check c = check_O(&p, &r, got);
        cr_expect(c.ok, "%d rows: %g", rows, c.of_bar);
        cr_expect_float_eq(c.of_bar, 1, 1e-6);
        for (int i = 0; i < 8 * rows; i++) got[i] *= 1 + 0x1p-20f;
        c = check_O(&p, &r, got);
        cr_expect_not(c.ok, "%d rows", rows);
        cr_expect_eq(c.bad, rows == 1 ? 1 : 0);
        cr_expect_eq(c.base_rmse, r.base_rmse_O);
    }
    const double sums = 4 * 0x1p-10, own = 2 * 4 * 0x1p-24 + 2 * 0x1p-23;
    const double off_lse[] = {1.25 * 0x1p-5 + sums + own,
                              2 * 0x1p-6 + 0.5 * 0x1p-4 + 4 * sums + own};
    for (int rows = 2; rows >= 1; rows--) {
        r.base_rmse_LSE = rows == 1 ? 1 : 0x1p-5;
        for (int i = 0; i < 2; i++) got_lse[i] = i < rows ? 1 + (float)off_lse[rows == 1] : 1;
        cr_expect_float_eq(check_LSE(&p, &r, got_lse).of_bar, 1, 1e-5);
        for (int i = 0; i < rows; i++) got_lse[i] -= 0x1p-20f;
        cr_expect(check_LSE(&p, &r, got_lse).ok);
        for (int i = 0; i < rows; i++) got_lse[i] += 0x1p-18f;
        cr_expect_not(check_LSE(&p, &r, got_lse).ok);
    }
}

Test(fp8, nan_is_caught_and_named) {
    struct attn_problem p = problem(1, 1, 33, 33, 64);
    struct inputs in = make(&p, DATA_NORMAL, 1);
    struct reference r = refer(&p, &in);
    const uint64_t places[3] = {0, 700, 33 * 64 - 1};
    float O[33 * 64];
    memcpy(O, r.base_O, sizeof O);
    for (int k = 0; k < 3; k++) {
        O[places[k]] = NAN;
        struct check c = check_O(&p, &r, O);
        cr_expect(!c.ok && c.bad == 1 && c.worst == places[k]);
        cr_expect(isnan(c.error) && isnan(c.got) && isnan(c.of_bar) && isnan(c.rmse));
        O[places[k]] = r.base_O[places[k]];
    }
    cr_expect(check_O(&p, &r, O).ok);
    reference_free(&r), inputs_free(&in);
}

Test(fp8, rmse_of_every_type_is_told) {
    struct attn_problem p = problem(1, 1, 2, 1, 8);
    double want[16] = {0};
    float got[16] = {0};
    struct reference r = {.O = want, .base_error_O = 1};
    p.dtype = ATTN_BF16;
    got[3] = 0.5f, got[12] = -0.25f;
    struct check c = check_O(&p, &r, got);
    cr_expect_float_eq(c.rmse, sqrt((0.25 + 0.0625) / 16), 1e-12);
    cr_expect(c.ok && c.base_rmse == 0);
}

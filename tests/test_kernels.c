// test_kernels.c - every registered kernel on every kind of shape and input; and do the checks bite?

#include "run.h"
#include "wrong_attention.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- shapes and inputs -----------------------------------------------------------------------------

static const struct {
    int q, k;
} lengths[] = {{1, 1}, {33, 33}, {64, 64}, {130, 130}, {37, 100}, {100, 37}, {1, 77}, {77, 1}};
static const struct {
    int batch, q, kv;
} heads[] = {{1, 1, 1}, {2, 2, 2}, {1, 4, 2}, {2, 3, 1}};
static const int dims[] = {8, 40, 64, 128, 256};
enum { LENGTHS = sizeof lengths / sizeof *lengths, HEADS = 4, DIMS = 5, MASKS = 2, FACTORS = 5 };
enum { SEED = 42 };
static const int levels[FACTORS] = {LENGTHS, DATA_FAMILIES, HEADS, DIMS, MASKS};

// A case is one level of each factor: length, family, heads, d, causal.
static struct attn_problem problem_of(const int level[FACTORS], enum attn_dtype dtype) {
    struct attn_problem p = {
        .batch = heads[level[2]].batch,
        .heads = heads[level[2]].q,
        .kv_heads = heads[level[2]].kv,
        .seqlen_q = lengths[level[0]].q,
        .seqlen_k = lengths[level[0]].k,
        .head_dim = dims[level[3]],
        .causal = level[4],
        .dtype = dtype,
        .smem = 227 << 10,
        .sm = 90,
        .sm_count = 132,
    };
    return p;
}

// Each length with each family, and the other factors spread so that every two levels of different
// factors meet in some case (the test below counts them).
static void pairwise_case(int number, int level[FACTORS]) {
    int length = number % LENGTHS, family = number / LENGTHS;
    level[0] = length;
    level[1] = family;
    level[2] = (length + family) % HEADS;
    level[3] = (2 * length + family) % DIMS;
    level[4] = (length / 2 + family + number / 4) % MASKS;
}

static void cross_product_case(int number, int level[FACTORS]) {
    for (int f = 0; f < FACTORS; f++) {
        level[f] = number % levels[f];
        number /= levels[f];
    }
}

static bool full(void) { return getenv("FULL") != NULL; }

static int cases(void) {
    int n = 1;
    for (int f = 0; f < FACTORS; f++) n *= levels[f];
    return full() ? n : LENGTHS * DATA_FAMILIES;
}

Test(kernels, the_chosen_cases_cover_every_pair) {
    for (int f = 0; f < FACTORS; f++)
        for (int g = 0; g < f; g++) {
            bool met[8][8] = {{false}};
            for (int n = 0; n < LENGTHS * DATA_FAMILIES; n++) {
                int level[FACTORS];
                pairwise_case(n, level);
                met[level[f]][level[g]] = true;
            }
            for (int a = 0; a < levels[f]; a++)
                for (int b = 0; b < levels[g]; b++) cr_expect(met[a][b], "factors %d, %d: levels %d, %d never meet", f, g, a, b);
        }
}

// ---- every kernel --------------------------------------------------------------------------------------

static const char *shape_text(const struct attn_problem *p) {
    static char text[160];
    snprintf(text, sizeof text, "-b %d -H %d --kv-heads %d --seqlen-q %d --seqlen-k %d -d %d%s --dtype %s", p->batch, p->heads,
             p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim, p->causal ? " --causal" : "", attn_dtype_name(p->dtype));
    return text;
}

// All passes that the kernel has, the backward once after its own forward and once alone.
static void expect_right(const struct attn_kernel *k, const struct attn_problem *p, const struct source *source) {
    char why[300];
    struct prepared in;
    const unsigned both = ATTN_FORWARD | ATTN_BACKWARD;
    const unsigned passes[] = {k->passes & both, ATTN_BACKWARD};
    cr_assert_eq(prepare(p, k->passes & both, source, &in, why, sizeof why), RAN_RIGHT, "%s", why);
    for (int i = 0; i < (k->passes & ATTN_BACKWARD ? 2 : 1); i++) {
        struct result r[2];
        int results = run_kernel(k, &in, passes[i], 1, NULL, r);
        for (int n = 0; n < results; n++)
            cr_expect(r[n].outcome == RAN_RIGHT || r[n].outcome == NOT_SUPPORTED, "--kernel %s %s --data %s --seed %d, pass %u of %u: %s",
                      k->name, shape_text(p), in.name, SEED, r[n].pass, passes[i], r[n].why);
    }
    prepared_free(&in);
}

static void test_kernel(const struct attn_kernel *k, enum attn_dtype dtype) {
    for (int n = 0; n < cases(); n++) {
        int level[FACTORS];
        (full() ? cross_product_case : pairwise_case)(n, level);
        struct attn_problem p = problem_of(level, dtype);
        expect_right(k, &p, &(struct source){NULL, (enum data_family)level[1], SEED});
    }
}

Test(kernels, all_are_right_on_every_shape_and_input) {
    cr_assert_gt(attn_kernel_count(), 0);
    for (int i = 0; i < attn_kernel_count(); i++)
        for (int t = 0; t < ATTN_DTYPES; t++)
            if (attn_kernel_at(i)->dtypes >> t & 1) test_kernel(attn_kernel_at(i), (enum attn_dtype)t);
}

Test(kernels, all_are_right_on_real_input) {
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        struct attn_problem p = {.smem = 227 << 10, .sm = 90, .sm_count = 132};
        char why[300];
        struct prepared in;
        struct result r[2];
        cr_assert_eq(prepare(&p, ATTN_FORWARD, &(struct source){.load = "tests/minilm"}, &in, why, sizeof why), RAN_RIGHT, "%s", why);
        run_kernel(k, &in, ATTN_FORWARD, 1, NULL, r);
        cr_expect_eq(r[0].outcome, RAN_RIGHT, "%s: %s", k->name, r[0].why);
        prepared_free(&in);
    }
}

// ---- do the checks bite? -------------------------------------------------------------------------------

// Not a multiple of 32 keys, causal with fewer queries than keys, two query heads to a key head: each
// fault has something to get wrong.
static struct result run_fault(enum fault fault, enum data_family family, int repeat) {
    struct attn_problem p = {.batch = 2, .heads = 4, .kv_heads = 2, .seqlen_q = 20, .seqlen_k = 45, .head_dim = 16,
                             .causal = true, .scale = 0.25f, .smem = 227 << 10, .sm = 90, .sm_count = 132};
    char why[300];
    struct prepared in;
    struct result r[2];
    cr_assert_eq(prepare(&p, ATTN_FORWARD, &(struct source){NULL, family, 7}, &in, why, sizeof why), RAN_RIGHT, "%s", why);
    run_kernel(wrong_attention(fault), &in, ATTN_FORWARD, repeat, NULL, r);
    prepared_free(&in);
    return r[0];
}

Test(checks, pass_a_right_kernel) {
    for (int family = 0; family < DATA_FAMILIES; family++) {
        struct result r = run_fault(NO_FAULT, (enum data_family)family, 3);
        cr_expect_eq(r.outcome, RAN_RIGHT, "%s: %s", data_family_name((enum data_family)family), r.why);
        cr_expect(r.asked_is_model);
    }
}

static void expect_caught(enum fault fault, const char *word) {
    struct result r = run_fault(fault, DATA_NORMAL, 2);
    cr_expect_eq(r.outcome, RAN_WRONG, "fault %d passed", fault);
    cr_expect(strstr(r.why, word), "fault %d: '%s' does not say '%s'", fault, r.why, word);
}

Test(checks, catch_a_kernel_that_returns_at_once) { expect_caught(RETURNS_AT_ONCE, "O[0, 0, 0, 0] is NaN"); }
Test(checks, catch_one_nan) { expect_caught(WRITES_NAN, "O[0, 0, 0, 15] is NaN"); }
Test(checks, catch_a_wrong_scale) { expect_caught(WRONG_SCALE, "O["); }
Test(checks, catch_a_mask_off_by_one) { expect_caught(MASK_OFF_BY_ONE, "O["); }
Test(checks, catch_a_skipped_tail) { expect_caught(SKIPS_THE_TAIL, "O["); }
Test(checks, catch_lse_in_base_2) { expect_caught(WRONG_LSE_BASE, "LSE["); }
Test(checks, catch_wrong_heads) { expect_caught(IGNORES_KV_GROUPS, "O["); }
Test(checks, catch_traffic_that_the_model_does_not_know) { expect_caught(TOO_MUCH_TRAFFIC, "the model says"); }
Test(checks, catch_runs_that_differ) { expect_caught(DEPENDS_ON_THE_RUN, "different bits"); }

Test(checks, faults_in_the_mask_show_on_constant_input) {
    cr_expect_eq(run_fault(MASK_OFF_BY_ONE, DATA_CONSTANT, 1).outcome, RAN_WRONG);
    cr_expect_eq(run_fault(SKIPS_THE_TAIL, DATA_CONSTANT, 1).outcome, RAN_WRONG);
}

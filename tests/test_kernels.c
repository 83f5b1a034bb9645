// test_kernels.c - every registered kernel on every kind of shape and input, on either machine.

#include "run.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static struct machine machine;

static void open_machine(void) {
    char why[300];
    cr_assert(machine_open(&(struct machine_options){0}, &machine, why, sizeof why), "%s", why);
}

TestSuite(kernels, .init = open_machine);

// ---- shapes and inputs --------------------------------------------------------------------------

static const struct {
    int q, k;
} lengths[] = {{1, 1}, {33, 33}, {64, 64}, {130, 130}, {37, 100}, {100, 37}, {1, 77}, {77, 1}};
static const struct { int batch, q, kv; } heads[] = {{1, 1, 1}, {2, 2, 2}, {1, 4, 2}, {2, 3, 1}};
static const int dims[] = {8, 40, 64, 128, 256};
enum { LENGTHS = sizeof lengths / sizeof *lengths, HEADS = 4, DIMS = 5, MASKS = 2, FACTORS = 5 };
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
                for (int b = 0; b < levels[g]; b++)
                    cr_expect(met[a][b], "factors %d, %d: levels %d, %d never meet", f, g, a, b);
        }
}

// ---- every kernel -------------------------------------------------------------------------------

static const char *shape_text(const struct attn_problem *p) {
    static char text[160];
    snprintf(text, sizeof text,
             "-b %d -H %d --kv-heads %d --seqlen-q %d --seqlen-k %d -d %d%s --dtype %s", p->batch,
             p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim,
             p->causal ? " --causal" : "", attn_dtype_name(p->dtype));
    return text;
}

// A shape that a kernel does not take is none of its faults, nor is a card that it cannot run on.
static bool passed(const struct result *r) {
    return r->outcome == RAN_RIGHT || r->outcome == NOT_SUPPORTED ||
           (r->outcome == NOT_POSSIBLE && !machine.simulated);
}

enum { BOTH = ATTN_FORWARD | ATTN_BACKWARD };

// The passes that the kernel has of these; the backward once after its own forward, and (not in
// every combination, which takes long enough) once alone. The worst outcome.
static enum outcome expect_right(const struct attn_kernel *k, unsigned passes,
                                 struct attn_problem p, const struct source *source) {
    char why[300];
    struct prepared in;
    enum outcome worst = RAN_RIGHT;
    passes &= k->passes;
    const unsigned runs[] = {passes, ATTN_BACKWARD};
    p.smem = machine.smem;
    p.sm = machine.sm;
    p.sm_count = machine.sm_count;
    cr_assert_eq(prepare(&p, passes, source, &in, why, sizeof why), RAN_RIGHT, "%s", why);
    for (int i = 0; i < (passes == BOTH && !full() ? 2 : 1); i++) {
        struct result r[2];
        int results = run_kernel(k, &in, runs[i], 1, NULL, r);
        for (int n = 0; n < results; n++) {
            cr_expect(passed(&r[n]), "--kernel %s %s --scale %g --pass %s, %s: %s", k->name,
                      shape_text(&in.problem), in.problem.scale,
                      r[n].pass == ATTN_FORWARD ? "forward" : "backward", in.name, r[n].why);
            if (r[n].outcome != RAN_RIGHT) worst = r[n].outcome;
        }
    }
    prepared_free(&in);
    return worst;
}

static void every_case(const struct attn_kernel *k, enum attn_dtype dtype) {
    enum { ENOUGH = 5 }; // examples of what is wrong
    int right = 0, wrong = 0;
    for (int n = 0; n < cases() && wrong < ENOUGH; n++) {
        int level[FACTORS];
        (full() ? cross_product_case : pairwise_case)(n, level);
        struct source source = {NULL, (enum data_family)level[1], 42};
        enum outcome outcome = expect_right(k, BOTH, problem_of(level, dtype), &source);
        right += outcome == RAN_RIGHT;
        wrong += outcome == RAN_WRONG;
    }
    cr_expect(right + wrong || !machine.simulated,
              "--kernel %s --dtype %s takes none of the shapes", k->name, attn_dtype_name(dtype));
}

static void every_kernel(void (*test)(const struct attn_kernel *, enum attn_dtype)) {
    cr_assert_gt(attn_kernel_count(), 0);
    for (int i = 0; i < attn_kernel_count(); i++)
        for (int t = 0; t < ATTN_DTYPES; t++)
            if (attn_kernel_at(i)->dtypes >> t & 1) test(attn_kernel_at(i), (enum attn_dtype)t);
}

Test(kernels, all_are_right_on_every_shape_and_input) { every_kernel(every_case); }

static void real_input(const struct attn_kernel *k, enum attn_dtype dtype) {
    expect_right(k, ATTN_FORWARD, (struct attn_problem){.dtype = dtype},
                 &(struct source){.load = "tests/minilm"});
}

Test(kernels, all_are_right_on_real_input) { every_kernel(real_input); }

// A scale that is not 1/sqrt(d), and so large that the first queries, which see few keys, have none
// with a logit above -87: a maximum that started from 0 would leave them a sum of 0.
static void large_scale(const struct attn_kernel *k, enum attn_dtype dtype) {
    struct attn_problem p = {.batch = 1,
                             .heads = 4,
                             .kv_heads = 4,
                             .seqlen_q = 33,
                             .seqlen_k = 33,
                             .head_dim = 64,
                             .causal = true,
                             .scale = 10,
                             .dtype = dtype};
    expect_right(k, BOTH, p, &(struct source){NULL, DATA_NORMAL, 42});
}

Test(kernels, all_are_right_with_a_large_scale) { every_kernel(large_scale); }

// test_checks.c - do the checks bite? One kernel, right or with one fault (wrong_attention.h).

#include "run.h"
#include "wrong_attention.h"

#include <criterion/criterion.h>
#include <string.h>

// Not a multiple of 32 keys, causal with fewer queries than keys, two query heads to a key head:
// each fault has something to get wrong.
static struct result run_once(const struct attn_kernel *kernel, enum data_family family,
                              int repeat) {
    struct attn_problem p = {.batch = 2,
                             .heads = 4,
                             .kv_heads = 2,
                             .seqlen_q = 20,
                             .seqlen_k = 45,
                             .head_dim = 16,
                             .causal = true,
                             .scale = 0.25f,
                             .smem = 227 << 10,
                             .sm = 90,
                             .sm_count = 132};
    char why[300];
    struct prepared in;
    struct result r[2];
    cr_assert_eq(prepare(&p, ATTN_FORWARD, &(struct source){NULL, family, 7}, &in, why, sizeof why),
                 RAN_RIGHT, "%s", why);
    run_kernel(kernel, &in, ATTN_FORWARD, repeat, NULL, r);
    prepared_free(&in);
    return r[0];
}

static struct result run_fault(enum fault fault, enum data_family family, int repeat) {
    return run_once(wrong_attention(fault), family, repeat);
}

Test(checks, pass_a_right_kernel) {
    for (int family = 0; family < DATA_FAMILIES; family++) {
        struct result r = run_fault(NO_FAULT, (enum data_family)family, 3);
        cr_expect_eq(r.outcome, RAN_RIGHT, "%s: %s", data_family_name((enum data_family)family),
                     r.why);
        cr_expect(r.asked_is_model);
    }
}

static void expect_caught(enum fault fault, const char *word) {
    struct result r = run_fault(fault, DATA_NORMAL, 2);
    cr_expect_eq(r.outcome, RAN_WRONG, "fault %d passed", fault);
    cr_expect(strstr(r.why, word), "fault %d: '%s' does not say '%s'", fault, r.why, word);
}

Test(checks, catch_a_kernel_that_returns_at_once) {
    expect_caught(RETURNS_AT_ONCE,
                  "O[0, 0, 0, 0] is NaN: either never written, or computed as NaN; it should be ");
}
Test(checks, catch_one_nan) { expect_caught(WRITES_NAN, "O[0, 0, 0, 15] is NaN"); }
Test(checks, catch_a_wrong_scale) { expect_caught(WRONG_SCALE, "O["); }
Test(checks, catch_a_mask_off_by_one) { expect_caught(MASK_OFF_BY_ONE, "O["); }
Test(checks, catch_a_skipped_tail) { expect_caught(SKIPS_THE_TAIL, "O["); }
Test(checks, catch_lse_in_base_2) { expect_caught(WRONG_LSE_BASE, "LSE["); }
Test(checks, catch_wrong_heads) { expect_caught(IGNORES_KV_GROUPS, "O["); }
// The outputs are right: that has an outcome of its own.
Test(checks, catch_traffic_that_the_model_does_not_know) {
    struct result r = run_fault(TOO_MUCH_TRAFFIC, DATA_NORMAL, 2);
    cr_expect_eq(r.outcome, RAN_UNMODELLED);
    cr_expect(strstr(r.why, "the outputs are right, but it asked for "), "%s", r.why);
    cr_expect(strstr(r.why, "the model says"), "%s", r.why);
}

static struct attn_traffic a_load_more(const struct attn_problem *p, unsigned pass) {
    struct attn_traffic t = wrong_attention(NO_FAULT)->model(p, pass);
    t.load += SECTOR;
    return t;
}

// A kernel that may do a part again may ask for more than its model says, and not for less.
Test(checks, let_a_kernel_redo_a_part) {
    struct attn_kernel redoes = *wrong_attention(TOO_MUCH_TRAFFIC);
    redoes.redoes = true;
    struct result r = run_once(&redoes, DATA_NORMAL, 2);
    cr_expect_eq(r.outcome, RAN_RIGHT, "%s", r.why);
    cr_expect(r.asked_is_more && !r.asked_is_model);

    redoes = *wrong_attention(NO_FAULT);
    redoes.redoes = true;
    r = run_once(&redoes, DATA_NORMAL, 2);
    cr_expect(r.asked_is_model && !r.asked_is_more, "%s", r.why);

    redoes.model = a_load_more;
    r = run_once(&redoes, DATA_NORMAL, 2);
    cr_expect_eq(r.outcome, RAN_UNMODELLED, "asked for less, and passed");
    cr_expect(strstr(r.why, "the model says"), "%s", r.why);
}

Test(checks, catch_runs_that_differ) { expect_caught(DEPENDS_ON_THE_RUN, "different bits"); }

// Where atomics add in any order, that is no fault.
Test(checks, runs_may_differ_where_a_kernel_says_so) {
    struct attn_kernel kernel = *wrong_attention(DEPENDS_ON_THE_RUN);
    kernel.any_order = ATTN_FORWARD;
    struct result r = run_once(&kernel, DATA_NORMAL, 2);
    cr_expect_eq(r.outcome, RAN_RIGHT, "%s", r.why);
    kernel.any_order = ATTN_BACKWARD;
    cr_expect_eq(run_once(&kernel, DATA_NORMAL, 2).outcome, RAN_WRONG);
}

Test(checks, faults_in_the_mask_show_on_constant_input) {
    cr_expect_eq(run_fault(MASK_OFF_BY_ONE, DATA_CONSTANT, 1).outcome, RAN_WRONG);
    cr_expect_eq(run_fault(SKIPS_THE_TAIL, DATA_CONSTANT, 1).outcome, RAN_WRONG);
}

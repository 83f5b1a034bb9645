// test_step05_backward.c - what the backwards of step05 promise beyond right results: the tiles for
// each size of shared memory, no bank conflicts, no atomics in the one and as many as it must in
// the other, the same bits in every run, memory of O(N).
//
// The kernels are looked up by name and asked through the contract (attn.h), as the harness does.

#include "run.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct machine machine;

static void open_machine(void) {
    char why[300];
    cr_assert(machine_open(&(struct machine_options){0}, &machine, why, sizeof why), "%s", why);
}

TestSuite(step05_backward, .init = open_machine);

static const char *const names[] = {"fa2-deterministic", "fa2-fused"};
enum { DETERMINISTIC, FUSED, KERNELS };
enum { KB_99 = 99 << 10, KB_163 = 163 << 10, KB_227 = 227 << 10 };

// NULL if it is not linked in, or if others are to be tested.
static const struct attn_kernel *kernel(int number) {
    const char *asked_for = getenv("KERNEL");
    if (asked_for && !strstr(asked_for, names[number])) return NULL;
    for (int i = 0; i < attn_kernel_count(); i++)
        if (!strcmp(attn_kernel_at(i)->name, names[number])) return attn_kernel_at(i);
    return NULL;
}

// Two heads with the same keys, causal.
static struct attn_problem problem(int seqlen_q, int seqlen_k, int d, size_t smem) {
    return (struct attn_problem){.batch = 1,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .seqlen_q = seqlen_q,
                                 .seqlen_k = seqlen_k,
                                 .head_dim = d,
                                 .causal = true,
                                 .dtype = ATTN_BF16,
                                 .smem = smem,
                                 .sm = machine.sm,
                                 .sm_count = machine.sm_count};
}

// ---- tiles --------------------------------------------------------------------------------------

// d up to, shared memory from, and then: of the kernels for dK and dV, and the bytes of a block of
// either rung.
static const struct {
    int d;
    size_t smem;
    int Br, Bc, bytes[KERNELS];
} plans[] = {
    {64, KB_99, 32, 128, {65536, 66048}},     {128, KB_227, 64, 128, {230912, 230912}},
    {128, KB_163, 64, 128, {164864, 164864}}, {128, KB_99, 32, 64, {99072, 99072}},
    {256, KB_227, 64, 64, {214016, 214016}},  {256, KB_99, 32, 16, {98304, 84480}},
};
enum { PLANS = sizeof plans / sizeof *plans };

static void expect_plan(const struct attn_kernel *k, int number, int plan) {
    struct attn_problem p = problem(500, 500, plans[plan].d, plans[plan].smem);
    char text[200];
    int Br, Bc, bytes = plans[plan].bytes[number];
    k->describe(&p, ATTN_BACKWARD, text, sizeof text);
    cr_assert_eq(sscanf(strstr(text, "Br"), "Br %d, Bc %d", &Br, &Bc), 2, "%s", text);
    cr_expect(Br == plans[plan].Br && Bc == plans[plan].Bc, "%s", text);
    cr_assert_eq(sscanf(strstr(text, "take"), "take %d of", &bytes), 1, "%s", text);
    cr_expect_eq(bytes, plans[plan].bytes[number], "%s", text);
    p.smem = (size_t)bytes - 1; // so it takes a smaller one, or none
    k->describe(&p, ATTN_BACKWARD, text, sizeof text);
    cr_assert_eq(sscanf(strstr(text, "take"), "take %d of", &bytes), 1, "%s", text);
    cr_expect(bytes < plans[plan].bytes[number] ||
                  !k->supports(&p, ATTN_BACKWARD, text, sizeof text),
              "%s", text);
}

Test(step05_backward, tiles_are_those_of_the_shared_memory) {
    for (int number = 0; number < KERNELS; number++)
        for (int plan = 0; plan < PLANS; plan++)
            if (kernel(number)) expect_plan(kernel(number), number, plan);
}

// ---- every tiling is right, and has no bank conflicts -------------------------------------------

static void expect_right(const struct attn_kernel *k, struct attn_problem p,
                         enum data_family family) {
    char why[300];
    struct prepared in;
    struct result r[2];
    struct source source = {NULL, family, 42};
    cr_assert_eq(prepare(&p, ATTN_BACKWARD, &source, &in, why, sizeof why), RAN_RIGHT, "%s", why);
    run_kernel(k, &in, ATTN_BACKWARD, 1, NULL, r);
    cr_expect_eq(r->outcome, RAN_RIGHT,
                 "--kernel %s --seqlen-q %d --seqlen-k %d -d %d --sram %zu: %s", k->name,
                 p.seqlen_q, p.seqlen_k, p.head_dim, p.smem, r->why);
    cr_expect_eq(r->measured.bank_conflicts, 0, "--kernel %s -d %d --sram %zu: %llu bank conflicts",
                 k->name, p.head_dim, p.smem, (unsigned long long)r->measured.bank_conflicts);
    prepared_free(&in);
}

// Of other lengths than those of the tests of all kernels, which run with all the memory there is,
// and with as little as none of these tilings takes: several tiles of keys and of queries, the last
// ones not full; fewer keys than queries, so that the first queries see none; and more, and d
// padded; and a first query that sees all keys of some tile but its last, the 64th.
Test(step05_backward, every_tiling_is_right_and_without_bank_conflicts) {
    if (!machine.simulated) return;
    for (int number = 0; number < KERNELS; number++)
        for (int plan = 0; plan < PLANS; plan++) {
            if (!kernel(number)) continue;
            expect_right(kernel(number), problem(150, 140, plans[plan].d, plans[plan].smem),
                         DATA_NORMAL);
            expect_right(kernel(number), problem(70, 150, plans[plan].d - 16, plans[plan].smem),
                         DATA_NORMAL);
            expect_right(kernel(number), problem(20, 82, plans[plan].d, plans[plan].smem),
                         DATA_NORMAL);
        }
}

// Of three keys with logits of tens all are negative, for some queries. Then exp(0 - LSE), which a
// key past the end would weigh, is more than fp16 holds, and infinity times its zeros is NaN.
Test(step05_backward, keys_past_the_end_weigh_nothing) {
    for (int number = 0; number < KERNELS; number++)
        for (int plan = 0; plan < PLANS; plan++) {
            if (!kernel(number)) continue;
            struct attn_problem p = problem(40, 3, plans[plan].d, plans[plan].smem);
            p.causal = false, p.dtype = ATTN_FP16;
            expect_right(kernel(number), p, DATA_LARGE);
        }
}

// ---- the same bits ------------------------------------------------------------------------------

struct gradients {
    void *dQ, *dK, *dV; // on the host, in the problem's type
};

static void *blank(const char *name, size_t bytes) {
    void *device = machine_alloc(name, bytes);
    cr_assert_not_null(device);
    machine_poison(device, bytes);
    return device;
}

static void *download(void *device, size_t bytes) {
    void *host = malloc(bytes);
    machine_read(host, device, bytes);
    machine_free(device);
    return host;
}

static void run(void (*pass)(const struct attn_problem *, const struct attn_tensors *),
                const struct attn_problem *p, const struct attn_tensors *t) {
    static struct measurement m;
    machine_run(&(struct machine_work){pass, p, t}, &m);
    cr_assert_str_empty(m.error, "%s", m.error);
    cr_expect_eq(m.asked.atomic, 0, "the order of atomics is nobody's choice");
}

static struct gradients run_both(const struct attn_kernel *k, const struct prepared *in) {
    const struct attn_problem *p = &in->problem;
    size_t q = 2 * attn_q_elements(p), kv = 2 * attn_kv_elements(p);
    struct attn_buffer buffer[ATTN_MAX_BUFFERS];
    struct attn_tensors t = {.Q = in->Q, .K = in->K, .V = in->V, .dO = in->dO};
    t.O = blank("O", q), t.LSE = blank("LSE", attn_rows(p) * sizeof(float));
    t.dQ = blank("dQ", q), t.dK = blank("dK", kv), t.dV = blank("dV", kv);
    int buffers = k->buffers(p, buffer);
    for (int i = 0; i < buffers; i++) t.buffer[i] = blank(buffer[i].name, buffer[i].bytes);
    run(k->forward, p, &t);
    run(k->backward, p, &t);
    struct gradients g = {download(t.dQ, q), download(t.dK, kv), download(t.dV, kv)};
    for (int i = 0; i < buffers; i++) machine_free(t.buffer[i]);
    machine_free(t.O), machine_free(t.LSE);
    return g;
}

static void free_gradients(struct gradients *g) { free(g->dQ), free(g->dK), free(g->dV); }

// In the simulator, too, blocks run on several processors. But they start in order, and the last
// bits of fp32 seldom show in 16: so what would make the bits differ, an atomic, is looked for as
// well.
Test(step05_backward, two_runs_give_the_same_bits) {
    if (!kernel(DETERMINISTIC)) return;
    char why[300];
    struct prepared in;
    struct attn_problem p = problem(150, 300, 64, KB_99);
    struct source source = {NULL, DATA_NORMAL, 7};
    cr_assert_eq(prepare(&p, ATTN_BACKWARD, &source, &in, why, sizeof why), RAN_RIGHT, "%s", why);
    struct gradients first = run_both(kernel(DETERMINISTIC), &in);
    for (int n = 0; n < 2; n++) {
        struct gradients again = run_both(kernel(DETERMINISTIC), &in);
        cr_expect_arr_eq(first.dQ, again.dQ, 2 * attn_q_elements(&p), "dQ differs");
        cr_expect_arr_eq(first.dK, again.dK, 2 * attn_kv_elements(&p), "dK differs");
        cr_expect_arr_eq(first.dV, again.dV, 2 * attn_kv_elements(&p), "dV differs");
        free_gradients(&again);
    }
    free_gradients(&first);
    prepared_free(&in);
}

// ---- work and memory ----------------------------------------------------------------------------

// Each block adds a tile of dQ, in fp32 and padded, once for each tile of queries that it sees.
Test(step05_backward, only_the_fused_one_has_atomics) {
    struct attn_problem p = problem(1000, 1000, 120, KB_227);
    p.causal = false;
    if (kernel(DETERMINISTIC))
        cr_expect_eq(kernel(DETERMINISTIC)->model(&p, ATTN_BACKWARD).atomic, 0);
    if (kernel(FUSED)) // 2 heads, 8 tiles of keys, 16 tiles of queries
        cr_expect_eq(kernel(FUSED)->model(&p, ATTN_BACKWARD).atomic, 2 * 8 * 16 * 64 * 128 * 4);
}

// With a causal mask half of the tiles lie behind it. Those that straddle it are counted whole.
Test(step05_backward, tiles_that_see_nothing_are_skipped) {
    struct attn_problem masked = problem(8192, 8192, 64, KB_227), plain = masked;
    plain.causal = false;
    for (int number = 0; number < KERNELS; number++) {
        if (!kernel(number)) continue;
        double half = (double)kernel(number)->model(&masked, ATTN_BACKWARD).load,
               all = (double)kernel(number)->model(&plain, ATTN_BACKWARD).load;
        cr_expect(0.5 < half / all && half / all < 0.55, "%s: %g of %g", names[number], half, all);
    }
}

// Two numbers for each query, whose number is rounded up; and its sums, of the padded d.
Test(step05_backward, needs_memory_of_order_N) {
    static const size_t of_a_query[KERNELS] = {8, 8 + 4 * 128};
    struct attn_problem p = problem(1000, 3000, 72, KB_227);
    for (int number = 0; number < KERNELS; number++) {
        struct attn_buffer buffer[ATTN_MAX_BUFFERS];
        size_t bytes = 0;
        if (!kernel(number)) continue;
        for (int i = kernel(number)->buffers(&p, buffer) - 1; i >= 0; i--) {
            bytes += buffer[i].bytes;
            cr_expect_not(buffer[i].kept, "the forward leaves nothing but O and LSE");
            cr_expect_not(buffer[i].matrix);
        }
        cr_expect_eq(bytes, 2 * 1024 * of_a_query[number], "%s", names[number]);
    }
}

// Each head has 128 rows of numbers at least: so many heads are too many for 32 bits.
Test(step05_backward, rows_are_counted) {
    struct attn_problem p = {.batch = 65535,
                             .seqlen_q = 1,
                             .seqlen_k = 1,
                             .head_dim = 64,
                             .scale = 1,
                             .dtype = ATTN_BF16,
                             .smem = 227 << 10};
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        char why[200] = "";
        if (strcmp(k->name, "fa2-deterministic") && strcmp(k->name, "fa2-fused")) continue;
        p.heads = p.kv_heads = 256; // 65535 x 256 x 128 is just below 2^31
        cr_expect(k->supports(&p, ATTN_BACKWARD, why, sizeof why), "%s: %s", k->name, why);
        p.heads = p.kv_heads = 257;
        cr_expect_not(k->supports(&p, ATTN_BACKWARD, why, sizeof why), "%s", k->name);
        cr_expect(strstr(why, "batch x heads is 16842495"), "%s", why);
    }
}

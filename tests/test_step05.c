// test_step05.c - what step05 promises beyond right results: how many bank conflicts, how often
// shared memory is read, what is asked of HBM, when O is rescaled, the same bits in every run, and
// which shapes are refused.
//
// The kernels are looked up by name and asked through the contract (attn.h), as the harness does.
// Counts are exact: each was worked out by hand from what the kernel's header says.

#include "dtype.h"
#include "run.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static struct machine machine;

static void open_machine(void) {
    char why[300];
    cr_assert(machine_open(&(struct machine_options){0}, &machine, why, sizeof why), "%s", why);
}

TestSuite(step05, .init = open_machine);

static const char *const names[] = {"query-tiles", "tensor-cores", "swizzled", "async",
                                    "lean",        "split-k",      "split-q",  "fa2"};
enum { QUERY_TILES, TENSOR_CORES, SWIZZLED, ASYNC, LEAN, SPLIT_K, SPLIT_Q, FA2, KERNELS };

// Is it one of KERNEL=name,name, as in test_kernels.c? A fault in one needs no tests of the others.
static bool is_asked_for(const char *name) {
    const char *asked = getenv("KERNEL");
    char list[200], item[40];
    snprintf(list, sizeof list, ",%s,", asked ? asked : "");
    snprintf(item, sizeof item, ",%s,", name);
    return !asked || strstr(list, item);
}

// NULL if it is not linked in, or not asked for.
static const struct attn_kernel *kernel(int number) {
    for (int i = 0; i < attn_kernel_count(); i++)
        if (!strcmp(attn_kernel_at(i)->name, names[number]) && is_asked_for(names[number]))
            return attn_kernel_at(i);
    return NULL;
}

static struct attn_problem problem(int number, int seqlen_q, int seqlen_k, int d) {
    return (struct attn_problem){.batch = 1,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .seqlen_q = seqlen_q,
                                 .seqlen_k = seqlen_k,
                                 .head_dim = d,
                                 .scale = (float)(1 / sqrt(d)),
                                 .dtype = number == QUERY_TILES ? ATTN_FP32 : ATTN_FP16,
                                 .smem = machine.smem,
                                 .sm = machine.sm,
                                 .sm_count = machine.sm_count};
}

// ---- runs ---------------------------------------------------------------------------------------

struct answer {
    float *O, *LSE;
};
static struct measurement measured; // of the last run; large

static float *download(const struct attn_problem *p, void *device, uint64_t elements) {
    float *values = malloc(elements * sizeof *values);
    void *packed = malloc(elements * attn_dtype_bytes(p->dtype));
    machine_read(packed, device, elements * attn_dtype_bytes(p->dtype));
    dtype_unpack(p->dtype, packed, values, elements);
    free(packed);
    return values;
}

static struct answer run_on(int number, const struct attn_problem *p, const struct inputs *in) {
    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p), rows = attn_rows(p);
    void *Q = upload(p, "Q", in->Q, q), *K = upload(p, "K", in->K, kv),
         *V = upload(p, "V", in->V, kv), *O = machine_alloc("O", q * attn_dtype_bytes(p->dtype));
    float *LSE = machine_alloc("LSE", rows * sizeof *LSE);
    machine_poison(O, q * attn_dtype_bytes(p->dtype));
    machine_poison(LSE, rows * sizeof *LSE);
    struct attn_tensors t = {.Q = Q, .K = K, .V = V, .O = O, .LSE = LSE};
    machine_run(&(struct machine_work){kernel(number)->forward, p, &t}, &measured);
    cr_assert_str_empty(measured.error, "--kernel %s: %s", names[number], measured.error);
    struct answer a = {download(p, O, q), malloc(rows * sizeof *a.LSE)};
    machine_read(a.LSE, LSE, rows * sizeof *a.LSE);
    void *all[] = {Q, K, V, O, LSE};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) machine_free(all[i]);
    return a;
}

static struct inputs normal(const struct attn_problem *p) {
    struct inputs in;
    char why[300];
    cr_assert(inputs_make(p, DATA_NORMAL, 42, false, &in, why, sizeof why), "%s", why);
    return in;
}

static void free_answer(struct answer *a) { free(a->O), free(a->LSE); }

// For what is counted, `measured`.
static void run(int number, struct attn_problem p) {
    struct inputs in = normal(&p);
    struct answer a = run_on(number, &p, &in);
    free_answer(&a);
    inputs_free(&in);
}

static bool takes(int number, const struct attn_problem *p) {
    char why[300];
    return kernel(number)->supports(p, ATTN_FORWARD, why, sizeof why);
}

// ---- bank conflicts -----------------------------------------------------------------------------

// Rung 2's rows of d elements all start in the same bank. Of 8 rows a load of a pair takes the same
// 4 banks: 8 wavefronts, 7 more than without conflicts. For V it is 2 bytes of 8 columns, so 4
// banks, in 4 rows: 3 more. For 16 queries and 64 keys a warp loads
//
//     pairs of Q and K          d / 16 times   4 + 8 * 2 = 20
//     elements of V, 2 bytes    4 times        d / 8 * 4
//
// Copies of whole rows have no conflicts.
static uint64_t conflicts_of_a_warp(uint64_t d) { return d / 16 * 20 * 7 + 4 * (d / 8 * 4) * 3; }

static void expect_conflicts(const struct attn_problem *p, uint64_t warps, uint64_t tiles) {
    run(TENSOR_CORES, *p);
    cr_expect_eq(measured.bank_conflicts,
                 warps * tiles * conflicts_of_a_warp((uint64_t)p->head_dim),
                 "d %d, causal %d: %llu", p->head_dim, p->causal,
                 (unsigned long long)measured.bank_conflicts);
}

Test(step05, plain_tiles_have_the_conflicts_of_their_layout) {
    if (!machine.simulated || !kernel(TENSOR_CORES)) return;
    for (int d = 64; d <= 128; d += 64) {
        struct attn_problem p = problem(TENSOR_CORES, 128, 192, d);
        expect_conflicts(&p, 8, 3);
        // A block of which 10 queries exist. With a mask, those that do not would see more keys.
        p.seqlen_q = 10, p.causal = true;
        expect_conflicts(&p, 4, 3);
    }
}

Test(step05, the_other_rungs_have_no_bank_conflicts) {
    if (!machine.simulated) return;
    for (int number = 0; number < KERNELS; number++)
        for (int d = 64; d <= 256; d *= 2) {
            struct attn_problem p = problem(number, 100, 150, d); // tiles that are not full
            if (number == TENSOR_CORES || !kernel(number) || !takes(number, &p)) continue;
            run(number, p);
            cr_expect_eq(measured.bank_conflicts, 0, "--kernel %s -d %d: %llu", names[number], d,
                         (unsigned long long)measured.bank_conflicts);
        }
}

// ---- how often shared memory is read ------------------------------------------------------------

// Wavefronts, of 128 bytes each, that the last run took: for fragments of Q, K and V, and all.
struct wavefronts {
    uint64_t Q, K, V, all;
};

// The three ldmatrix of swizzle.h fetch fragments of Q, of K and of V, in this order.
static struct wavefronts count_wavefronts(void) {
    struct profile_line *lines, *fragment[3] = {NULL};
    struct wavefronts w = {0};
    int count = machine_profile(&lines), fragments = 0;
    for (int i = 0; i < count; i++) {
        if (!lines[i].shared) continue;
        w.all += lines[i].cost;
        if (!strstr(lines[i].file, "swizzle.h") || strcmp(lines[i].kind, "load")) continue;
        cr_assert_lt(fragments, 3);
        int at = fragments++;
        for (; at > 0 && fragment[at - 1]->line > lines[i].line; at--)
            fragment[at] = fragment[at - 1];
        fragment[at] = &lines[i];
    }
    cr_assert_eq(fragments, 3);
    w.Q = fragment[0]->cost, w.K = fragment[1]->cost, w.V = fragment[2]->cost;
    free(lines);
    return w;
}

static struct wavefronts wavefronts_of(int number) {
    char why[300];
    struct machine_options profile = {.profile = true};
    cr_assert(machine_open(&profile, &machine, why, sizeof why), "%s", why);
    run(number, problem(number, 256, 256, 64));
    return count_wavefronts();
}

// At d = 64 a row is one wavefront. There are 4 tiles of 64 keys. A block copies its rows of Q, and
// all of K and V, into shared memory.
enum { TILES = 4, KEYS = 64, COPY_OF_KV = 2 * TILES * KEYS };

static void expect_wavefronts(int number, struct wavefronts want) {
    if (!machine.simulated || !kernel(number)) return;
    struct wavefronts w = wavefronts_of(number);
    cr_expect_eq(w.Q, want.Q, "--kernel %s: %llu", names[number], (unsigned long long)w.Q);
    cr_expect_eq(w.K, want.K, "--kernel %s: %llu", names[number], (unsigned long long)w.K);
    cr_expect_eq(w.V, want.V, "--kernel %s: %llu", names[number], (unsigned long long)w.V);
    cr_expect_eq(w.all, want.all, "--kernel %s: %llu", names[number], (unsigned long long)w.all);
}

// 16 warps, each with 16 queries, read each tile of K and V.
Test(step05, wavefronts_with_16_queries_a_warp) {
    uint64_t Q = 16 * TILES * 16, K = 16 * TILES * KEYS, copies = 4 * (64 + COPY_OF_KV);
    expect_wavefronts(LEAN, (struct wavefronts){Q, K, K, Q + 2 * K + copies});
}

// 8 warps, each with 32 queries: half as many for K and V, and the same for Q.
Test(step05, wavefronts_with_32_queries_a_warp) {
    uint64_t Q = 8 * TILES * 32, K = 8 * TILES * KEYS, copies = 2 * (128 + COPY_OF_KV);
    expect_wavefronts(SPLIT_Q, (struct wavefronts){Q, K, K, Q + 2 * K + copies});
}

// 16 warps, each with 64 queries and 16 keys of each tile. In the end the 4 warps of a block write
// their O of 64 rows of 256 bytes, each but the first after reading the sum so far, and the sum is
// read once more: 4 + 3 + 1 times. Of m and l a request has 8 rows: each warp writes its own 8
// times each, reads the m of 4 warps 8 times, and at the end m and l of 4 warps twice.
Test(step05, wavefronts_with_the_keys_split_between_the_warps) {
    uint64_t Q = 16 * TILES * 64, K = 16 * TILES * 16, copies = 4 * (64 + COPY_OF_KV);
    uint64_t merge = 4 * ((4 + 3 + 1) * 64 * 2 + 4 * (2 * 8 + 8 * 4 + 2 * 2 * 4));
    expect_wavefronts(SPLIT_K, (struct wavefronts){Q, K, K, Q + 2 * K + copies + merge});
}

// ---- what is asked of HBM -----------------------------------------------------------------------

// 256 queries, 256 keys, rows of 128 bytes: Q once, K and V by each block, as far as it sees. O
// leaves a quad at a time, 16 bytes of a sector of 32, and so takes twice its size; but fa2 writes
// whole sectors.
Test(step05, asks_for_keys_and_values_once_for_each_block) {
    static const struct {
        int number;
        uint64_t keys, causal_keys; // that all blocks ask for
        uint64_t O;                 // in rows
    } want[] = {
        {TENSOR_CORES, 4 * 256, 64 + 128 + 192 + 256, 2 * 256},
        {SWIZZLED, 4 * 256, 64 + 128 + 192 + 256, 2 * 256},
        {ASYNC, 4 * 256, 64 + 128 + 192 + 256, 2 * 256},
        {LEAN, 4 * 256, 64 + 128 + 192 + 256, 2 * 256},
        {SPLIT_K, 4 * 256, 64 + 128 + 192 + 256, 2 * 256},
        {SPLIT_Q, 2 * 256, 128 + 256, 2 * 256},
        {FA2, 2 * 256, 128 + 256, 256},
    };
    for (size_t n = 0; n < sizeof want / sizeof *want; n++)
        for (int causal = 0; causal < 2 && kernel(want[n].number); causal++) {
            struct attn_problem p = problem(want[n].number, 256, 256, 64);
            p.causal = causal;
            run(want[n].number, p);
            uint64_t keys = causal ? want[n].causal_keys : want[n].keys;
            cr_expect_eq(measured.asked.load, 128 * (256 + 2 * keys),
                         "--kernel %s, causal %d: %llu", names[want[n].number], causal,
                         (unsigned long long)measured.asked.load);
            cr_expect_eq(measured.asked.store, 128 * want[n].O + 4 * 256, "--kernel %s: %llu",
                         names[want[n].number], (unsigned long long)measured.asked.store);
        }
}

// Of 256 queries the first 224 see none of 32 keys: their blocks ask for Q alone.
Test(step05, blocks_without_keys_ask_for_none) {
    for (int number = TENSOR_CORES; number < KERNELS; number++) {
        struct attn_problem p = problem(number, 256, 32, 64);
        p.causal = true;
        if (!kernel(number)) continue;
        run(number, p);
        cr_expect_eq(measured.asked.load, 128 * (256 + 2 * 32), "--kernel %s: %llu", names[number],
                     (unsigned long long)measured.asked.load);
        cr_expect_eq(kernel(number)->model(&p, ATTN_FORWARD).load, measured.asked.load);
    }
}

// ---- when O is rescaled -------------------------------------------------------------------------

// With scale = log 2 and whole numbers as products q.k, weights are powers of two. An fp16 holds
// them down to 2^-24, and what is lost below is nothing beside a sum of at least 1: only O is
// rounded. Query i is a unit vector and selects column i % 8 of K, so that neighbouring rows of a
// warp have different maxima: the largest logit of each 64 keys in turn.
enum { COURSES = 8, STEPS = 6 };
static const int course[COURSES][STEPS] = {
    {0, 0, 0, 0, 0, 0},             // stays
    {0, 7, 14, 21, 28, 35},         // grows by less than 8 each time
    {0, 8, 16, 24, 32, 40},         // by 8
    {0, 9, 18, 27, 36, 45},         // by more
    {35, 28, 21, 14, 7, 0},         // falls
    {100, 60, 20, -20, -60, -100},  // so that nothing is left of what came last
    {-100, -60, -20, 20, 60, 100},  // or first
    {-50, -62, -50, -38, -50, -46}, // up and down, below zero
};

static struct inputs courses(const struct attn_problem *p) {
    struct inputs in = normal(p);
    memset(in.Q, 0, attn_q_elements(p) * sizeof *in.Q);
    for (int i = 0; i < p->seqlen_q; i++) in.Q[i * p->head_dim + i % COURSES] = 1;
    for (int j = 0; j < p->seqlen_k; j++)
        for (int c = 0; c < p->head_dim; c++) {
            in.K[j * p->head_dim + c] = (float)(course[c % COURSES][j / 64] - j % 3);
            in.V[j * p->head_dim + c] = (float)((3 * j + c) % 8 + 1);
        }
    return in;
}

static void expect_rows(int number, const struct attn_problem *p, const struct answer *a,
                        const double *O, const double *LSE) {
    for (int i = 0; i < p->seqlen_q; i++) {
        cr_assert(a->LSE[i] == LSE[i] ||
                      fabs(a->LSE[i] - LSE[i]) <= 2 * dtype_ulp(ATTN_FP32, LSE[i]) + 0x1p-22,
                  "--kernel %s, Nq %d, %s: LSE[%d] is %.9g, not %.9g", names[number], p->seqlen_q,
                  attn_dtype_name(p->dtype), i, a->LSE[i], LSE[i]);
        for (int c = 0; c < p->head_dim; c++) {
            double want = O[i * p->head_dim + c], got = a->O[i * p->head_dim + c];
            cr_assert(fabs(got - want) <= (want ? dtype_ulp(p->dtype, want) : 0),
                      "--kernel %s, Nq %d, %s: O[%d][%d] is %g, not %g", names[number], p->seqlen_q,
                      attn_dtype_name(p->dtype), i, c, got, want);
        }
    }
}

static void follow_courses(int number, const struct attn_problem *p) {
    struct inputs in = courses(p);
    double *O = malloc(attn_q_elements(p) * sizeof *O), *LSE = malloc(attn_rows(p) * sizeof *LSE),
           max_logit;
    cr_assert(oracle_forward(p, &in, O, LSE, &max_logit));
    struct answer a = run_on(number, p, &in);
    expect_rows(number, p, &a, O, LSE);
    free_answer(&a);
    free(O), free(LSE);
    inputs_free(&in);
}

// With the mask the first 70 of 400 queries see no key, and the others see whole tiles of -infinity
// beside those with their keys.
Test(step05, follows_every_course_of_the_maximum) {
    for (int number = TENSOR_CORES; number < KERNELS; number++)
        for (int causal = 0; causal < 2 && kernel(number); causal++) {
            struct attn_problem p = problem(number, causal ? 400 : 16, 330, 64);
            p.causal = causal, p.scale = (float)M_LN2;
            follow_courses(number, &p);
        }
}

// Where weights are measured from shows in the smallest: below 2^-24 an fp16 is 0. The first half
// of the keys that a kernel meets have logits of 0. Of the other half, every 16th has `growth`, and
// the others -17. Only these have a V: 2^15. Measured from 0 their weights are 2^-17, and from 8
// they would be 2^-25. The query `i` alone sees all this: the others are 0, as their logits are.
static struct inputs growing_by(int growth, int i, const struct attn_problem *p, bool from_last) {
    struct inputs in = normal(p);
    memset(in.Q, 0, attn_q_elements(p) * sizeof *in.Q);
    memset(in.K, 0, attn_kv_elements(p) * sizeof *in.K);
    memset(in.V, 0, attn_kv_elements(p) * sizeof *in.V);
    in.Q[i * p->head_dim] = 4;
    for (int n = p->seqlen_k / 2; n < p->seqlen_k; n++) {
        int j = from_last ? p->seqlen_k - 1 - n : n;
        in.K[j * p->head_dim] = (float)(n % 16 ? -17 : growth);
        in.V[j * p->head_dim] = n % 16 ? 0x1p15f : 0;
    }
    return in;
}

static double first_of_O(int number, int growth, int i) {
    struct attn_problem p = problem(number, i + 1, 256, 64);
    p.scale = (float)M_LN2 / 4;
    struct inputs in = growing_by(growth, i, &p, number == FA2);
    struct answer a = run_on(number, &p, &in);
    double O = a.O[i * p.head_dim];
    free_answer(&a);
    inputs_free(&in);
    return O;
}

// An upper row of a warp, and a lower one.
Test(step05, rescales_only_when_a_maximum_has_grown_by_more_than_8) {
    static const int lazy[] = {LEAN, SPLIT_K, SPLIT_Q, FA2};
    const double want = 120 * 0x1p-17 * 0x1p15 / (128 + 8 * 256);
    for (int n = 0; n < 4; n++)
        for (int i = 0; i < 32 && kernel(lazy[n]); i += 24) {
            double O = first_of_O(lazy[n], 8, i);
            cr_expect(fabs(O - want) <= dtype_ulp(ATTN_FP16, want),
                      "--kernel %s, query %d: %g, not %g", names[lazy[n]], i, O, want);
            O = first_of_O(lazy[n], 9, i);
            cr_expect_eq(O, 0, "--kernel %s, query %d: %g", names[lazy[n]], i, O);
        }
}

// ---- the ends of tiles --------------------------------------------------------------------------

static void expect_right(int number, const struct attn_problem *p) {
    char why[300];
    struct prepared in;
    struct result r[2];
    struct source source = {NULL, DATA_NORMAL, 42};
    cr_assert_eq(prepare(p, ATTN_FORWARD, &source, &in, why, sizeof why), RAN_RIGHT, "%s", why);
    run_kernel(kernel(number), &in, ATTN_FORWARD, 1, NULL, r);
    cr_expect_eq(r->outcome, RAN_RIGHT, "--kernel %s --seqlen-q %d --seqlen-k %d%s: %s",
                 names[number], p->seqlen_q, p->seqlen_k, p->causal ? " --causal" : "", r->why);
    prepared_free(&in);
}

// Whether a tile needs a mask is decided by one of its elements, for 16 rows or more: with the last
// key, or the last one that the first row sees, one before the last of a tile, and the last. 112
// are for the mask alone: the first row sees so many of 128, where K ends with a tile.
Test(step05, masks_every_tile_that_needs_it) {
    static const int keys[] = {63, 64, 112, 127, 128};
    for (int number = LEAN; number < KERNELS; number++)
        for (int n = 0; n < 5 && kernel(number); n++) {
            struct attn_problem p = problem(number, 17, keys[n], 64);
            expect_right(number, &p);
            p.seqlen_k += p.seqlen_q - 1, p.causal = true;
            expect_right(number, &p);
        }
}

// Of 70 queries 20 see no key, in a block that has some. What stands for their maximum must stay a
// number, or minus infinity, when it is multiplied by a scale above 1. (For c = 17 log2(e) the
// product c (FLT_MAX / c) is rounded to infinity, for 2 log2(e) it is not.)
Test(step05, rows_without_keys_at_a_large_scale) {
    static const float scales[] = {2, 17};
    for (int number = TENSOR_CORES; number < KERNELS; number++)
        for (int n = 0; n < 2 && kernel(number); n++) {
            struct attn_problem p = problem(number, 70, 50, 64);
            p.causal = true, p.scale = scales[n];
            expect_right(number, &p);
        }
}

// Every logit is far below 0, and all are equal: O is the mean of V, whose rows are ones.
static void expect_ones(int number, enum attn_dtype dtype, float q, bool causal) {
    struct attn_problem p = problem(number, 20, 70, 64);
    p.dtype = dtype, p.causal = causal;
    struct inputs in = normal(&p);
    for (uint64_t n = 0; n < attn_q_elements(&p); n++) in.Q[n] = q;
    for (uint64_t n = 0; n < attn_kv_elements(&p); n++) in.K[n] = -q, in.V[n] = 1;
    struct answer a = run_on(number, &p, &in);
    for (uint64_t n = 0; n < attn_q_elements(&p); n++)
        cr_assert_eq(a.O[n], 1, "--kernel %s: O is %g", names[number], a.O[n]);
    free_answer(&a);
    inputs_free(&in);
}

Test(step05, logits_far_below_zero) {
    for (int number = TENSOR_CORES; number < KERNELS; number++)
        for (int causal = 0; causal < 2 && kernel(number); causal++) {
            expect_ones(number, ATTN_FP16, 40, causal);      // S = -102400
            expect_ones(number, ATTN_BF16, 0x1p60f, causal); // S = -2^126
        }
}

// Two tiles of queries or more for each of two heads: the block's number says which, in one order
// without a mask and in another with it.
Test(step05, every_block_has_its_tile_and_head) {
    for (int number = 0; number < KERNELS; number++)
        for (int causal = 0; causal < 2 && kernel(number); causal++) {
            struct attn_problem p = problem(number, 129, 17, 64);
            p.heads = 2, p.causal = causal;
            expect_right(number, &p);
        }
}

// ---- the same bits ------------------------------------------------------------------------------

Test(step05, two_runs_give_the_same_bits) {
    for (int number = 0; number < KERNELS; number++) {
        if (!kernel(number)) continue;
        struct attn_problem p = problem(number, 100, 130, 64);
        p.heads = 2, p.causal = true;
        struct inputs in = normal(&p);
        struct answer first = run_on(number, &p, &in), second = run_on(number, &p, &in);
        cr_expect_arr_eq(first.O, second.O, attn_q_elements(&p) * sizeof(float), "--kernel %s: O",
                         names[number]);
        cr_expect_arr_eq(first.LSE, second.LSE, attn_rows(&p) * sizeof(float), "--kernel %s: LSE",
                         names[number]);
        free_answer(&first), free_answer(&second);
        inputs_free(&in);
    }
}

// ---- which shapes are taken ---------------------------------------------------------------------

Test(step05, fa2_takes_every_d_in_99_KB) {
    for (int d = 8; d <= 256 && kernel(FA2); d += 8) {
        struct attn_problem p = problem(FA2, 9, 9, d);
        p.smem = 99 * 1024; // of sm_86 and sm_89
        cr_expect(takes(FA2, &p), "d %d", d);
    }
}

// What it says that a block takes is what a block has.
Test(step05, takes_the_shared_memory_that_it_says) {
    for (int number = 0; number < KERNELS; number++)
        for (int d = 64; d <= 256; d *= 2) {
            struct attn_problem p = problem(number, 9, 9, d);
            if (!kernel(number) || !takes(number, &p)) continue;
            char why[300] = "";
            size_t least = 0;
            run(number, p);
            p.smem = measured.smem_per_block - 1;
            cr_expect_not(kernel(number)->supports(&p, ATTN_FORWARD, why, sizeof why));
            const char *at = strstr(why, "a block needs ");
            cr_assert(at && sscanf(at, "a block needs at least %zu", &least) == 1, "%s", why);
            cr_expect_eq(least, measured.smem_per_block, "--kernel %s -d %d: %zu", names[number], d,
                         measured.smem_per_block);
        }
}

Test(step05, the_other_rungs_take_64_and_128) {
    for (int number = 0; number < FA2; number++)
        for (int d = 8; d <= 256 && kernel(number); d += 8) {
            struct attn_problem p = problem(number, 9, 9, d);
            char why[300] = "", named[20];
            snprintf(named, sizeof named, "d = %d:", d);
            bool taken = kernel(number)->supports(&p, ATTN_FORWARD, why, sizeof why);
            cr_expect_eq(taken, d == 64 || (d == 128 && number != SPLIT_K), "--kernel %s -d %d",
                         names[number], d);
            cr_expect(taken || strstr(why, named), "--kernel %s: %s", names[number], why);
        }
}

// Rung 1 is of plain CUDA C; its tiles of d = 128 take more than the 64 KB of a Turing card.
Test(step05, query_tiles_runs_on_turing) {
    if (!kernel(QUERY_TILES)) return;
    struct attn_problem p = problem(QUERY_TILES, 9, 9, 64);
    p.sm = 75, p.smem = 65536;
    run(QUERY_TILES, p);
    struct result r = {.pass = ATTN_FORWARD};
    p.head_dim = 128;
    cr_expect_not(can_run(kernel(QUERY_TILES), &p, &r));
    cr_expect_eq(r.outcome, NOT_POSSIBLE);
    cr_expect_str_eq(r.why,
                     "a block needs at least 77568 bytes of shared memory at d = 128, and "
                     "this machine gives 65536; try a smaller -d, or DEVICE=sim, which gives "
                     "227 KB");
    p.smem_given = true;
    cr_expect_not(can_run(kernel(QUERY_TILES), &p, &r));
    cr_expect_eq(r.outcome, NOT_SUPPORTED);
    cr_expect_str_eq(r.why, "a block needs at least 77568 bytes of shared memory at d = 128, and "
                            "--sram gives 65536; give a larger --sram, or try a smaller -d");
}

Test(step05, cards_before_8_0_are_refused) {
    for (int number = TENSOR_CORES; number < KERNELS; number++) {
        if (!kernel(number)) continue;
        char why[300];
        struct prepared in;
        struct result r[2];
        struct attn_problem p = problem(number, 9, 9, 64);
        p.sm = 75;
        struct source source = {NULL, DATA_NORMAL, 42};
        cr_assert_eq(prepare(&p, ATTN_FORWARD, &source, &in, why, sizeof why), RAN_RIGHT);
        run_kernel(kernel(number), &in, ATTN_FORWARD, 1, NULL, r);
        cr_expect_eq(r->outcome, NOT_POSSIBLE, "--kernel %s", names[number]);
        cr_expect(strstr(r->why, "8.0") && strstr(r->why, "7.5"), "%s", r->why);
        prepared_free(&in);
    }
}

// ---- the command line ---------------------------------------------------------------------------

// Runs the step's program; what it prints, errors too, is in `text`. Gives its exit status.
static int shell(const char *arguments, char *text, size_t size) {
    const char *build = getenv("BUILD");
    char command[300];
    snprintf(command, sizeof command, "%s/sim/step05 %s 2>&1", build ? build : "build", arguments);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    text[fread(text, 1, size - 1, pipe)] = '\0';
    return WEXITSTATUS(pclose(pipe));
}

Test(command_line_of_step05, every_d_runs_in_99_KB) {
    static char text[1 << 14];
    for (int d = 64; d <= 256; d *= 2) {
        char line[80];
        snprintf(line, sizeof line, "-n 70 --kernel fa2 --sram 99K -d %d", d);
        cr_expect_eq(shell(line, text, sizeof text), 0, "%s", text);
    }
}

Test(command_line_of_step05, too_little_shared_memory_is_refused_with_the_least) {
    static char text[1 << 14];
    for (int number = 0; number < KERNELS; number++) {
        char line[80];
        int least = 0;
        snprintf(line, sizeof line, "-n 16 --kernel %s --sram 1K", names[number]);
        cr_expect_eq(shell(line, text, sizeof text), 2, "%s", text);
        const char *at = strstr(text, "a block needs ");
        cr_assert(at && sscanf(at, "a block needs at least %d", &least) == 1, "%s", text);
        snprintf(line, sizeof line, "-n 16 --kernel %s --sram %d", names[number], least);
        cr_expect_eq(shell(line, text, sizeof text), 0, "%s", text);
    }
}

Test(command_line_of_step05, a_d_that_a_rung_does_not_take_is_refused) {
    static char text[1 << 14];
    cr_expect_eq(shell("-n 16 -d 72 --kernel lean", text, sizeof text), 2, "%s", text);
    cr_expect(strstr(text, "--kernel fa2 takes all"), "%s", text);
    cr_expect_eq(shell("-n 16 -d 72 --kernel lean,fa2", text, sizeof text), 2, "%s", text);
    cr_expect_eq(shell("-n 16 -d 72", text, sizeof text), 0, "%s", text); // fa2 runs
}

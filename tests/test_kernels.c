// test_kernels.c - every registered kernel on every kind of shape and input, on either machine.
//
// FULL=1 takes more cases, PART=2/3 every third of them, from the second on; KERNEL=name,name only
// these kernels.

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

TestSuite(kernels, .init = open_machine);

// ---- shapes and inputs --------------------------------------------------------------------------

static const struct {
    int q, k;
} lengths[] = {{1, 1}, {33, 33}, {64, 64}, {130, 130}, {37, 100}, {100, 37}, {1, 77}, {77, 1}};
static const struct { int batch, q, kv; } heads[] = {{1, 1, 1}, {2, 2, 2}, {1, 5, 1}, {2, 4, 2}};
static const int dims[] = {8, 40, 64, 128, 256};
static const size_t memory[] = {0, 49152}; // for a block: all that the machine has; 48 KB

// A case is one level of each factor. TYPE: of a kernel's data types the first or the second.
enum factor { LENGTH, FAMILY, HEADS, DIM, MASK, MEMORY, TYPE, FACTORS };
static const int levels[FACTORS] = {8, DATA_FAMILIES, 4, 5, 2, 2, 2};
enum { MAX_CASES = 400 };

static struct attn_problem problem_of(const int level[FACTORS], enum attn_dtype dtype) {
    struct attn_problem p = {
        .batch = heads[level[HEADS]].batch,
        .heads = heads[level[HEADS]].q,
        .kv_heads = heads[level[HEADS]].kv,
        .seqlen_q = lengths[level[LENGTH]].q,
        .seqlen_k = lengths[level[LENGTH]].k,
        .head_dim = dims[level[DIM]],
        .causal = level[MASK],
        .smem = memory[level[MEMORY]],
        .dtype = dtype,
    };
    return p;
}

// ---- which cases --------------------------------------------------------------------------------
//
// There are 7680, of which a run of all tests takes some 60, so that every two levels of different
// factors meet in one of them; with FULL=1 some 300, so that every three levels do: all but those
// of length, heads and d, which meet in pairs. Heads say where rows lie, and the largest shapes,
// each with each number of heads, would take as long as all the rest. (Most faults in software need
// one or two parameters to show, and few more than three: Kuhn, Wallace, Gallo 2004.) Then the type
// is no factor: each case is run in each type.
static int factors_at(int strength) { return strength == 3 ? TYPE : FACTORS; }

// The levels of some factors (bits) as one number; below 8 * 6 * 5 for any three of ours.
enum { MAX_TUPLES = 8 * 6 * 5 };
static int tuple(unsigned factors, const int level[FACTORS]) {
    int number = 0;
    for (int f = 0; f < FACTORS; f++)
        if (factors >> f & 1) number = number * levels[f] + level[f];
    return number;
}

// Must all levels of these factors meet?
static bool is_promised(unsigned factors, int strength) {
    return __builtin_popcount(factors) == strength &&
           factors != (1u << LENGTH | 1u << HEADS | 1u << DIM);
}

struct cases {
    int count, level[MAX_CASES][FACTORS];
    bool met[1 << FACTORS][MAX_TUPLES];
};

static int count_new(const struct cases *c, int strength, const int level[FACTORS]) {
    int count = 0;
    for (unsigned factors = 0; factors < 1u << factors_at(strength); factors++)
        count += is_promised(factors, strength) && !c->met[factors][tuple(factors, level)];
    return count;
}

static void add_case(struct cases *c, const int level[FACTORS]) {
    cr_assert_lt(c->count, MAX_CASES);
    memcpy(c->level[c->count++], level, sizeof c->level[0]);
    for (unsigned factors = 0; factors < 1 << FACTORS; factors++)
        if (__builtin_popcount(factors) <= 3) c->met[factors][tuple(factors, level)] = true;
}

// What a case costs: about the number of products, and as much as 230000 of them to set it up.
static uint64_t cost(const int level[FACTORS]) {
    struct attn_problem p = problem_of(level, ATTN_FP32);
    return 230000 + (uint64_t)p.batch * (uint64_t)p.heads * (uint64_t)p.seqlen_q *
                        (uint64_t)p.seqlen_k * (uint64_t)p.head_dim;
}

// Greedily: the next case is the one that brings most for its cost. (The square makes for fewer
// cases, which cost less together than many cheap ones.)
static void choose_cases(struct cases *c, int strength) {
    *c = (struct cases){0};
    int product = 1;
    for (int f = 0; f < factors_at(strength); f++) product *= levels[f];
    for (uint64_t best = 1; best;) {
        int best_level[FACTORS], level[FACTORS];
        best = 0;
        for (int number = 0; number < product; number++) {
            for (int f = 0, rest = number; f < FACTORS; rest /= levels[f++])
                level[f] = rest % levels[f];
            uint64_t gain = (uint64_t)count_new(c, strength, level);
            uint64_t worth = gain * gain * 10000000000 / cost(level);
            if (worth <= best) continue;
            best = worth;
            memcpy(best_level, level, sizeof level);
        }
        if (best) add_case(c, best_level);
    }
}

static bool full(void) { return getenv("FULL") != NULL; }

static const struct cases *cases(void) {
    static struct cases chosen;
    if (!chosen.count) choose_cases(&chosen, full() ? 3 : 2);
    return &chosen;
}

// ---- do they cover what is promised? Counted without the helpers above --------------------------

static bool meet(const struct cases *c, const int factor[3], const int level[3]) {
    for (int n = 0; n < c->count; n++) {
        const int *at = c->level[n];
        if (at[factor[0]] == level[0] && at[factor[1]] == level[1] && at[factor[2]] == level[2])
            return true;
    }
    return false;
}

// Counts the triples of levels of these three factors that no case has. With a factor twice, pairs.
static int count_unmet(const struct cases *c, int f, int g, int h) {
    int unmet = 0;
    for (int a = 0; a < levels[f]; a++)
        for (int b = 0; b < levels[g]; b++)
            for (int i = 0; i < levels[h]; i++)
                if (h != g || i == b)
                    unmet += !meet(c, (const int[3]){f, g, h}, (const int[3]){a, b, i});
    return unmet;
}

static struct cases of_test;

static void expect_every_pair(int factors) {
    for (int f = 0; f < factors; f++)
        for (int g = f + 1; g < factors; g++)
            cr_expect_eq(count_unmet(&of_test, f, g, g), 0, "factors %d, %d", f, g);
}

Test(kernels, the_chosen_cases_cover_every_pair) {
    choose_cases(&of_test, 2);
    cr_expect_leq(of_test.count, 64, "%d cases", of_test.count);
    expect_every_pair(FACTORS);
}

Test(kernels, the_chosen_cases_of_a_full_run_cover_every_triple) {
    int pairs_only = 0;
    choose_cases(&of_test, 3);
    cr_expect_leq(of_test.count, 300, "%d cases", of_test.count);
    expect_every_pair(TYPE);
    for (int f = 0; f < TYPE; f++)
        for (int g = f + 1; g < TYPE; g++)
            for (int h = g + 1; h < TYPE; h++) {
                if (f == LENGTH && g == HEADS && h == DIM)
                    pairs_only++;
                else
                    cr_expect_eq(count_unmet(&of_test, f, g, h), 0, "factors %d %d %d", f, g, h);
            }
    cr_expect_eq(pairs_only, 1);
}

// ---- every kernel -------------------------------------------------------------------------------

static const char *shape_text(const struct attn_problem *p) {
    static char text[160];
    snprintf(text, sizeof text,
             "-b %d -H %d --kv-heads %d --seqlen-q %d --seqlen-k %d -d %d%s --sram %zu --dtype %s",
             p->batch, p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim,
             p->causal ? " --causal" : "", p->smem, attn_dtype_name(p->dtype));
    return text;
}

// A shape that a kernel does not take is none of its faults, nor is a card that it cannot run on.
static bool passed(const struct result *r) {
    return r->outcome == RAN_RIGHT || r->outcome == NOT_SUPPORTED ||
           (r->outcome == NOT_POSSIBLE && !machine.simulated);
}

enum { BOTH = ATTN_FORWARD | ATTN_BACKWARD };

// The passes that the kernel has of these, the backward after its own forward; with `alone` once
// more without it. The worst outcome.
static enum outcome expect_right(const struct attn_kernel *k, unsigned passes, bool alone,
                                 struct attn_problem p, const struct source *source) {
    char why[300];
    struct prepared in;
    enum outcome worst = RAN_RIGHT;
    passes &= k->passes;
    const unsigned runs[] = {passes, ATTN_BACKWARD};
    p.smem_given = p.smem;
    if (!p.smem) p.smem = machine.smem;
    p.sm = machine.sm;
    p.sm_count = machine.sm_count;
    cr_assert_eq(prepare(&p, passes, source, &in, why, sizeof why), RAN_RIGHT, "%s", why);
    for (int i = 0; i < (passes == BOTH && alone ? 2 : 1); i++) {
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

// PART=2/3: of what comes after `make test` CI has no time for all, and takes another part with
// each commit.
static void choose_part(int *first, int *step) {
    const char *part = getenv("PART");
    *first = *step = 1;
    if (part)
        cr_assert(sscanf(part, "%d/%d", first, step) == 2 && *first >= 1 && *first <= *step,
                  "PART=%s: should be 1/3, 2/3 or 3/3, or of another number of parts", part);
    --*first;
}

// Is the case to be run in this type of the kernel? A third type goes with the first.
static bool is_for(const int level[FACTORS], const struct attn_kernel *k, enum attn_dtype dtype) {
    unsigned before = k->dtypes & ((1u << dtype) - 1);
    bool alone = k->dtypes == 1u << dtype;
    return full() || alone || __builtin_popcount(before) % 2 == level[TYPE];
}

static void every_case(const struct attn_kernel *k, enum attn_dtype dtype) {
    const int enough = getenv("CRITERION_FAIL_FAST") ? 1 : 5; // examples of what is wrong
    int right = 0, wrong = 0, first, step;
    choose_part(&first, &step);
    for (int n = first; n < cases()->count && wrong < enough; n += step) {
        const int *level = cases()->level[n];
        if (!is_for(level, k, dtype)) continue;
        struct source source = {NULL, (enum data_family)level[FAMILY], 42};
        enum outcome outcome = expect_right(k, BOTH, n % 4 == 0, problem_of(level, dtype), &source);
        right += outcome == RAN_RIGHT;
        wrong += outcome == RAN_WRONG || outcome == RAN_UNMODELLED;
    }
    // Of all cases, that is: a rung that takes d = 64 alone may have none in a part of them.
    cr_expect(right + wrong || step > 1 || !machine.simulated,
              "--kernel %s --dtype %s takes none of the shapes", k->name, attn_dtype_name(dtype));
}

// Is it one of those in KERNEL=name,name, or are all asked for?
static bool is_asked_for(const struct attn_kernel *k) {
    const char *at = getenv("KERNEL");
    size_t length = strlen(k->name);
    for (; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && !memcmp(at, k->name, length)) return true;
    return !getenv("KERNEL");
}

static void every_kernel(void (*test)(const struct attn_kernel *, enum attn_dtype)) {
    int tested = 0;
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        if (!is_asked_for(k)) continue;
        tested++;
        for (int t = 0; t < ATTN_DTYPES; t++)
            if (k->dtypes >> t & 1) test(k, (enum attn_dtype)t);
    }
    cr_expect_gt(tested, 0, "no kernel to test; KERNEL must name some that are linked in");
}

Test(kernels, all_are_right_on_every_shape_and_input) { every_kernel(every_case); }

static void real_input(const struct attn_kernel *k, enum attn_dtype dtype) {
    expect_right(k, ATTN_FORWARD, false, (struct attn_problem){.dtype = dtype},
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
    expect_right(k, BOTH, true, p, &(struct source){NULL, DATA_NORMAL, 42});
    // And so large that the first query, which sees one key, has a maximum far below -1000. The
    // backward is given the right O here: what the forward's is off by in its last bit, 1000 times
    // that is in dQ.
    p.seqlen_q = p.seqlen_k = 64, p.scale = 1000;
    expect_right(k, ATTN_FORWARD, false, p, &(struct source){NULL, DATA_NORMAL, 4});
    expect_right(k, ATTN_BACKWARD, false, p, &(struct source){NULL, DATA_NORMAL, 4});
}

Test(kernels, all_are_right_with_a_large_scale) { every_kernel(large_scale); }

// A little more than the 64 or 128 columns that a kernel may be compiled for, and more columns than
// one tile of them with the last tile not full: no d above is of that kind.
static void uneven_d(const struct attn_kernel *k, enum attn_dtype dtype) {
    struct attn_problem p = {
        .batch = 1, .heads = 1, .kv_heads = 1, .seqlen_q = 33, .seqlen_k = 70, .dtype = dtype};
    for (int d = 72; d <= 200; d += 64)
        for (int causal = 0; causal < 2; causal++) {
            p.head_dim = d, p.causal = causal;
            expect_right(k, BOTH, false, p, &(struct source){NULL, DATA_NORMAL, 42});
        }
}

Test(kernels, all_are_right_at_an_uneven_d) { every_kernel(uneven_d); }

// With one key more than queries, the last query of each tile sees the first key of the next tile
// of keys, and no other query of its tile does.
static void one_key_more(const struct attn_kernel *k, enum attn_dtype dtype) {
    struct attn_problem p = {.batch = 1,
                             .heads = 1,
                             .kv_heads = 1,
                             .seqlen_q = 129,
                             .seqlen_k = 130,
                             .head_dim = 64,
                             .causal = true,
                             .smem = 49152,
                             .dtype = dtype};
    expect_right(k, BOTH, false, p, &(struct source){NULL, DATA_NORMAL, 42});
}

Test(kernels, all_are_right_with_one_key_more_than_queries) { every_kernel(one_key_more); }

// Longer than the cases: with no maximum subtracted, large inputs overflow at any length, but what
// depends on the length may begin only here.
static void longer(const struct attn_kernel *k, enum attn_dtype dtype) {
    struct attn_problem p = {.batch = 1,
                             .heads = 1,
                             .kv_heads = 1,
                             .seqlen_q = 300,
                             .seqlen_k = 300,
                             .head_dim = 40,
                             .dtype = dtype};
    expect_right(k, ATTN_FORWARD, false, p, &(struct source){NULL, DATA_LARGE, 42});
}

Test(kernels, all_are_right_at_a_longer_length) { every_kernel(longer); }

// ---- an older card -----------------------------------------------------------------------------

// The capability that a kernel's step needs, as README.md has it. Step05's first rung needs none.
static const char *capability_of(const struct attn_kernel *k) {
    if (!strncmp(k->step, "step06", 6)) return "9.0";
    return strncmp(k->step, "step05", 6) || k->rung == 1 ? NULL : "8.0 or newer";
}

// A Turing card's owner is told what is missing there, not to change a shape that would not help.
Test(kernels, a_turing_card_runs_what_it_can_or_is_named) {
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        for (int d = 8; d <= 256; d *= 2) {
            static struct result r; // large
            struct attn_problem p = {1, 1, 1, 16, 16, .head_dim = d, .scale = 1, .smem = 65536};
            char line[160];
            p.sm = 75, p.sm_count = 1;
            r.pass = k->passes & ATTN_BACKWARD ? ATTN_BACKWARD : ATTN_FORWARD;
            while (!(k->dtypes >> p.dtype & 1)) p.dtype++;
            bool runs = can_run(k, &p, &r);
            if (!capability_of(k)) {
                cr_expect(runs || d != 64, "--kernel %s -d %d: %s", k->name, d, r.why);
                cr_expect(runs || !strstr(r.why, "capability"), "--kernel %s: %s", k->name, r.why);
                continue;
            }
            snprintf(line, sizeof line,
                     "needs compute capability %s, this GPU has 7.5; DEVICE=sim runs it",
                     capability_of(k));
            cr_expect(!runs && r.outcome == NOT_POSSIBLE, "--kernel %s -d %d", k->name, d);
            cr_expect_str_eq(r.why, line, "--kernel %s -d %d: %s", k->name, d, r.why);
        }
    }
}

// ---- limits -------------------------------------------------------------------------------------

// The one place where a kernel is asked itself, not through run_kernel.
static bool takes(const struct attn_kernel *k, unsigned pass, const struct attn_problem *p,
                  char why[300]) {
    return k->supports(p, pass, why, 300);
}

// What it says that a block takes; 0 if any amount of shared memory will do, or none.
static size_t least_memory(const struct attn_kernel *k, unsigned pass, struct attn_problem p) {
    char why[300] = "";
    size_t least = 0;
    p.smem = machine.smem;
    if (!k->supports || !takes(k, pass, &p, why)) return 0; // this shape is not for it
    p.smem = 0;
    if (takes(k, pass, &p, why)) return 0;
    cr_assert_eq(sscanf(why, "a block needs at least %zu bytes of", &least), 1, "%s: %s", k->name,
                 why);
    return least;
}

// With the least it says, it is taken and does not use more (the simulator refuses a launch that
// does); with one byte less it is refused.
static void expect_least_is_enough(const struct attn_kernel *k, unsigned pass,
                                   struct attn_problem p) {
    char why[300] = "";
    size_t least = least_memory(k, pass, p);
    if (!least || least > machine.smem) return;
    p.smem = least;
    enum outcome outcome = expect_right(k, pass, false, p, &(struct source){NULL, DATA_NORMAL, 42});
    cr_expect(outcome == RAN_RIGHT || !machine.simulated, "--kernel %s %s: refused, or wrong",
              k->name, shape_text(&p));
    p.smem = least - 1;
    cr_expect_not(takes(k, pass, &p, why), "--kernel %s %s: taken", k->name, shape_text(&p));
}

static void least_memory_at_every_d(const struct attn_kernel *k, enum attn_dtype dtype) {
    static const int around[] = {8, 64, 72, 128, 136, 256}; // both sides of what kernels pad d to
    for (size_t n = 0; n < sizeof around / sizeof *around; n++)
        for (unsigned pass = ATTN_FORWARD; pass <= ATTN_BACKWARD; pass *= 2) {
            struct attn_problem p = {.batch = 1,
                                     .heads = 1,
                                     .kv_heads = 1,
                                     .seqlen_q = 9,
                                     .seqlen_k = 9,
                                     .head_dim = around[n],
                                     .dtype = dtype,
                                     .sm = machine.sm,
                                     .sm_count = machine.sm_count};
            if (k->passes & pass) expect_least_is_enough(k, pass, p);
        }
}

Test(kernels, all_are_right_about_the_least_shared_memory) {
    every_kernel(least_memory_at_every_d);
}

// Kernels whose gridDim.y, at most 65535, counts tiles of this many keys. No test can run so many
// keys, so the kernels are only asked.
static const struct {
    const char *name;
    int tile;
} limited[] = {{"naive", 32},   {"tiled", 32},        {"tiled-16", 16},   {"tiled-8", 8},
               {"blocked", 64}, {"three-passes", 64}, {"two-passes", 64}, {"one-pass", 64}};

static void most_keys(const struct attn_kernel *k, enum attn_dtype dtype) {
    for (size_t n = 0; n < sizeof limited / sizeof *limited; n++) {
        if (strcmp(k->name, limited[n].name)) continue;
        char why[300] = "", most[24];
        struct attn_problem p = {.batch = 1,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .seqlen_q = 1,
                                 .seqlen_k = 65535 * limited[n].tile,
                                 .head_dim = 64,
                                 .dtype = dtype,
                                 .smem = machine.smem,
                                 .sm = machine.sm,
                                 .sm_count = machine.sm_count};
        snprintf(most, sizeof most, " %d,", p.seqlen_k++);
        cr_expect_not(takes(k, ATTN_FORWARD, &p, why), "--kernel %s %s: taken", k->name,
                      shape_text(&p));
        cr_expect(strstr(why, most), "--kernel %s: %s, without%s", k->name, why, most);
        p.seqlen_k--;
        cr_expect(takes(k, ATTN_FORWARD, &p, why), "--kernel %s %s: %s", k->name, shape_text(&p),
                  why);
    }
}

Test(kernels, all_are_right_about_the_most_keys) { every_kernel(most_keys); }

// ---- bank conflicts -----------------------------------------------------------------------------

// Kernels whose chapter says that they have none, at any length, and at these d. Only the simulator
// is asked: a GPU's counter is off by a little (common/README.md).
static const char *const without_conflicts[] = {"tiled", "blocked", "three-passes", "two-passes",
                                                "one-pass"};
static const int common_dims[] = {64, 128};

static void expect_no_conflicts(const struct attn_kernel *k, int length, int d) {
    char why[300];
    struct prepared in;
    struct result r[2];
    struct attn_problem p = {.batch = 1,
                             .heads = 1,
                             .kv_heads = 1,
                             .seqlen_q = length,
                             .seqlen_k = length,
                             .head_dim = d,
                             .smem = machine.smem,
                             .sm = machine.sm,
                             .sm_count = machine.sm_count};
    struct source source = {NULL, DATA_NORMAL, 42};
    cr_assert_eq(prepare(&p, ATTN_FORWARD, &source, &in, why, sizeof why), RAN_RIGHT, "%s", why);
    run_kernel(k, &in, ATTN_FORWARD, 1, NULL, r);
    cr_expect_eq(r->measured.bank_conflicts, 0, "--kernel %s -n %d -d %d: %llu bank conflicts",
                 k->name, length, d, (unsigned long long)r->measured.bank_conflicts);
    prepared_free(&in);
}

Test(kernels, all_are_right_about_their_bank_conflicts) {
    if (!machine.simulated) return;
    for (int i = 0; i < attn_kernel_count(); i++)
        for (size_t n = 0; n < sizeof without_conflicts / sizeof *without_conflicts; n++) {
            const struct attn_kernel *k = attn_kernel_at(i);
            if (strcmp(k->name, without_conflicts[n]) || !is_asked_for(k)) continue;
            for (int d = 0; d < 2; d++)
                for (int length = 64; length <= 100; length += 36)
                    expect_no_conflicts(k, length, common_dims[d]);
        }
}

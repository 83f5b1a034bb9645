// test_step03.c - what step03 promises beyond right results: the tiles that it chooses for the
// shared memory it may use, the least that it can do with, no bank conflicts where d is a multiple
// of 32 and few elsewhere, memory of O(N).
//
// The kernels are looked up by name and asked through the contract (attn.h), as the harness does.

#include "run.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static struct machine machine;

static void open_machine(void) {
    char why[300];
    cr_assert(machine_open(&(struct machine_options){0}, &machine, why, sizeof why), "%s", why);
}

TestSuite(step03, .init = open_machine);

static const char *const names[] = {"fused", "fused-wide", "algorithm1"};
enum { FUSED, FUSED_WIDE, ALGORITHM1, KERNELS };
static const int dims[] = {8, 40, 64, 128, 256};
enum { DIMS = sizeof dims / sizeof *dims };

// NULL if it is not linked in: a program with a fault planted in it has one of the two files.
static const struct attn_kernel *kernel(int number) {
    for (int i = 0; i < attn_kernel_count(); i++)
        if (!strcmp(attn_kernel_at(i)->name, names[number])) return attn_kernel_at(i);
    return NULL;
}

static struct attn_problem problem(int seqlen_q, int seqlen_k, int d, size_t smem) {
    return (struct attn_problem){.batch = 1,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .seqlen_q = seqlen_q,
                                 .seqlen_k = seqlen_k,
                                 .head_dim = d,
                                 .scale = 1,
                                 .smem = smem,
                                 .sm = machine.sm,
                                 .sm_count = machine.sm_count};
}

// ---- tiles --------------------------------------------------------------------------------------

// The bytes of a block, counted once more: rows of Q and O, of K and V, of S with their padding,
// and three numbers for each row.
static size_t bytes(int Br, int Bc, int d) {
    int S_pitch = Bc % 16 == 0 ? Bc + 8 : Bc;
    return 4 * (size_t)(2 * Br * (d + 4) + 2 * Bc * (d + 4) + Br * S_pitch + 3 * Br);
}

static int at_least_1_tile(int length) { return (length + 7) / 8 * 8; }
static int min(int a, int b) { return a < b ? a : b; }

struct tiles {
    int Br, Bc;
    size_t bytes;
};

// What the kernel says about its tiles.
static struct tiles told(const struct attn_kernel *k, const struct attn_problem *p) {
    struct tiles t = {0};
    char text[300];
    k->describe(p, ATTN_FORWARD, text, sizeof text);
    cr_assert_eq(sscanf(text, "Br %d, Bc %d take %zu of", &t.Br, &t.Bc, &t.bytes), 3, "%s", text);
    return t;
}

static void expect_largest(int number, const struct attn_problem *p) {
    const struct attn_kernel *k = kernel(number);
    if (!k) return;
    struct tiles t = told(k, p);
    bool queries_outside = number != ALGORITHM1;
    int outer = queries_outside ? t.Br : t.Bc, inner = queries_outside ? t.Bc : t.Br;
    int outer_length = at_least_1_tile(queries_outside ? p->seqlen_q : p->seqlen_k);
    int inner_length = at_least_1_tile(queries_outside ? p->seqlen_k : p->seqlen_q);
    int most_inner = min(inner_length, p->head_dim), next = outer + 8;
    size_t next_bytes = queries_outside ? bytes(next, min(next, most_inner), p->head_dim)
                                        : bytes(min(next, most_inner), next, p->head_dim);
    char what[160];
    snprintf(what, sizeof what, "%s, Nq %d, Nk %d, d %d, %zu bytes: Br %d, Bc %d", k->name,
             p->seqlen_q, p->seqlen_k, p->head_dim, p->smem, t.Br, t.Bc);
    cr_expect(outer >= 8 && outer % 8 == 0, "%s: not a multiple of 8", what);
    cr_expect_eq(inner, min(outer, most_inner), "%s: the inner tile", what);
    cr_expect_eq(t.bytes, bytes(t.Br, t.Bc, p->head_dim), "%s: take %zu", what, t.bytes);
    cr_expect_leq(t.bytes, p->smem, "%s: too large", what);
    cr_expect(outer == outer_length || next_bytes > p->smem, "%s: 8 rows more would fit", what);
}

// The bytes from which on the outer tile has this many rows.
static size_t bytes_with_outer(int number, const int lengths[2], int d, int outer) {
    bool queries_outside = number != ALGORITHM1;
    int inner = min(outer, min(d, at_least_1_tile(lengths[queries_outside])));
    return queries_outside ? bytes(outer, inner, d) : bytes(inner, outer, d);
}

// At each size at which a larger tile begins to fit, and one byte below it.
static void expect_largest_for_all_sizes(int number, const int lengths[2], int d, int below) {
    for (int outer = 8;; outer += 8) {
        size_t smem = bytes_with_outer(number, lengths, d, outer);
        if (smem > machine.smem) break;
        struct attn_problem p = problem(lengths[0], lengths[1], d, smem - (size_t)below);
        if (p.smem >= bytes(8, 8, d)) expect_largest(number, &p);
    }
}

Test(step03, tiles_are_the_largest_that_fit) {
    static const int lengths[][2] = {{1, 1}, {33, 1000}, {1000, 33}, {4096, 4096}};
    for (int number = 0; number < KERNELS; number++)
        for (int d = 0; d < DIMS; d++)
            for (int n = 0; n < 4; n++)
                for (int below = 0; below < 2; below++)
                    expect_largest_for_all_sizes(number, lengths[n], dims[d], below);
}

// ---- the least shared memory --------------------------------------------------------------------

Test(step03, one_byte_below_the_least_is_refused_with_the_least_named) {
    for (int number = 0; number < KERNELS; number++)
        for (int d = 0; d < DIMS; d++) {
            const struct attn_kernel *k = kernel(number);
            if (!k) continue;
            size_t least = bytes(8, 8, dims[d]);
            struct attn_problem p = problem(100, 100, dims[d], least);
            char why[300] = "", number_text[24];
            cr_expect(k->supports(&p, ATTN_FORWARD, why, sizeof why), "%s, d %d: %s", k->name,
                      dims[d], why);
            p.smem = least - 1;
            cr_expect_not(k->supports(&p, ATTN_FORWARD, why, sizeof why), "%s, d %d", k->name,
                          dims[d]);
            snprintf(number_text, sizeof number_text, " %zu ", least);
            cr_expect(strstr(why, number_text), "%s: %s, without%s", k->name, why, number_text);
        }
}

// ---- runs ---------------------------------------------------------------------------------------

static struct result run(const struct attn_kernel *k, struct attn_problem p) {
    char why[300];
    struct prepared in;
    struct result r[2];
    struct source source = {NULL, DATA_NORMAL, 42};
    cr_assert_eq(prepare(&p, ATTN_FORWARD, &source, &in, why, sizeof why), RAN_RIGHT, "%s", why);
    cr_assert_eq(run_kernel(k, &in, ATTN_FORWARD, 1, NULL, r), 1);
    cr_expect_eq(r[0].outcome, RAN_RIGHT, "--kernel %s -d %d --sram %zu: %s", k->name, p.head_dim,
                 p.smem, r[0].why);
    prepared_free(&in);
    return r[0];
}

Test(step03, the_least_is_enough) {
    for (int number = 0; number < KERNELS; number++)
        for (int d = 0; d < DIMS; d++)
            if (kernel(number)) run(kernel(number), problem(20, 37, dims[d], bytes(8, 8, dims[d])));
}

// And a head more queries than two turns of the block's threads.
Test(step03, a_tile_may_have_more_rows_than_the_block_threads) {
    for (int number = 0; number < KERNELS; number++)
        if (kernel(number)) run(kernel(number), problem(600, 300, 8, machine.smem));
}

// ---- bank conflicts -----------------------------------------------------------------------------

// Runs the kernel with each size of tile that this length has and that fits.
static void with_every_tile(int number, int length, int d, void (*expect)(const struct result *)) {
    const int lengths[] = {length, length};
    for (int outer = 8; kernel(number) && outer <= at_least_1_tile(length); outer += 8) {
        size_t smem = bytes_with_outer(number, lengths, d, outer);
        if (smem > machine.smem) break;
        struct result r = run(kernel(number), problem(length, length, d, smem));
        cr_assert(r.measured.has_conflicts);
        expect(&r);
        free(r.profile);
    }
}

// The simulator counts wavefronts beyond the ideal.
static void expect_no_conflicts(const struct result *r) {
    cr_expect_eq(r->measured.bank_conflicts, 0, "--kernel %s, %s: %lu conflicts", r->kernel->name,
                 r->tiles, (unsigned long)r->measured.bank_conflicts);
}

Test(step03, there_are_no_bank_conflicts) {
    for (int number = 0; number < KERNELS; number++)
        for (int d = 64; d <= 128; d += 64) with_every_tile(number, 72, d, expect_no_conflicts);
}

static void expect_few_conflicts(const struct result *r) {
    uint64_t wavefronts = 0;
    for (int i = 0; i < r->profile_lines; i++)
        if (r->profile[i].shared) wavefronts += r->profile[i].cost;
    uint64_t conflicts = r->measured.bank_conflicts;
    cr_expect_leq(100 * conflicts, 5 * wavefronts, "--kernel %s, %s: %lu conflicts in %lu",
                  r->kernel->name, r->tiles, (unsigned long)conflicts, (unsigned long)wavefronts);
}

// Where d is no multiple of 32, eight neighbouring lanes that copy 16 bytes each may straddle two
// rows, whose padding lies between: no pitch can avoid a conflict there. At most 4.4% of the
// wavefronts are such; with rows that are not padded it is several times that.
Test(step03, there_are_few_bank_conflicts_at_an_uneven_d) {
    char why[300];
    struct machine_options profile = {.profile = true}; // which counts wavefronts, too
    cr_assert(machine_open(&profile, &machine, why, sizeof why), "%s", why);
    for (int number = 0; number < KERNELS; number++)
        for (int d = 40; d <= 72; d += 32) with_every_tile(number, 72, d, expect_few_conflicts);
}

Test(step03, the_workspace_grows_with_N_and_not_with_its_square) {
    for (int number = 0; number < KERNELS; number++) {
        const struct attn_kernel *k = kernel(number);
        if (!k) continue;
        size_t per_query = number == ALGORITHM1 ? 8 : 0; // m and l
        for (int N = 64; N <= 128; N *= 2)
            cr_expect_eq(run(k, problem(N, N, 64, machine.smem)).workspace, per_query * (size_t)N,
                         "--kernel %s -n %d", k->name, N);
    }
}

// Tiles in which no query sees a key are skipped. (Rung 1 loads their Q all the same.)
Test(step03, tiles_of_S_that_nobody_sees_ask_for_nothing) {
    for (int number = 0; number < KERNELS; number++) {
        const struct attn_kernel *k = kernel(number);
        if (!k) continue;
        // 8 tiles of queries, 1 of keys, which only the last of them sees.
        struct attn_problem p = problem(64, 8, 64, bytes(8, 8, 64));
        p.causal = true;
        struct result r = run(k, p);
        uint64_t row = 64 * sizeof(float), tile = 8 * row;
        uint64_t load = 2 * tile, store = 64 * row + 64 * 4; // K and V; O and LSE
        if (number == ALGORITHM1) {
            load += 2 * tile + 2 * 8 * 4 + 2 * 64 * 4; // Q, O, m, l of the tile; m, l for the LSE
            store += tile + 2 * 8 * 4 + 2 * 64 * 4;    // O, m, l of the tile; m, l at the start
        } else {
            load += 64 * row; // Q
        }
        cr_expect_eq(r.measured.asked.load, load, "--kernel %s: %lu", k->name,
                     (unsigned long)r.measured.asked.load);
        cr_expect_eq(r.measured.asked.store, store, "--kernel %s: %lu", k->name,
                     (unsigned long)r.measured.asked.store);
    }
}

// ---- what the chapter shows ---------------------------------------------------------------------

// The text in a column of a line of CSV, none of which has a comma in quotes before the bytes.
static const char *cell(const char *header, const char *line, const char *column) {
    static char text[8][80];
    static int next;
    char *out = text[next++ % 8];
    size_t length = strlen(column);
    while (*header && !(strncmp(header, column, length) == 0 && strchr(",\n", header[length]))) {
        header += strcspn(header, ","), header += *header == ',';
        line += strcspn(line, ","), line += *line == ',';
    }
    cr_assert(*header, "no column %s", column);
    snprintf(out, 80, "%.*s", (int)strcspn(line, ","), line);
    return out;
}

static unsigned long long number(const char *header, const char *line, const char *column) {
    return strtoull(cell(header, line, column), NULL, 10);
}

Test(step03, the_bytes_against_M_are_those_of_todays_kernels) {
    FILE *file = fopen("notes/results/sim_sram.csv", "r");
    char header[2000], line[2000];
    int rows = 0;
    cr_assert(file && fgets(header, sizeof header, file));
    while (fgets(line, sizeof line, file)) {
        rows++;
        for (int k = 0; k < KERNELS; k++) {
            if (!kernel(k) || strcmp(cell(header, line, "kernel"), names[k])) continue;
            struct attn_problem p = problem(
                (int)number(header, line, "seqlen_q"), (int)number(header, line, "seqlen_k"),
                (int)number(header, line, "head_dim"), (size_t)number(header, line, "smem_limit"));
            struct attn_traffic model = kernel(k)->model(&p, ATTN_FORWARD);
            cr_expect_eq(number(header, line, "asked_load"), model.load, "make sram: %s", line);
            cr_expect_eq(number(header, line, "asked_store"), model.store, "make sram: %s", line);
        }
    }
    cr_expect_eq(rows, 20);
    fclose(file);
}

// ---- the command line ---------------------------------------------------------------------------

// Runs the step's program; what it prints, errors too, is in `text`. Gives its exit status.
static int shell(const char *arguments, char *text, size_t size) {
    const char *build = getenv("BUILD");
    char command[300];
    snprintf(command, sizeof command, "%s/sim/step03 %s 2>&1", build ? build : "build", arguments);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    text[fread(text, 1, size - 1, pipe)] = '\0';
    return WEXITSTATUS(pclose(pipe));
}

Test(command_line_of_step03, too_little_shared_memory_on_the_command_line) {
    static char text[1 << 14];
    static const char why[] =
        "a block needs at least 9056 bytes of shared memory at d = 64, and --sram gives 9055;";
    static const char named[] = "-n 16 -d 64 --kernel fused --sram";
    char line[80];
    snprintf(line, sizeof line, "%s 9055", named);
    cr_expect_eq(shell(line, text, sizeof text), 2, "%s", text);
    cr_expect(strstr(text, "--kernel fused: ") && strstr(text, why), "%s", text);
    snprintf(line, sizeof line, "%s 9056", named);
    cr_expect_eq(shell(line, text, sizeof text), 0, "%s", text);
    // Without a name: a row for each kernel, and nothing that could run.
    cr_expect_eq(shell("-n 16 -d 64 --sram 9055", text, sizeof text), 2, "%s", text);
    char *row = strstr(text, why);
    cr_expect(row && strstr(row + 1, why), "%s", text);
}

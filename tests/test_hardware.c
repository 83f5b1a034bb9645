// test_hardware.c - the simulator's counts against an H200's, to the byte.
//
// FULL=1 takes all lengths, which are up to 1024 and take about a minute.

#include "hardware.h"
#include "sim/sim.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { D = 64 };

struct traffic {
    uint64_t loads, stores; // bytes in whole sectors
};

static struct traffic counted(void) {
    static struct sim_counts c;
    struct traffic t = {0};
    sim_counts(&c);
    for (int i = 0; i < c.buffers; i++) {
        t.loads += 32 * c.buffer[i].sectors[SIM_LOAD];
        t.stores += 32 * c.buffer[i].sectors[SIM_STORE];
    }
    return t;
}

static struct traffic run(const char *kernel, int N, bool causal) {
    size_t bytes = (size_t)N * D * sizeof(float);
    float *Q = sim_alloc("Q", bytes), *K = sim_alloc("K", bytes), *V = sim_alloc("V", bytes);
    float *O = sim_alloc("O", bytes), *S = sim_alloc("S", (size_t)N * (size_t)N * sizeof(float));
    for (int i = 0; i < N * D; i++) Q[i] = K[i] = V[i] = (float)(i % 13 - 6) / 8;
    sim_set_written(Q, true), sim_set_written(K, true), sim_set_written(V, true);
    sim_reset(&(struct sim_options){0});
    if (!strcmp(kernel, "naive"))
        hardware_naive(Q, K, V, S, O, N);
    else
        hardware_flash(Q, K, V, O, N, causal, !strcmp(kernel, "flash32") ? 32 : 64);
    cr_assert_str_empty(sim_error(), "%s", sim_error());
    struct traffic t = counted();
    sim_free(Q), sim_free(K), sim_free(V), sim_free(O), sim_free(S);
    return t;
}

static bool full(void) { return getenv("FULL") != NULL; }

// All kernels at N = 256, where every tile is full, and one of them at 1000, where the last is not.
static bool is_quick(const char *kernel, int N) {
    return N <= 256 || (N == 1000 && !strcmp(kernel, "flash64"));
}

Test(hardware, asks_for_the_same_bytes_as_an_h200) {
    FILE *f = fopen("tests/h200_counts.csv", "r");
    cr_assert(f, "run the tests from the top of the repository");
    char line[200], kernel[20];
    int N, causal, rows = 0;
    uint64_t loads, stores;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%19[^,],%d,%d,%" SCNu64 ",%" SCNu64, kernel, &N, &causal, &loads,
                   &stores) != 5)
            continue;
        if (!full() && !is_quick(kernel, N)) continue;
        struct traffic t = run(kernel, N, causal);
        cr_expect_eq(t.loads, loads, "%s N %d causal %d: loads %" PRIu64 ", H200 %" PRIu64, kernel,
                     N, causal, t.loads, loads);
        cr_expect_eq(t.stores, stores, "%s N %d causal %d: stores %" PRIu64 ", H200 %" PRIu64,
                     kernel, N, causal, t.stores, stores);
        rows++;
    }
    fclose(f);
    cr_expect_eq(rows, full() ? 15 : 7, "%d rows of the file were compared", rows);
}

// At N = 65, as at 1001, the lanes of softmax's loops make different numbers of turns. An H200
// asked for more at 1001 (notes/results/h200_hardware.csv: 2455658976 bytes), because nvcc unrolls
// those loops raggedly.
Test(hardware, warns_where_it_cannot_be_equal) {
    struct traffic t = run("naive", full() ? 1001 : 65, false);
    if (full()) cr_expect_eq(t.loads, 2453052000, "%" PRIu64, t.loads);
    cr_expect(strstr(sim_warning(), "leave the loop at tests/hardware.cu:"), "'%s'", sim_warning());
}

// ---- single instructions (count_instructions.cu) ------------------------------------------------

// One line of what count_instructions prints, or of the file with an H200's numbers.
struct pattern {
    char name[80];
    double traffic[5], conflicts; // load, store, atomic, tma_load, tma_store
};
enum { MOST_PATTERNS = 100 };

static const struct pattern *find(const struct pattern *p, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (!strcmp(p[i].name, name)) return &p[i];
    return NULL;
}

// Each line behind the heading is a pattern of its own, without a remark that something went wrong.
static int read_patterns(FILE *f, struct pattern *p) {
    char line[300];
    int n = 0;
    while (n < MOST_PATTERNS && fgets(line, sizeof line, f)) {
        if (line[0] != '"') continue;
        double *t = p[n].traffic;
        int end = 0;
        sscanf(line, "\"%79[^\"]\",%lf,%lf,%lf,%lf,%lf,%lf,\"\"\n%n", p[n].name, t, t + 1, t + 2,
               t + 3, t + 4, &p[n].conflicts, &end);
        cr_assert(end && !line[end], "'%s' is no pattern", line);
        cr_assert_null(find(p, n, p[n].name), "%s: twice", p[n].name);
        n++;
    }
    return n;
}

// The card's counter of conflicts does not see the stores of cp.async (sim/async.c).
static double unseen_conflicts(const char *pattern) {
    if (!strcmp(pattern, "cp.async rows of 128")) return 28;
    if (!strcmp(pattern, "cp.async lanes 16 apart share sectors")) return 4;
    return 0;
}

Test(hardware, counts_each_instruction_as_an_h200) {
    static struct pattern gpu[MOST_PATTERNS], sim[MOST_PATTERNS];
    const char *build = getenv("BUILD");
    char command[300];
    snprintf(command, sizeof command, "%s/sim/count_instructions", build ? build : "build");
    FILE *f = fopen("notes/results/h200_instructions.csv", "r");
    cr_assert(f, "run the tests from the top of the repository");
    int rows = read_patterns(f, gpu);
    fclose(f);
    cr_assert_geq(rows, 54);
    cr_assert(f = popen(command, "r"));
    int patterns = read_patterns(f, sim);
    cr_assert_eq(pclose(f), 0, "make %s", command);
    cr_assert_eq(patterns, rows, "the file has other patterns than the program");
    for (int i = 0; i < rows; i++) {
        const struct pattern *s = find(sim, patterns, gpu[i].name);
        cr_assert(s, "%s: not printed", gpu[i].name);
        for (int k = 0; k < 5; k++)
            cr_expect_eq(s->traffic[k], gpu[i].traffic[k], "%s, column %d: %.2f, H200 %.2f",
                         s->name, k + 1, s->traffic[k], gpu[i].traffic[k]);
        double unseen = unseen_conflicts(s->name);
        cr_expect_eq(s->conflicts, gpu[i].conflicts + unseen, "%s: conflicts", s->name);
        cr_expect(!unseen || gpu[i].conflicts == 0, "%s: now they are counted", s->name);
    }
}

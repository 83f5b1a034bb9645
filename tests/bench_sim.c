// bench_sim.c - what one counted access costs in the simulator, as CSV (make bench-sim).
//
// One OS thread, so that time over accesses is a cost and not a throughput. The kernels' own
// arithmetic is in it. Each is run three times; the fastest counts, since anything else on the
// machine only ever adds.

#include "hardware.h"
#include "sim/sim.h"

#include <stdio.h>
#include <time.h>

enum { D = 64 };
static float *Q, *K, *V, *S, *O;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void naive(int N) { hardware_naive(Q, K, V, S, O, N); }
static void flash(int N) { hardware_flash(Q, K, V, O, N, false, 64); }

static char date[16], cpu[128] = "unknown";

// "model name	: AMD EPYC 9654 96-Core Processor"
static void find_cpu(void) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    for (char line[256]; file && fgets(line, sizeof line, file);)
        if (sscanf(line, "model name : %127[^\n]", cpu) == 1) break;
    if (file) fclose(file);
}

// `accesses`: how many there are; --fast does not count them, so they come from the run before.
static void bench(const char *name, void (*kernel)(int), int N, bool fast, double *accesses) {
    static struct sim_counts counts;
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        sim_reset(&(struct sim_options){.fast = fast, .workers = 1});
        double start = seconds();
        kernel(N);
        double time = seconds() - start;
        if (time < best) best = time;
    }
    sim_counts(&counts);
    if (!fast) *accesses = (double)counts.accesses;
    if (sim_error()[0]) fprintf(stderr, "%s\n", sim_error());
    printf("%s,\"%s\",%s,%d,%s,%.0f,%.3f,%.1f\n", date, cpu, name, N, fast ? "--fast" : "counted",
           *accesses, best, 1e9 * best / *accesses);
}

int main(void) {
    enum { MOST = 1024 };
    size_t bytes = MOST * D * sizeof(float);
    Q = sim_alloc("Q", bytes), K = sim_alloc("K", bytes), V = sim_alloc("V", bytes),
    O = sim_alloc("O", bytes);
    S = sim_alloc("S", MOST * MOST * sizeof(float));
    for (int i = 0; i < MOST * D; i++) Q[i] = K[i] = V[i] = (float)(i % 7) / 7;
    sim_set_written(Q, true), sim_set_written(K, true), sim_set_written(V, true);
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    find_cpu();
    printf("date,cpu,kernel,seqlen,mode,accesses,seconds,ns_per_access\n");
    double accesses[2];
    for (int N = 256; N <= MOST; N *= 4)
        for (int fast = 0; fast < 2; fast++) {
            bench("naive", naive, N, fast, &accesses[0]);
            bench("flash", flash, N, fast, &accesses[1]);
        }
    return 0;
}

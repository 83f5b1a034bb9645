// machine.c - the simulator as a machine of the harness (machine.h).

#include "machine.h"
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool fast, profiling, fp8_14_bits;

// The shape of an H200, so that a kernel makes the same choices here as there.
enum { H200_SM = 90, H200_SM_COUNT = 132 };

bool machine_open(const struct machine_options *options, struct machine *out, char *why,
                  size_t why_size) {
    fast = options->fast;
    profiling = options->profile;
    fp8_14_bits = options->fp8_14_bits;
    if (!sim_timeline(options->timeline)) {
        out->simulated = true;
        snprintf(why, why_size, "--timeline %s: %s; give a file that can be written",
                 options->timeline, strerror(errno));
        return false;
    }
    sim_reset(&(struct sim_options){.fast = fast, .fp8_14_bits = fp8_14_bits});
    *out = (struct machine){.simulated = true,
                            .name = "SIMT simulator",
                            .sm = H200_SM,
                            .sm_count = H200_SM_COUNT,
                            .smem = SIM_SMEM_MAX,
                            .memory = (uint64_t)sysconf(_SC_PHYS_PAGES) *
                                      (uint64_t)sysconf(_SC_PAGESIZE) / 10 * 9};
    return true;
}

void *machine_alloc(const char *name, size_t bytes) { return sim_alloc(name, bytes); }
void machine_free(void *device) { sim_free(device); }
void machine_write(void *device, const void *host, size_t bytes) {
    memcpy(device, host, bytes);
    sim_set_written(device, true);
}
void machine_read(void *host, const void *device, size_t bytes) { memcpy(host, device, bytes); }
void machine_poison(void *device, size_t bytes) {
    (void)bytes;
    sim_poison(device);
}

void machine_zero(void *device, size_t bytes) {
    memset(device, 0, bytes);
    sim_set_written(device, false);
}

static void add_buffer(struct measurement *m, const struct sim_buffer_counts *c) {
    m->asked.load += 32 * c->sectors[SIM_LOAD];
    m->asked.store += 32 * c->sectors[SIM_STORE];
    m->asked.atomic += 32 * c->sectors[SIM_ATOMIC];
    m->asked.tma_load += 32 * c->sectors[SIM_TMA_LOAD];
    m->asked.tma_store += 32 * c->sectors[SIM_TMA_STORE];
    // An atomic reads its sector and writes it.
    m->distinct_read +=
        32 * (c->distinct[SIM_LOAD] + c->distinct[SIM_ATOMIC] + c->distinct[SIM_TMA_LOAD]);
    m->distinct_write +=
        32 * (c->distinct[SIM_STORE] + c->distinct[SIM_ATOMIC] + c->distinct[SIM_TMA_STORE]);
    if (m->buffers == MACHINE_MAX_BUFFERS) return;
    struct machine_buffer *b = &m->buffer[m->buffers++];
    *b = (struct machine_buffer){
        .size = c->size,
        .load_bytes = c->bytes[SIM_LOAD],
        .store_bytes = c->bytes[SIM_STORE],
        .atomic_bytes = c->bytes[SIM_ATOMIC],
        .load_sectors = c->sectors[SIM_LOAD],
        .store_sectors = c->sectors[SIM_STORE],
        .atomic_sectors = c->sectors[SIM_ATOMIC],
        .distinct_load = c->distinct[SIM_LOAD],
        .distinct_store = c->distinct[SIM_STORE],
        .distinct_atomic = c->distinct[SIM_ATOMIC],
    };
    snprintf(b->name, sizeof b->name, "%s", c->name);
}

void machine_run(const struct machine_work *work, struct measurement *out) {
    struct sim_options options = {.fast = fast,
                                  .profile = profiling,
                                  .smem_limit = work->problem->smem,
                                  .fp8_14_bits = fp8_14_bits};
    static struct sim_counts counts; // large, and only one pass runs at a time
    *out = (struct measurement){0};
    sim_reset(&options);
    work->run(work->problem, work->tensors);
    sim_counts(&counts);
    snprintf(out->error, sizeof out->error, "%s", sim_error());
    snprintf(out->note, sizeof out->note, "%s", sim_warning());
    out->launches = counts.launches;
    out->smem_per_block = counts.smem_per_block;
    out->has_asked = out->has_conflicts = out->has_distinct = !fast;
    out->bank_conflicts = counts.wavefronts - counts.ideal_wavefronts;
    for (int i = 0; i < counts.launch_names && i < MACHINE_MAX_LAUNCHES; i++)
        memcpy(out->launch[i].kernel, counts.launch_name[i], sizeof out->launch[i].kernel);
    for (int i = 0; i < counts.buffers; i++) add_buffer(out, &counts.buffer[i]);
}

int machine_profile(struct profile_line **lines) {
    *lines = NULL;
    return profiling ? sim_profile(lines) : 0;
}

// A simulator has counts, which machine_run has taken, and no times.
void machine_measure(const struct machine_work *work, int repeat, struct measurement *out) {
    (void)work, (void)repeat, (void)out;
}

double machine_peak_flops(enum attn_dtype dtype) {
    (void)dtype;
    return 0;
}

double machine_peak_bandwidth(void) { return 0; }

bool machine_oracle_forward(const struct attn_problem *p, const float *Q, const float *K,
                            const float *V, double *O, double *LSE, float *base_O, float *base_LSE,
                            double *max_logit) {
    (void)p, (void)Q, (void)K, (void)V, (void)O, (void)LSE, (void)base_O, (void)base_LSE,
        (void)max_logit;
    return false; // the C oracle is faster than any simulation
}

bool machine_oracle_backward(const struct attn_problem *p, const struct inputs *in, const double *O,
                             const double *LSE, double *dQ, double *dK, double *dV,
                             double *max_dP) {
    (void)p, (void)in, (void)O, (void)LSE, (void)dQ, (void)dK, (void)dV, (void)max_dP;
    return false;
}

bool machine_baseline_backward(const struct attn_problem *p, const struct inputs *in,
                               const float *O, const float *LSE, float *dQ, float *dK, float *dV) {
    (void)p, (void)in, (void)O, (void)LSE, (void)dQ, (void)dK, (void)dV;
    return false;
}

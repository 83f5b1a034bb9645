// machine.h - what the harness asks of the machine that runs the kernels.
//
// Two files answer: sim/machine.c (the SIMT simulator) and gpu/machine.cu (a GPU). A program is
// linked with one of them; nothing above this line knows which.
#ifndef MACHINE_H
#define MACHINE_H

#include "attn.h"
#include "profile.h"

struct inputs; // inputs.h

#ifdef __cplusplus
extern "C" {
#endif

struct machine {
    bool simulated;
    char name[128];   // "NVIDIA H200", "SIMT simulator"
    char driver[32];  // "580.159.04"; empty in the simulator
    int sm, sm_count; // compute capability x 10; multiprocessors (simulator: of an H200)
    size_t smem;      // most shared memory a block can have after opting in, bytes
    uint64_t memory;  // bytes that can be allocated now
};

struct machine_options {
    bool fast;            // simulator: count bytes only, no sectors (no `asked`)
    bool profile;         // simulator: count for each source line, for machine_profile
    const char *timeline; // simulator: a file for who waits and what is under way; NULL: none
    bool fp8_14_bits; // simulator: FP8 products are added in 14 bits, as Hopper's are said to be
};

// Finds the machine. False, with one line in `why`, when there is none; or, with out->simulated
// set, when the simulator cannot write options->timeline.
bool machine_open(const struct machine_options *options, struct machine *out, char *why,
                  size_t why_size);

// Device memory, aligned to 256 bytes. NULL when there is not enough.
void *machine_alloc(const char *name, size_t bytes);
void machine_free(void *device);
void machine_write(void *device, const void *host, size_t bytes);
void machine_read(void *host, const void *device, size_t bytes);
void machine_poison(void *device, size_t bytes); // every byte 0xff: NaN in each of our types
void machine_zero(void *device, size_t bytes);
// What a workspace buffer holds before a pass: NaN, or the zeros that it asks for.
static inline void machine_refill(void *device, const struct attn_buffer *b) {
    (b->zeroed ? machine_zero : machine_poison)(device, b->bytes);
}

enum { MACHINE_MAX_LAUNCHES = 64, MACHINE_MAX_BUFFERS = 24, MACHINE_ERROR = 1200 };

// What one buffer saw (simulator only). Sectors are per warp request, distinct ones per launch.
struct machine_buffer {
    char name[24];
    uint64_t size;                                  // bytes
    uint64_t load_bytes, store_bytes, atomic_bytes; // what threads asked for
    uint64_t load_sectors, store_sectors, atomic_sectors;
    uint64_t distinct_load, distinct_store, distinct_atomic; // sectors
};

// What one pass did. A number that the machine cannot know is left out by its flag.
struct measurement {
    char error[MACHINE_ERROR]; // empty, or one line: a failed launch, a detector's finding
    char note[440];            // empty, or one line for the reader (why counters are missing, …)

    int launches;
    size_t smem_per_block; // static + dynamic, the largest launch, bytes
    struct {
        char kernel[48];
        double microseconds;        // median; 0 in the simulator
    } launch[MACHINE_MAX_LAUNCHES]; // the first MACHINE_MAX_LAUNCHES

    bool has_asked;
    struct attn_traffic asked; // bytes in sectors per warp request
    bool has_conflicts;
    uint64_t bank_conflicts; // shared-memory wavefronts beyond the ideal

    bool has_l2, has_dram;                             // GPU
    uint64_t l2_read, l2_write, dram_read, dram_write; // bytes
    bool has_distinct;                                 // simulator
    uint64_t distinct_read, distinct_write;            // bytes

    bool has_time;       // GPU
    double microseconds; // median of the repeats, whole pass
    bool repeats_differ; // the repeats did not all give the same bits

    int buffers; // simulator
    struct machine_buffer buffer[MACHINE_MAX_BUFFERS];
};

// One pass of one rung, as the machine calls it.
struct machine_work {
    void (*run)(const struct attn_problem *, const struct attn_tensors *);
    const struct attn_problem *problem;
    const struct attn_tensors *tensors;
};

// Runs the pass once and counts what can be counted in that run. The outputs are then valid.
void machine_run(const struct machine_work *work, struct measurement *out);

// What each source line asked for in the last machine_run, global memory before shared, the most
// expensive line first. Returns how many: 0 without machine_options.profile, and on a GPU. The
// caller frees *lines.
int machine_profile(struct profile_line **lines);

// GPU: times the pass over `repeat` runs after warming up and reads the hardware counters in
// runs of their own; the simulator has no time to tell and returns at once. Call it after the
// check: a wrong kernel is not worth timing.
void machine_measure(const struct machine_work *work, int repeat, struct measurement *out);

// Measured ceilings of this machine, for "share of peak". 0: not known (always in the simulator).
double machine_peak_flops(enum attn_dtype dtype); // FLOP/s
double machine_peak_bandwidth(void);              // bytes/s, copy, read + written

// GPU: double-precision reference on the device for sizes where the C oracle takes minutes. False:
// not here. Inputs are host fp32 values; outputs go to host memory as oracle_forward() of oracle.h
// does.
bool machine_oracle_forward(const struct attn_problem *p, const float *Q, const float *K,
                            const float *V, double *O, double *LSE, float *base_O, float *base_LSE,
                            double *max_logit);
// The same for the gradients: oracle_backward(), from the oracle's O and LSE, and
// baseline_backward().
bool machine_oracle_backward(const struct attn_problem *p, const struct inputs *in, const double *O,
                             const double *LSE, double *dQ, double *dK, double *dV, double *max_dP);
bool machine_baseline_backward(const struct attn_problem *p, const struct inputs *in,
                               const float *O, const float *LSE, float *dQ, float *dK, float *dV);

#ifdef __cplusplus
}
#endif
#endif

// run.h - one kernel on one problem: allocate, poison, run, check, measure.
#ifndef RUN_H
#define RUN_H

#include "check.h"
#include "machine.h"

// One input of one data type, on the host and on the device. Kernels that compute in the same type
// share it, and its right answer, which is worked out when the first of them is ready to run.
struct prepared {
    int number;                     // 1, 2, …: which input this is
    struct attn_problem problem;
    const char *name;               // "normal", "tests/minilm"
    struct inputs in;
    struct reference reference;     // O is NULL: not yet
    void *Q, *K, *V;                // device, in problem.dtype
};

// Where the input comes from: a folder, or a family and a seed.
struct source {
    const char *load;               // NULL: `family`
    enum data_family family;
    uint64_t seed;
};

enum outcome {
    RAN_RIGHT,
    RAN_WRONG,      // a wrong result, or a fault found
    NOT_SUPPORTED,  // this problem is not for this kernel, or for nobody: exit status 2 if asked for by name
    NOT_POSSIBLE,   // this machine cannot: exit status 3
    REFUSED,        // the input has no finite answer, or --dump failed: exit status 2 at once
};

enum { MAX_CHECKS = 5 };

struct result {
    const struct attn_kernel *kernel;
    const struct prepared *prepared;
    unsigned pass;
    enum outcome outcome;
    char why[700];                  // one line, for every outcome but RAN_RIGHT
    int checks;
    struct check check[MAX_CHECKS];
    struct attn_traffic model;      // bytes
    bool asked_is_model;
    uint64_t compulsory, workspace; // bytes
    struct measurement measured;
    struct profile_line *profile;   // NULL without --profile; the caller frees it
    int profile_lines;
};

// Makes or loads the input, rounds it to p->dtype (taking the shape from the files, and 1/sqrt(d) where
// p->scale is 0), and copies Q, K, V to the device. NOT_SUPPORTED or NOT_POSSIBLE with one line in `why`,
// or RAN_RIGHT: ready. Free it in every case.
enum outcome prepare(const struct attn_problem *p, const struct source *s, struct prepared *out, char *why,
                     size_t why_size);
void prepared_free(struct prepared *);

// Runs one pass of `kernel`, `repeat` times, and fills in *out. With `dump`, writes the tensors to that
// folder, which exists.
void run_pass(const struct attn_kernel *kernel, struct prepared *in, unsigned pass, int repeat, const char *dump,
              struct result *out);

#endif

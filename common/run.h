// run.h - one kernel on one problem: allocate, poison, run, check, measure.
#ifndef RUN_H
#define RUN_H

#include "check.h"
#include "machine.h"

// One input of one data type, with its right answer, on the host and on the device. Kernels that
// compute in the same type share it.
struct prepared {
    struct attn_problem problem;
    const char *name;               // "normal", "tests/minilm"
    struct inputs in;
    struct reference reference;
    void *Q, *K, *V;                // device, in problem.dtype
};

// Where the input comes from: a folder, or a family and a seed.
struct source {
    const char *load;               // NULL: `family`
    enum data_family family;
    uint64_t seed;
};

enum outcome { RAN_RIGHT, RAN_WRONG, NOT_SUPPORTED, NOT_POSSIBLE };

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
};

// Makes or loads the input, rounds it to p->dtype (and takes the shape from the files), computes the
// reference and copies Q, K, V to the device. NOT_SUPPORTED: the input is refused, exit status 2;
// NOT_POSSIBLE: no memory, exit status 3; with one line in `why`. RAN_RIGHT: ready.
enum outcome prepare(const struct attn_problem *p, const struct source *s, struct prepared *out, char *why,
                     size_t why_size);
void prepared_free(struct prepared *);

// Runs the forward of `kernel`, `repeat` times, and fills in *out. With `dump`, writes the tensors to
// that folder, which exists.
void run_forward(const struct attn_kernel *kernel, const struct prepared *in, int repeat, const char *dump,
                 struct result *out);

#endif

// prepare.h - one input on the host and on the device, with its right answer.
#ifndef PREPARE_H
#define PREPARE_H

#include "oracle.h"

// Where the input comes from: a folder, or a family and a seed.
struct source {
    const char *load; // NULL: `family`
    enum data_family family;
    uint64_t seed;
};

// An input in one data type. Kernels that compute in that type share it.
struct prepared {
    int number; // 1, 2, …: which input this is
    struct attn_problem problem;
    unsigned passes;  // with ATTN_BACKWARD there is a dO
    const char *name; // "normal", "tests/minilm"
    struct inputs in;
    struct reference reference; // O is NULL: not worked out yet
    bool has_gradients;         // in the reference
    void *Q, *K, *V, *dO;       // device, in problem.dtype
};

enum outcome {
    RAN_RIGHT,
    RAN_WRONG,      // a wrong result, or a fault found
    RAN_UNMODELLED, // the outputs are right, but not the bytes asked for: the model says others
    NOT_SUPPORTED,  // this problem is not for this kernel, or for nobody: exit status 2 if asked
                    // for by name
    NOT_POSSIBLE,   // this machine cannot: exit status 3
    REFUSED,        // the input has no finite answer, or --dump failed: exit status 2 at once
};

// Makes or loads the input, rounds it to p->dtype (taking the shape from the files, and 1/sqrt(d)
// where p->scale is 0), and copies it to the device. RAN_RIGHT: ready; else one line in `why`. Free
// it in every case.
enum outcome prepare(const struct attn_problem *p, unsigned passes, const struct source *s,
                     struct prepared *out, char *why, size_t why_size);
void prepared_free(struct prepared *);

// Works out the right answer for this pass, unless it is there already. It can take longer than the
// kernel, so it waits until a kernel is ready to run.
enum outcome prepared_answer(struct prepared *, unsigned pass, char *why, size_t why_size);

// A new device tensor in p's data type with these fp32 values. NULL: no memory.
void *upload(const struct attn_problem *p, const char *name, const float *host, uint64_t elements);

// NOT_POSSIBLE, with a line about `bytes` bytes for `what`.
enum outcome out_of_memory(const struct attn_problem *p, const char *what, uint64_t bytes,
                           char *why, size_t why_size);

#endif

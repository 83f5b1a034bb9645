// run.h - one kernel on one input: allocate, poison, run, check, measure.
#ifndef RUN_H
#define RUN_H

#include "check.h"
#include "machine.h"
#include "prepare.h"

enum { MAX_CHECKS = 3 };

// One pass of one kernel.
struct result {
    const struct attn_kernel *kernel;
    const struct prepared *prepared;
    unsigned pass;
    enum outcome outcome;
    char why[700]; // one line, for every outcome but RAN_RIGHT
    int checks;
    struct check check[MAX_CHECKS]; // O, LSE; or dQ, dK, dV
    struct attn_traffic model;      // bytes
    bool asked_is_model;
    bool asked_is_more;             // of a kernel that may do a part again
    char tiles[160];                // how the kernel cuts the problem up; may be empty
    uint64_t compulsory, workspace; // bytes
    bool has_matrix_passes;         // simulator: it knows which buffer an access goes to
    double matrix_passes; // bytes asked of the N x N buffers, in units of the buffer's size
    struct measurement measured;
    struct profile_line *profile; // NULL without --profile; the caller frees it
    int profile_lines;
};

// Runs the passes (bits) of `kernel`, each `repeat` times, and fills in out[0], out[1], …; returns
// how many. The backward works on the O and LSE of this kernel's forward, or, when only the
// backward is asked for, on the reference's. With `dump`, writes the tensors to that folder, which
// exists.
int run_kernel(const struct attn_kernel *kernel, struct prepared *in, unsigned passes, int repeat,
               const char *dump, struct result out[2]);

// Can this kernel run r->pass of the problem, on the machine that the problem names? If not, fills
// in r->outcome and r->why.
bool can_run(const struct attn_kernel *k, const struct attn_problem *p, struct result *r);

#endif

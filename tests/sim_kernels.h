// sim_kernels.h - small kernels for the simulator's own tests, each with one property to observe.
#ifndef SIM_KERNELS_H
#define SIM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A kernel as the tests launch it: up to three device pointers and a number.
struct sim_arguments {
    float *a, *b, *c;
    int n;
};

// Runs the kernel of this name; stops the test program when there is none.
void sim_run(const char *name, struct sim_arguments);

// The line of the file that holds the mark `//! name`, where the kernel's fault stands, or the
// access that a test asks about.
int sim_marked_line(const char *name);

#ifdef __cplusplus
}
#endif
#endif

// instructions.h - kernels that each use one instruction of ptx.h, for both machines.
#ifndef INSTRUCTIONS_H
#define INSTRUCTIONS_H

#ifdef __cplusplus
extern "C" {
#endif

// Launches the kernel of this name; stops the program when there is none. Each kernel's comment
// says what `in` and `out` hold.
void instruction_run(const char *name, const void *in, void *out);

#ifdef __cplusplus
}
#endif
#endif

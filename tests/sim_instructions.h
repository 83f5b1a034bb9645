// sim_instructions.h - kernels that misuse the instructions of ptx.h, or ask how they are counted.
#ifndef SIM_INSTRUCTIONS_H
#define SIM_INSTRUCTIONS_H

#ifdef __cplusplus
extern "C" {
#endif

// `a` holds 4096 floats; nobody has written `b`.
void sim_instruction_run(const char *name, float *a, float *b, int n);
int sim_instruction_line(const char *name); // of the mark `//! name`

#ifdef __cplusplus
}
#endif
#endif

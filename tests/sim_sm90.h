// sim_sm90.h - kernels that misuse the instructions of ptx_sm90.h.
#ifndef SIM_SM90_H
#define SIM_SM90_H

#ifdef __cplusplus
extern "C" {
#endif

// `a` holds 32768 fp16 numbers, an input of 512 x 64; `b` as many that nobody has written.
void sim_sm90_run(const char *name, const void *a, void *b);
int sim_sm90_line(const char *name); // of the mark `//! name`

#ifdef __cplusplus
}
#endif
#endif

// instructions_sm90.h - kernels that each use one instruction of ptx_sm90.h, for both machines.
#ifndef INSTRUCTIONS_SM90_H
#define INSTRUCTIONS_SM90_H

#include "tensor_map.h"

#ifdef __cplusplus
extern "C" {
#endif

// Launches the kernel of this name. Each kernel's comment says what `in` and `out` hold.
void instruction_sm90_run(const char *name, const void *in, void *out);
// Loads one box of the tensor `in` and stores all its bytes to `out`, in their order in shared
// memory.
void instruction_tma_load(const struct tensor_box *, const int at[4], const void *in, void *out);
// Stores the bytes `in`, in their order in shared memory, as one box of the tensor `out`, whose
// `bytes` bytes are 0 before.
void instruction_tma_store(const struct tensor_box *, const int at[4], const void *in, void *out,
                           int bytes);

#ifdef __cplusplus
}
#endif
#endif

// kernel.h - what every step's .cu file includes: CUDA C, on either machine.
//
// nvcc sees CUDA itself. A host compiler sees sim/cuda.h, which is the same language on a CPU.
#ifndef KERNEL_H
#define KERNEL_H

#include "attn.h"

#include <stdio.h>

#ifdef __CUDACC__
#include "gpu/launch.h"
#else
#include "sim/cuda.h"
#endif

// LAUNCH(kernel, grid, block, bytes of dynamic shared memory, arguments...)
// starts a grid and remembers its name, so that errors and timings can say which kernel it was.
// A kernel's dynamic shared memory is `smem`, declared by the machine's header above:
//
//     extern unsigned char smem[];      // per block, 1024-byte aligned
//
// More than 48 KB of it needs cudaFuncSetAttribute(kernel,
// cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) first, on both machines.

#endif

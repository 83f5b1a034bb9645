// cuda_check.h - for CUDA calls that only fail when the machine itself is in trouble.
//
// A kernel that fails is a result, which machine.cu reports in a measurement. A copy or an event
// that fails is none: the program prints one line and exits with status 3 ("this machine cannot").
#ifndef GPU_CUDA_CHECK_H
#define GPU_CUDA_CHECK_H

#include <cuda_runtime.h>

void cuda_check(cudaError_t error, const char *call, const char *file, int line); // machine.cu

#define CUDA_CHECK(call) cuda_check(call, #call, __FILE__, __LINE__)

#endif

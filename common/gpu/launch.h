// launch.h - the GPU's half of kernel.h: CUDA's headers, `smem` and LAUNCH.
#ifndef GPU_LAUNCH_H
#define GPU_LAUNCH_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

extern __shared__ __align__(1024) unsigned char smem[];

// Called around every launch (machine.cu): errors are kept, not thrown, and reported by the
// harness; launches are counted and, when asked, timed.
// The kernel's name is what stands in LAUNCH, without the parentheses that a template argument list
// with a comma needs there: LAUNCH((flash<64, 64>), grid, block, 0, Q, K, V, O).
void gpu_launch_begin(const char *kernel, const void *function, size_t dynamic_smem);
void gpu_launch_end(const char *file, int line);

#define LAUNCH(kernel, grid, block, smem_bytes, ...)                                               \
    do {                                                                                           \
        gpu_launch_begin(#kernel, (const void *)(kernel), smem_bytes);                             \
        kernel<<<grid, block, smem_bytes>>>(__VA_ARGS__);                                          \
        gpu_launch_end(__FILE__, __LINE__);                                                        \
    } while (0)

#endif

// hardware.h - kernels that were counted on real hardware; one head, d = 64, fp32, device pointers.
#ifndef HARDWARE_H
#define HARDWARE_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

// Q, K, V, O: [N, 64]; S: [N, N].
void hardware_naive(const float *Q, const float *K, const float *V, float *S, float *O, int N);
// Tiles of 32 or 64 rows.
void hardware_flash(const float *Q, const float *K, const float *V, float *O, int N, bool causal,
                    int tile);

#ifdef __cplusplus
}
#endif
#endif

// softmax.h - the softmax of rungs 2 to 4, between two products, in the registers of a warp with 16
// queries: mask, step02's online update, and the end of a row.
#ifndef STEP05_SOFTMAX_H
#define STEP05_SOFTMAX_H

#include "shared.h"

namespace step05::plain {

// Scale, and -infinity where the row sees no key. i, j: the first query of the warp, the first key.
__device__ inline void mask(float (&S)[Bc / 8][4], const shape &s, int i, int j) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
    for (int n = 0; n < Bc / 8; n++)
        for (int e = 0; e < 4; e++) {
            bool seen = visible(s, i + g + e / 2 * 8, j + 8 * n + 2 * t + e % 2);
            S[n][e] = seen ? s.scale * S[n][e] : -INFINITY;
        }
}

// What a lane knows of its two rows, g and g + 8.
struct rows {
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
};

//> online-softmax
// Step02's online update. A lane's 4 elements of each S[n]: two of row g, two of row g + 8.
template <int D>
__device__ inline void online_softmax(float (&S)[Bc / 8][4], float (&O)[D / 8][4], rows &r) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float m = r.m[half], sum = 0;
        for (int n = 0; n < Bc / 8; n++) m = fmaxf(m, fmaxf(S[n][2 * half], S[n][2 * half + 1]));
        m = max_of_quad(m);
        float m_safe = m == -INFINITY ? 0 : m, factor = expf(r.m[half] - m_safe);
        for (int n = 0; n < Bc / 8; n++)
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                S[n][e] = expf(S[n][e] - m_safe);
                sum += S[n][e];
            }
        r.m[half] = m;
        r.l[half] = r.l[half] * factor + sum_of_quad(sum);
        for (int n = 0; n < D / 8; n++)
            for (int e = 2 * half; e < 2 * half + 2; e++) O[n][e] *= factor;
    }
}
//< online-softmax

// O / l and LSE of a warp's rows; `rows_left` of them exist.
template <class T, int D>
__device__ inline void store(T *O_hbm, float *LSE_hbm, const float (&O)[D / 8][4], const rows &r,
                             int rows_left) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; half++) {
        int row = g + 8 * half;
        float inverse = 1 / (r.l[half] > 0 ? r.l[half] : 1); // a row that sees no key: O = 0
        for (int n = 0; n < D / 8; n++) {
            uint32_t two = pack<T>(O[n][2 * half] * inverse, O[n][2 * half + 1] * inverse);
            if (row < rows_left) *(uint32_t *)&O_hbm[(size_t)row * D + 8 * n + 2 * t] = two;
        }
        if (t == 0 && row < rows_left) LSE_hbm[row] = r.m[half] + logf(r.l[half]);
    }
}

} // namespace step05::plain

#endif

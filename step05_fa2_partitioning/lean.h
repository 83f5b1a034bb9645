// lean.h - the softmax of rungs 5 and 6: that of softmax.h with less arithmetic. 5_lean.cu says
// what is saved.
#ifndef STEP05_LEAN_H
#define STEP05_LEAN_H

#include "shared.h"

namespace step05::lean {

constexpr float Log2e = 1.44269504f;
constexpr float Most = 8; // weights are at most 2^Most

// -infinity where the row sees no key. i, j: the first query of the warp, the first key.
__device__ inline void mask(float (&S)[Bc / 8][4], const shape &s, int i, int j) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
    for (int n = 0; n < Bc / 8; n++)
        for (int e = 0; e < 4; e++)
            if (!visible(s, i + g + e / 2 * 8, j + 8 * n + 2 * t + e % 2)) S[n][e] = -INFINITY;
}

// Is some element of the tile hidden? The first of its queries sees the least, the last key is seen
// least.
__device__ inline bool has_hidden(const shape &s, int i, int j) {
    return !visible(s, i, j + Bc - 1);
}

//> rows
// What a lane knows of its two rows, g and g + 8. S is not scaled here, nor is m: a weight is 2 to
// the power of c (S - m), where c = scale log2(e).
struct rows {
    float m[2] = {-INFINITY, -INFINITY}; // what the exponents of l and O are measured from
    float l[2] = {0, 0};                 // of the lane's own elements
};
//< rows

//> online-softmax
template <int D>
__device__ inline void online_softmax(float (&S)[Bc / 8][4], float (&O)[D / 8][4], rows &r,
                                      float c) {
    float m[2];
    bool grown = false;
    for (int half = 0; half < 2; half++) {
        m[half] = r.m[half];
        for (int n = 0; n < Bc / 8; n++)
            m[half] = fmaxf(m[half], fmaxf(S[n][2 * half], S[n][2 * half + 1]));
        m[half] = max_of_quad(m[half]);
        // From -infinity to -infinity: NaN, which is not more than anything.
        grown |= c * (m[half] - r.m[half]) > Most;
    }
    if (__any_sync(~0u, grown))
        for (int half = 0; half < 2; half++) {
            float factor = exp2_approx(m[half] == -INFINITY ? 0 : c * (r.m[half] - m[half]));
            r.m[half] = m[half];
            r.l[half] *= factor;
            for (int n = 0; n < D / 8; n++) {
                O[n][2 * half] *= factor;
                O[n][2 * half + 1] *= factor;
            }
        }
    for (int half = 0; half < 2; half++) {
        float c_m = r.m[half] == -INFINITY ? 0 : c * r.m[half];
        for (int n = 0; n < Bc / 8; n++)
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                S[n][e] = exp2_approx(c * S[n][e] - c_m);
                r.l[half] += S[n][e];
            }
    }
}
//< online-softmax

// O / l and LSE of a warp's rows; `rows_left` of them exist.
template <class T, int D>
__device__ inline void store(T *O_hbm, float *LSE_hbm, const float (&O)[D / 8][4], const rows &r,
                             int rows_left, float scale) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; half++) {
        int row = g + 8 * half;
        float l = sum_of_quad(r.l[half]);
        float inverse = 1 / (l > 0 ? l : 1); // a row that sees no key: O = 0
        for (int n = 0; n < D / 8; n++) {
            uint32_t two = pack<T>(O[n][2 * half] * inverse, O[n][2 * half + 1] * inverse);
            if (row < rows_left) *(uint32_t *)&O_hbm[(size_t)row * D + 8 * n + 2 * t] = two;
        }
        if (t == 0 && row < rows_left) LSE_hbm[row] = scale * r.m[half] + logf(l);
    }
}

} // namespace step05::lean

#endif

// hopper.h - what the rungs of this step share and none of them changes: tiles in shared memory as
// TMA writes and wgmma reads them, the two products, the softmax between them, the bytes that move.
//
// A warpgroup, 4 warps, multiplies 64 rows at a time (common/ptx_sm90.h). Of S, O and P, warp w has
// rows 16 w to 16 w + 15, and lane l of it holds parts of two: g = l / 4 and g + 8. Four lanes, a
// quad, hold a whole row together: it is step05's layout, warp by warp, so its softmax fits.
#ifndef STEP06_HOPPER_H
#define STEP06_HOPPER_H

#include "ptx_sm90.h"
#include "shape.h"

#include <stdlib.h>

namespace step06 {

constexpr int Lanes = 32, Warpgroup = 128; // threads
constexpr int Rows = 64;                   // of a warpgroup's product
constexpr float Log2e = 1.44269504f;
constexpr float Most = 8; // weights are at most 2^Most

// ---- tiles --------------------------------------------------------------------------------------
//
// A tile of R x D elements of 2 bytes lies in shared memory as D / 64 panels, one after the other.
// A panel is R rows of 128 bytes, swizzled, and comes by one box of TMA.

constexpr int Panel = 64, PanelRow = 128; // columns, and their bytes

//> load-tile
// Starts the copy of the tile whose first row is `row`; one thread calls it. Rows and columns that
// the tensor does not have are zeros.
template <int R, int D>
__device__ inline void load_tile(unsigned char *tile, const CUtensorMap *map, uint64_t *full,
                                 int row, int head) {
    mbarrier_arrive_expect_tx(full, R * D * 2);
#pragma unroll
    for (int p = 0; p < D / Panel; p++)
        tma_load_3d(tile + p * R * PanelRow, map, full, p * Panel, row, head);
}
//< load-tile

//> column-bytes
// Where columns k to k + 15 begin, for wgmma, in a tile of R rows.
template <int R> __device__ constexpr int column_bytes(int k) {
    return k / Panel * R * PanelRow + k % Panel * 2;
}
//< column-bytes

//> start-QK
// S = Q K^T is started for the 64 queries at `Q`, in a tile of Br rows; `K` has Bc rows.
template <class T, int Br, int Bc, int D>
__device__ inline void start_QK(float (&S)[Bc / 2], uint64_t Q, uint64_t K) {
#pragma unroll
    for (int k = 0; k < D; k += 16)
        wgmma_m64k16<Bc, T>(S, wgmma_moved(Q, column_bytes<Br>(k)),
                            wgmma_moved(K, column_bytes<Bc>(k)), k > 0);
}
//< start-QK

//> start-PV
// O += P V is started. P comes from registers: a lane's weights are its part of a left operand.
template <class T, int Bc, int D>
__device__ inline void start_PV(float (&O)[D / 2], const uint32_t (&P)[Bc / 16][4], uint64_t V) {
#pragma unroll
    for (int k = 0; k < Bc / 16; k++)
        wgmma_m64k16<D, T, MN_MAJOR>(O, P[k], wgmma_moved(V, k * 16 * PanelRow), true);
}
//< start-PV

// How many keys some query before `end` sees: 0 .. Nk. With a causal mask, those of the last one.
__host__ __device__ inline int keys_seen(const shape &s, int end) {
    if (!s.causal) return s.Nk;
    int last = end < s.Nq ? end : s.Nq, keys = last + s.Nk - s.Nq;
    return keys > 0 ? keys : 0;
}

// What a block does: Br queries of query head bh, from i0 on, and the first `keys` of the K and V
// that this head reads. Aligned, so that it is read and written at once.
struct __align__(16) task {
    int bh, head, i0, keys;
};

template <int Br> __device__ inline task task_of_block(const shape &s) {
    int tiles = (s.Nq + Br - 1) / Br, bh = blockIdx.x / tiles, i0 = blockIdx.x % tiles * Br;
    return {bh, (int)kv_head(s, bh), i0, keys_seen(s, i0 + Br)};
}

// ---- rows: step05's softmax ---------------------------------------------------------------------

__device__ inline float max_of_quad(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ inline float sum_of_quad(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

//> row-of-thread
// The first of this thread's two rows among those of its warpgroup; the other is 8 further on.
__device__ inline int row_of_thread() {
    return threadIdx.x % Warpgroup / Lanes * 16 + threadIdx.x % Lanes / 4;
}
//< row-of-thread

// -infinity where the row sees no key. i: the thread's first query, j: the tile's first key.
template <int Bc> __device__ inline void mask(float (&S)[Bc / 2], const shape &s, int i, int j) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int last = s.causal ? min(i + 8 * half + s.Nk - s.Nq, s.Nk - 1) : s.Nk - 1;
        int seen = last - j - threadIdx.x % 4 * 2; // counted from the thread's first column
#pragma unroll
        for (int n = 0; n < Bc / 8; n++) {
            if (8 * n > seen) S[4 * n + 2 * half] = -INFINITY;
            if (8 * n + 1 > seen) S[4 * n + 2 * half + 1] = -INFINITY;
        }
    }
}

// What a thread knows of its two rows. S is not scaled, nor is m: all exponents are powers of two,
// of c times the difference, where c = scale log2(e).
struct rows {
    float m[2] = {-INFINITY, -INFINITY}; // what the exponents of l and O are measured from
    float l[2] = {0, 0};                 // of the thread's own elements
    float factor[2];                     // by which O is to be multiplied, if at all
};

// Takes in the maxima of a tile. True if one of the warp's rows has grown by more than 2^Most: then
// O must be multiplied by `factor`, as l is here. Else the old m is good enough.
template <int Bc> __device__ inline bool update_maxima(const float (&S)[Bc / 2], rows &r, float c) {
    float m[2];
    bool grown = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        m[half] = r.m[half];
#pragma unroll
        for (int n = 0; n < Bc / 8; n++)
            m[half] = fmaxf(m[half], fmaxf(S[4 * n + 2 * half], S[4 * n + 2 * half + 1]));
        m[half] = max_of_quad(m[half]);
        grown |= c * (m[half] - r.m[half]) > Most; // NaN, from -infinity to -infinity, is not
    }
    if (!__any_sync(~0u, grown)) return false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        r.factor[half] = exp2_approx(m[half] == -INFINITY ? 0 : c * (r.m[half] - m[half]));
        r.m[half] = m[half];
        r.l[half] *= r.factor[half];
    }
    return true;
}

// S becomes the weights, and l their sum.
template <int Bc> __device__ inline void weights(float (&S)[Bc / 2], rows &r, float c) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float c_m = r.m[half] == -INFINITY ? 0 : c * r.m[half];
#pragma unroll
        for (int n = 0; n < Bc / 8; n++)
#pragma unroll
            for (int e = 4 * n + 2 * half; e < 4 * n + 2 * half + 2; e++) {
                S[e] = exp2_approx(c * S[e] - c_m);
                r.l[half] += S[e];
            }
    }
}

template <int D> __device__ inline void rescale(float (&O)[D / 2], const rows &r) {
#pragma unroll
    for (int n = 0; n < D / 2; n++) O[n] *= r.factor[n / 2 % 2];
}

// From scores to weights, for a tile whose first key is j; i is the thread's first query. True if O
// is to be rescaled.
template <int Bc>
__device__ inline bool scores_to_weights(float (&S)[Bc / 2], rows &r, const shape &s, int i,
                                         int j) {
    float c = s.scale * Log2e;
    int first = i - threadIdx.x % Lanes / 4; // of the warp's queries: it sees the least
    if (!visible(s, first, j + Bc - 1)) mask<Bc>(S, s, i, j);
    bool grown = update_maxima<Bc>(S, r, c);
    weights<Bc>(S, r, c);
    return grown;
}

template <int Bc, int D>
__device__ inline void softmax(float (&S)[Bc / 2], float (&O)[D / 2], rows &r, const shape &s,
                               int i, int j) {
    if (scores_to_weights<Bc>(S, r, s, i, j)) rescale<D>(O, r);
}

// The weights as a left operand.
template <class T, int Bc>
__device__ inline void to_operand(uint32_t (&P)[Bc / 16][4], const float (&S)[Bc / 2]) {
#pragma unroll
    for (int n = 0; n < Bc / 4; n++) P[n / 4][n % 4] = pack<T>(S[2 * n], S[2 * n + 1]);
}

// O / l and LSE of the thread's rows, straight to HBM; `i` is the first of them.
template <class T, int D>
__device__ inline void store(T *O_hbm, float *LSE_hbm, const float (&O)[D / 2], const rows &r,
                             const shape &s, int bh, int i) {
#pragma unroll
    for (int half = 0; half < 2; half++, i += 8) {
        float l = sum_of_quad(r.l[half]);
        float inverse = 1 / (l > 0 ? l : 1); // a row that sees no key: O = 0
        size_t row = (size_t)bh * s.Nq + i;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            uint32_t two =
                pack<T>(O[4 * n + 2 * half] * inverse, O[4 * n + 2 * half + 1] * inverse);
            if (i < s.Nq) *(uint32_t *)&O_hbm[row * D + 8 * n + threadIdx.x % 4 * 2] = two;
        }
        if (threadIdx.x % 4 == 0 && i < s.Nq) LSE_hbm[row] = s.scale * r.m[half] + logf(l);
    }
}

// ---- the host's side ----------------------------------------------------------------------------

//> box-of
// Of a tensor [heads, rows, d], in boxes of box_rows rows and a panel's columns. The sequence is a
// dimension of its own, so that boxes that reach over its end get zeros, not the next head's rows.
inline tensor_box box_of(const void *tensor, int heads, int rows, int d, int box_rows) {
    uint64_t row = (uint64_t)d * 2;
    return {.base = tensor,
            .element_bytes = 2,
            .rank = 3,
            .size = {(uint64_t)d, (uint64_t)rows, (uint64_t)heads},
            .stride = {2, row, row * (uint64_t)rows},
            .box = {Panel, (uint32_t)box_rows, 1},
            .swizzle = SWIZZLE_128B};
}
//< box-of

inline CUtensorMap map_of(const void *tensor, int heads, int rows, int d, int box_rows) {
    tensor_box box = box_of(tensor, heads, rows, d, box_rows);
    CUtensorMap map;
    char why[300];
    if (tensor_map_encode(&box, &map, why, sizeof why)) return map;
    fprintf(stderr, "%s\n", why);
    exit(3); // this machine cannot
}

// The rungs on the way take the two head dimensions that are common, the last one takes all.
// Memory<D> is what a block has in shared memory.
template <template <int> class Memory>
bool takes_64_and_128(const attn_problem *p, unsigned, char *why, size_t why_size) {
    if (p->head_dim == 64) return fits(p, sizeof(Memory<64>), why, why_size);
    if (p->head_dim == 128) return fits(p, sizeof(Memory<128>), why, why_size);
    snprintf(why, why_size, "d = %d: this rung takes 64 and 128; --kernel fa3 takes all",
             p->head_dim);
    return false;
}

// Calls launch<T, D>(p, t) for the problem's data type and head dimension.
#define STEP06_DISPATCH(launch, p, t)                                                              \
    do {                                                                                           \
        bool fp16 = (p)->dtype == ATTN_FP16, narrow = (p)->head_dim == 64;                         \
        (fp16     ? narrow ? launch<__half, 64> : launch<__half, 128>                              \
             : narrow ? launch<__nv_bfloat16, 64>                                                  \
                  : launch<__nv_bfloat16, 128>)(p, t);                                             \
    } while (0)

// What a forward asks for that has Br queries in a block. TMA loads whole boxes, so a tile of D
// columns counts whole, also where it reaches over the end of the tensor; and a row of a panel as
// much as any other. LSE leaves 8 rows a request, and O in pieces of O_piece bytes, or where that
// is 0, by TMA: the caller adds it.
inline attn_traffic forward_traffic(const attn_problem *p, int Br, int Bc, int D, int O_piece) {
    shape s = shape_of(p);
    uint64_t heads = (uint64_t)p->batch * p->heads, rows = 0, LSE = 0;
    for (int i0 = 0; i0 < s.Nq; i0 += Br)
        rows += Br + 2 * round_up(keys_seen(s, i0 + Br), Bc); // of Q, K and V
    for (uint64_t bh = 0; bh < heads; bh++)
        for (int i0 = 0; i0 < s.Nq; i0 += Br)
            LSE += request_sectors((bh * s.Nq + i0) * sizeof(float),
                                   min(Br, s.Nq - i0) * sizeof(float), 8 * sizeof(float));
    uint64_t O = O_piece ? (uint64_t)s.Nq * s.d * 2 / O_piece : 0;
    const int first[3] = {};
    tensor_box row = box_of(NULL, 1, 1, s.d, 1);
    return {.store = (heads * O + LSE) * SECTOR,
            .tma_load = heads * rows * (D / Panel) * tma_load_bytes(&row, first)};
}

} // namespace step06

#endif

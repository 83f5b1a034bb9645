// products.h - S = scale * Q K^T and O = P V, for the rungs of this step.
//
// From step01's second rung, where they are explained. `scores` is unchanged. `weighted_sum` now
// makes whole rows of O, all d columns of them, so that it reads P once and not once for each 64
// columns; D is d padded to 64, 128 or 256, for registers and shared memory have to be known to the
// compiler.
#ifndef PRODUCTS_H
#define PRODUCTS_H

#include "shape.h"

namespace step02 {

constexpr int Lanes = 32;
constexpr int Threads = 256, Warps = Threads / Lanes;
constexpr int Tile = 64;          // queries of a block; in scores also its keys
constexpr int Slice = 32;         // columns of Q and K, or keys of P and V, that it holds at a time
constexpr int Padded = Slice + 4; // 4 floats more, so that 8 rows lie in different banks

__device__ inline float4 all_four(float x) { return make_float4(x, x, x, x); }

// Copies a tile from HBM, 4 floats a thread; beyond its `rows` and `columns`, which are multiples
// of 4, it is filled with `beyond`.
template <int Rows, int Columns, int Pitch>
__device__ void load_tile(float (&tile)[Rows][Pitch], const float *hbm, size_t hbm_pitch, int rows,
                          int columns, float beyond) {
    for (int n = threadIdx.x; n < Rows * Columns / 4; n += Threads) {
        int r = n / (Columns / 4), c = n % (Columns / 4) * 4;
        float4 x = all_four(beyond);
        if (r < rows && c < columns) x = *(const float4 *)&hbm[r * hbm_pitch + c];
        *(float4 *)&tile[r][c] = x;
    }
}

__device__ inline float dot(float4 a, float4 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// grid: x = B * H * ceil(Nq / 64) tiles of rows, y = ceil(Nk / 64) tiles of columns
static __global__ void scores(const float *Q_hbm, // [B, H, Nq, d]
                              const float *K_hbm, // [B, Hkv, Nk, d]
                              float *S_hbm,       // [B, H, Nq, pitch]
                              shape s) {
    __shared__ __align__(16) float Q_smem[Tile][Padded];
    __shared__ __align__(16) float K_smem[Tile][Padded];
    int row_tiles = (s.Nq + Tile - 1) / Tile;
    int bh = blockIdx.x / row_tiles;
    int i0 = blockIdx.x % row_tiles * Tile; // first query of the tile
    int j0 = blockIdx.y * Tile;             // first key
    const float *Q = Q_hbm + ((size_t)bh * s.Nq + i0) * s.d;
    const float *K = K_hbm + (kv_head(s, bh) * s.Nk + j0) * s.d;

    int warp = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
    int y = warp / 2 * 16 + lane / 8, x = warp % 2 * 32 + lane % 8;
    float S_reg[4][4] = {};
    for (int c0 = 0; c0 < s.d; c0 += Slice) {
        load_tile<Tile, Slice>(Q_smem, Q + c0, s.d, s.Nq - i0, s.d - c0, 0);
        load_tile<Tile, Slice>(K_smem, K + c0, s.d, s.Nk - j0, s.d - c0, 0);
        __syncthreads(); // both tiles are complete
        for (int c = 0; c < Slice; c += 4) {
            float4 q[4], k[4];
            for (int m = 0; m < 4; m++) q[m] = *(float4 *)&Q_smem[y + 4 * m][c];
            for (int n = 0; n < 4; n++) k[n] = *(float4 *)&K_smem[x + 8 * n][c];
            for (int m = 0; m < 4; m++)
                for (int n = 0; n < 4; n++) S_reg[m][n] += dot(q[m], k[n]);
        }
        __syncthreads(); // all have read them: the next turn overwrites
    }

    for (int m = 0; m < 4; m++)
        for (int n = 0; n < 4; n++) {
            int i = i0 + y + 4 * m, j = j0 + x + 8 * n;
            float value = visible(s, i, j) ? s.scale * S_reg[m][n] : -INFINITY;
            if (i < s.Nq && j < s.pitch) S_hbm[((size_t)bh * s.Nq + i) * s.pitch + j] = value;
        }
}

// ---- whole rows of O ---------------------------------------------------------------------------

// o += a * v
__device__ inline void add_scaled(float4 &o, float a, float4 v) {
    o.x += a * v.x;
    o.y += a * v.y;
    o.z += a * v.z;
    o.w += a * v.w;
}

// What a thread has of 64 rows of O: the rows y, y + 4, y + 8, y + 12 and 4 neighbouring columns at
// x, x + 64, ... (64 of D columns are 2 warps of 8 lanes of 4 columns.)
template <int D> struct rows_of_O {
    int y, x;
    float4 value[4][D / 64];

    __device__ rows_of_O() {
        int warp = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
        y = warp / 2 * 16 + lane / 8, x = warp % 2 * 32 + lane % 8 * 4;
        for (int m = 0; m < 4; m++)
            for (int n = 0; n < D / 64; n++) value[m][n] = all_four(0);
    }

    //> add
    // Adds P V for a slice of keys.
    __device__ void add(const float (&P_smem)[Tile][Padded], const float (&V_smem)[Slice][D]) {
        for (int j = 0; j < Slice; j += 4) {
            float4 p[4];
            for (int m = 0; m < 4; m++) p[m] = *(const float4 *)&P_smem[y + 4 * m][j];
            for (int n = 0; n < D / 64; n++) {
                float4 v[4];
                for (int k = 0; k < 4; k++) v[k] = *(const float4 *)&V_smem[j + k][x + 64 * n];
                for (int m = 0; m < 4; m++) {
                    add_scaled(value[m][n], p[m].x, v[0]);
                    add_scaled(value[m][n], p[m].y, v[1]);
                    add_scaled(value[m][n], p[m].z, v[2]);
                    add_scaled(value[m][n], p[m].w, v[3]);
                }
            }
        }
    }
    //< add

    // Multiplies row i by factor[i].
    __device__ void scale_rows(const float (&factor)[Tile]) {
        for (int m = 0; m < 4; m++) {
            float f = factor[y + 4 * m];
            for (int n = 0; n < D / 64; n++) {
                value[m][n].x *= f;
                value[m][n].y *= f;
                value[m][n].z *= f;
                value[m][n].w *= f;
            }
        }
    }

    // Writes the first `rows` rows and `d` columns.
    __device__ void store(float *O, int rows, int d) const {
        for (int m = 0; m < 4; m++)
            for (int n = 0; n < D / 64; n++) {
                int i = y + 4 * m, c = x + 64 * n;
                if (i < rows && c < d) *(float4 *)&O[(size_t)i * d + c] = value[m][n];
            }
    }
};

// grid: x = B * H * ceil(Nq / 64) tiles of rows
template <int D>
__global__ void weighted_sum(const float *P_hbm, // [B, H, Nq, pitch]
                             const float *V_hbm, // [B, Hkv, Nk, d]
                             float *O_hbm,       // [B, H, Nq, d]
                             shape s) {
    __shared__ __align__(16) float P_smem[Tile][Padded];
    __shared__ __align__(16) float V_smem[Slice][D];
    int row_tiles = (s.Nq + Tile - 1) / Tile;
    int bh = blockIdx.x / row_tiles;
    int i0 = blockIdx.x % row_tiles * Tile; // first query of the tile
    size_t row = (size_t)bh * s.Nq + i0;
    const float *V = V_hbm + kv_head(s, bh) * s.Nk * s.d;

    rows_of_O<D> O;
    for (int j0 = 0; j0 < s.Nk; j0 += Slice) {
        load_tile<Tile, Slice>(P_smem, P_hbm + row * s.pitch + j0, s.pitch, s.Nq - i0, s.pitch - j0,
                               0);
        load_tile<Slice, D>(V_smem, V + (size_t)j0 * s.d, s.d, s.Nk - j0, s.d, 0);
        __syncthreads(); // both tiles are complete
        O.add(P_smem, V_smem);
        __syncthreads(); // all have read them: the next turn overwrites
    }
    O.store(O_hbm + row * s.d, s.Nq - i0, s.d);
}

// ---- the host's side -----------------------------------------------------------------------

// d padded to what the kernels are compiled for.
inline int padded(int d) { return d <= 64 ? 64 : d <= 128 ? 128 : 256; }

// `Factors`: floats that the kernel which makes O has besides its tiles.
template <int Factors> bool supports(const attn_problem *p, unsigned, char *why, size_t why_size) {
    const int most = 65535 * Tile; // gridDim.y of scores
    size_t scores = 2 * Tile * Padded, O = Tile * Padded + Slice * padded(p->head_dim) + Factors;
    if (!fits(p, (scores > O ? scores : O) * sizeof(float), why, why_size)) return false;
    if (p->seqlen_k <= most) return true;
    snprintf(why, why_size, "Nk = %d is above %d, the most that gridDim.y can cover", p->seqlen_k,
             most);
    return false;
}

// Sectors that `scores` asks for, for one head: each row of Q once for each tile of keys, each row
// of K once for each tile of queries.
inline uint64_t scores_load(const attn_problem *p) {
    uint64_t Nq = p->seqlen_q, Nk = p->seqlen_k, row = p->head_dim / 8;
    return (Nq * ceil_div(Nk, Tile) + Nk * ceil_div(Nq, Tile)) * row;
}

} // namespace step02

#endif

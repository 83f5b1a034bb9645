// tiles.h - what the two orders of this step share: tiles in shared memory whose sizes are chosen
// at run time, and the four things that are done with them.
//
//   load_rows        HBM to a tile
//   scores           S = scale * Q K^T, masked
//   online_softmax   S to weights, and the running (m, l) of each row
//   add_weighted     O = factor * O + P V
//
// The sizes depend on M, the shared memory that a block may use (--sram): the larger M, the fewer
// bytes have to come from HBM. How many fewer is the subject of the step.
#ifndef TILES_H
#define TILES_H

#include "shape.h"

namespace step03 {

constexpr int Lanes = 32;
constexpr int Threads = 256, Warps = Threads / Lanes;

struct tile_sizes {
    int Br, Bc; // rows of Q and O; rows of K and V
};

//> on-chip
// Floats from one row to the next. Rows of d floats get 4 more: d is a multiple of 8, so the sum is
// an odd multiple of 4, and 16 bytes from each of 8 rows lie in different banks. Rows of S are
// written 8 floats at a time, from 4 rows: an odd multiple of 8 puts those in different banks.
__host__ __device__ inline int pitch_of_rows(int d) { return d + 4; }
__host__ __device__ inline int pitch_of_S(int Bc) { return Bc | 8; }

// Q and O, K and V, S, and (m, l, factor) of each row.
inline size_t bytes_on_chip(tile_sizes t, int d) {
    size_t floats = 2 * (t.Br + t.Bc) * pitch_of_rows(d) + t.Br * pitch_of_S(t.Bc) + 3 * t.Br;
    return floats * sizeof(float);
}
//< on-chip

//> tile-sizes
// The tile that the outer loop walks over takes as many rows as fit; the inner loop's has at most d
// rows, as in the paper. Both are multiples of 8, and have no more rows than there are.
inline tile_sizes with_outer(const attn_problem *p, bool queries_outside, int outer) {
    int inner_length = queries_outside ? p->seqlen_k : p->seqlen_q;
    int inner = (int)round_up(inner_length, 8);
    if (inner > p->head_dim) inner = p->head_dim;
    if (inner > outer) inner = outer;
    return queries_outside ? tile_sizes{outer, inner} : tile_sizes{inner, outer};
}

// The largest that fit in p->smem; {0, 0} if none do.
inline tile_sizes choose_tiles(const attn_problem *p, bool queries_outside) {
    int outer_length = queries_outside ? p->seqlen_q : p->seqlen_k;
    tile_sizes best = {0, 0};
    for (int outer = 8; outer < outer_length + 8; outer += 8) {
        tile_sizes next = with_outer(p, queries_outside, outer);
        if (bytes_on_chip(next, p->head_dim) > p->smem) break;
        best = next;
    }
    return best;
}
//< tile-sizes

// ---- tiles in shared memory --------------------------------------------------------------------

// Where in `smem` each tile starts. Rows of Q, K, V and O are pitch_of_rows(d) apart.
struct tiles {
    float *Q, *O;           // [Br, d]
    float *K, *V;           // [Bc, d]
    float *S;               // [Br, Bc], and then the weights in its place
    float *m, *l, *factor;  // [Br]
    int Br, Bc, row, S_row; // sizes, and the two pitches

    __device__ tiles(tile_sizes t, int d) : Br(t.Br), Bc(t.Bc) {
        row = pitch_of_rows(d), S_row = pitch_of_S(Bc);
        Q = (float *)smem, O = Q + Br * row;
        K = O + Br * row, V = K + Bc * row;
        S = V + Bc * row;
        m = S + Br * S_row, l = m + Br, factor = l + Br;
    }
};

//> first-tile
// The first tile of queries of which one sees key j0. With a causal mask, query i sees it if
// i >= j0 + Nq - Nk.
__host__ __device__ inline int first_tile(const shape &s, int Br, int j0) {
    int i = j0 + s.Nq - s.Nk;
    return s.causal && i > 0 ? i / Br * Br : 0;
}
//< first-tile

//> load-rows
// Copies `rows` rows of d floats, which follow one another in HBM, and fills up the tile's `most`
// rows with zeros. 16 bytes a thread; a warp's 512 bytes are 16 sectors.
__device__ inline void load_rows(float *tile, int pitch, int most, const float *hbm, int rows,
                                 int d) {
    int in_row = d / 4;
    for (int n0 = 0; n0 < most * in_row; n0 += Threads) {
        int n = n0 + threadIdx.x, r = n / in_row, c = n % in_row * 4;
        float4 x = make_float4(0, 0, 0, 0);
        if (r < rows && r < most) x = *(const float4 *)&hbm[(size_t)r * d + c];
        if (r < most) *(float4 *)&tile[r * pitch + c] = x;
    }
}
//< load-rows

// A warp's share of a tile product is 16 rows and 32 columns: a lane has the rows y, y + 4, y + 8
// and y + 12. Warps take such shares in turn. Tiles are multiples of 8, so the last share may hang
// over the edge by half: the lane then takes its first rows again in place of those beyond, and
// stores nothing.
__device__ inline int shares(int rows, int columns) {
    return (rows + 15) / 16 * ((columns + 31) / 32);
}

// first + more; if that is beyond `end`, without `back` of it.
__device__ inline int inside(int first, int more, int back, int end) {
    return first + more < end ? first + more : first + more - back;
}

__device__ inline float dot(float4 a, float4 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

//> scores
// S = scale * Q K^T; the tile's first query is i0, its first key j0.
__device__ inline void scores(const tiles &t, const shape &s, int i0, int j0) {
    int lane = threadIdx.x % Lanes;
    for (int share = threadIdx.x / Lanes; share < shares(t.Br, t.Bc); share += Warps) {
        int across = (t.Bc + 31) / 32;
        int y = share / across * 16 + lane / 8, x = share % across * 32 + lane % 8;
        const float *q_row[4], *k_row[4];
        for (int m = 0; m < 4; m++) q_row[m] = t.Q + inside(y, 4 * m, 8, t.Br) * t.row;
        for (int n = 0; n < 4; n++) k_row[n] = t.K + inside(x, 8 * n, 8 * n, t.Bc) * t.row;
        float S_reg[4][4] = {};
        for (int c = 0; c < s.d; c += 4) {
            float4 q[4], k[4];
            for (int m = 0; m < 4; m++) q[m] = *(const float4 *)&q_row[m][c];
            for (int n = 0; n < 4; n++) k[n] = *(const float4 *)&k_row[n][c];
            for (int m = 0; m < 4; m++)
                for (int n = 0; n < 4; n++) S_reg[m][n] += dot(q[m], k[n]);
        }
        for (int m = 0; m < 4; m++)
            for (int n = 0; n < 4; n++) {
                int r = y + 4 * m, c = x + 8 * n;
                float value = visible(s, i0 + r, j0 + c) ? s.scale * S_reg[m][n] : -INFINITY;
                if (r < t.Br && c < t.Bc) t.S[r * t.S_row + c] = value;
            }
    }
}
//< scores

__device__ inline float max_of_warp(float x) {
    for (int bits = Lanes / 2; bits; bits /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, bits));
    return x;
}

__device__ inline float sum_of_warp(float x) {
    for (int bits = Lanes / 2; bits; bits /= 2) x += __shfl_xor_sync(~0u, x, bits);
    return x;
}

//> online-softmax
// Step02's online update, with (m, l) in shared memory; one warp per row. Turns S into the weights
// exp(S - m) and leaves in `factor` what the row of O, made with the earlier weights, has to be
// multiplied by: if it has been divided by l already, by l as well.
__device__ inline void online_softmax(const tiles &t, bool O_is_divided) {
    int lane = threadIdx.x % Lanes;
    for (int r = threadIdx.x / Lanes; r < t.Br; r += Warps) {
        float *S_row = t.S + r * t.S_row;
        float m = t.m[r], m_new = m, l = 0;
        for (int c = lane; c < t.Bc; c += Lanes) m_new = fmaxf(m_new, S_row[c]);
        m_new = max_of_warp(m_new);
        float m_safe = m_new == -INFINITY ? 0 : m_new; // no key seen yet: all weights are 0
        for (int c = lane; c < t.Bc; c += Lanes) {
            float weight = expf(S_row[c] - m_safe);
            S_row[c] = weight;
            l += weight;
        }
        l = sum_of_warp(l);
        __syncwarp(); // all lanes have read m[r]
        if (lane == 0) {
            float l_old = t.l[r];
            float factor = expf(m - m_safe); // of the first tile: exp(-infinity) = 0
            t.factor[r] = O_is_divided ? factor * l_old : factor;
            t.l[r] = factor * l_old + l;
            t.m[r] = m_new;
        }
    }
}
//< online-softmax

//> add-weighted
// o += a * v
__device__ inline void add_scaled(float4 &o, float a, float4 v) {
    o.x += a * v.x;
    o.y += a * v.y;
    o.z += a * v.z;
    o.w += a * v.w;
}

// O = factor * O + P V
__device__ inline void add_weighted(const tiles &t, int d) {
    int lane = threadIdx.x % Lanes;
    for (int share = threadIdx.x / Lanes; share < shares(t.Br, d); share += Warps) {
        int across = (d + 31) / 32;
        int y = share / across * 16 + lane / 8, x = share % across * 32 + lane % 8 * 4;
        if (x >= d) continue;
        int row[4];
        float4 O_reg[4];
        for (int m = 0; m < 4; m++) {
            row[m] = inside(y, 4 * m, 8, t.Br);
            float4 o = *(const float4 *)&t.O[row[m] * t.row + x];
            O_reg[m] = make_float4(0, 0, 0, 0);
            add_scaled(O_reg[m], t.factor[row[m]], o);
        }
        for (int j = 0; j < t.Bc; j += 4) {
            float4 p[4], v[4];
            for (int m = 0; m < 4; m++) p[m] = *(const float4 *)&t.S[row[m] * t.S_row + j];
            for (int k = 0; k < 4; k++) v[k] = *(const float4 *)&t.V[(j + k) * t.row + x];
            for (int m = 0; m < 4; m++) {
                add_scaled(O_reg[m], p[m].x, v[0]);
                add_scaled(O_reg[m], p[m].y, v[1]);
                add_scaled(O_reg[m], p[m].z, v[2]);
                add_scaled(O_reg[m], p[m].w, v[3]);
            }
        }
        for (int m = 0; m < 4; m++)
            if (y + 4 * m < t.Br) *(float4 *)&t.O[row[m] * t.row + x] = O_reg[m];
    }
}
//< add-weighted

//> store-rows
// O / l to HBM, for the tile's first `rows` rows. Rows that have seen no key: l = 0, and O = 0.
__device__ inline void store_rows(float *O_hbm, const tiles &t, int rows, int d) {
    int in_row = d / 4;
    for (int n0 = 0; n0 < t.Br * in_row; n0 += Threads) {
        int n = n0 + threadIdx.x, r = n / in_row, c = n % in_row * 4;
        if (r >= t.Br || r >= rows) continue;
        float4 o = *(const float4 *)&t.O[r * t.row + c], scaled = make_float4(0, 0, 0, 0);
        add_scaled(scaled, 1 / (t.l[r] > 0 ? t.l[r] : 1), o);
        *(float4 *)&O_hbm[(size_t)r * d + c] = scaled;
    }
}
//< store-rows

// ---- the host's side ---------------------------------------------------------------------------

inline bool tiles_fit(const attn_problem *p, unsigned, char *why, size_t why_size) {
    return fits(p, bytes_on_chip({8, 8}, p->head_dim), why, why_size);
}

// The paper's M counts elements and leaves out S, which it does not need to store. Ours does.
inline void describe(const attn_problem *p, tile_sizes t, char *text, size_t size) {
    size_t M = p->smem / sizeof(float), d = p->head_dim, Bc = ceil_div(M, 4 * d);
    snprintf(text, size,
             "Br %d, Bc %d take %zu of %zu bytes; the paper's formula, for M = %zu elements: Bc = "
             "ceil(M / 4d) = %zu, Br = min(Bc, d) = %zu",
             t.Br, t.Bc, bytes_on_chip(t, p->head_dim), p->smem, M, Bc, Bc < d ? Bc : d);
}

// Sectors of one float for each of `rows` rows, the first being row `first` of [B * H * Nq]: 128
// bytes a warp, wherever in a sector they start.
inline uint64_t row_sectors(uint64_t first, uint64_t rows) {
    return request_sectors(first * sizeof(float), rows * sizeof(float), Lanes * sizeof(float));
}

} // namespace step03

#endif

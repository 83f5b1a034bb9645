// step02, rung 3: one pass, fused with P V.
//
// The idea: the trick that mends l mends O as well. O is a sum of rows of V with the weights
// exp(S - m); when the maximum grows, all weights so far are too large by the same factor, so scale
// O down by it and go on. Then P V does not have to wait for the whole row's maximum: a block reads
// a tile of S, makes its weights in shared memory, adds their product with V to O, and forgets
// them. The division by l comes at the end. S is written once and read once, and P does not exist:
// two passes over a matrix of N x N.
//
//   scores                 S = scale * Q K^T
//   softmax_weighted_sum   O = softmax(S) V, S tile by tile        one block per 64 rows
//
// New since rung 2: softmax and weighted_sum are one kernel. Step03 takes S out of HBM too.
//
// Run:     make run         (in this folder)
// Limits:  fp32; forward only.

#include "products.h"

namespace step02_3 {

using namespace step02;

__device__ static float max_of_warp(float x) {
    for (int bits = Lanes / 2; bits; bits /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, bits));
    return x;
}

__device__ static float sum_of_warp(float x) {
    for (int bits = Lanes / 2; bits; bits /= 2) x += __shfl_xor_sync(~0u, x, bits);
    return x;
}

//> online-update
// Takes a row's next 32 scores, one a lane, into its (m, l). Returns their weights exp(score - m),
// and in `factor` what the row's earlier weights, and so its l and its O, have to be multiplied by.
__device__ static float online_update(float score, float &m, float &l, float &factor) {
    float m_new = fmaxf(m, max_of_warp(score));
    float m_safe = m_new == -INFINITY ? 0 : m_new; // no key seen yet: all weights are 0
    float weight = expf(score - m_safe);
    factor = expf(m - m_safe); // of the first tile: exp(-infinity) = 0
    l = l * factor + sum_of_warp(weight);
    m = m_new;
    return weight;
}
//< online-update

// grid: x = B * H * ceil(Nq / 64) tiles of rows
template <int D>
__global__ void softmax_weighted_sum(const float *S_hbm, // [B, H, Nq, pitch]
                                     const float *V_hbm, // [B, Hkv, Nk, d]
                                     float *O_hbm,       // [B, H, Nq, d]
                                     float *LSE_hbm,     // [B, H, Nq]
                                     shape s) {
    __shared__ __align__(16) float P_smem[Tile][Padded]; // first S, then the weights in its place
    __shared__ __align__(16) float V_smem[Slice][D];
    __shared__ float factor_smem[Tile];
    const int Rows = Tile / Warps; // rows of S whose softmax is this warp's business
    int row_tiles = (s.Nq + Tile - 1) / Tile;
    int bh = blockIdx.x / row_tiles;
    int i0 = blockIdx.x % row_tiles * Tile; // first query of the tile
    size_t row = (size_t)bh * s.Nq + i0;
    const float *V = V_hbm + kv_head(s, bh) * s.Nk * s.d;
    int warp = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;

    //> fused
    rows_of_O<D> O;
    float m[Rows], l[Rows]; // the same in all lanes of the warp
    for (int r = 0; r < Rows; r++) m[r] = -INFINITY, l[r] = 0;
    for (int j0 = 0; j0 < s.Nk; j0 += Slice) {
        load_tile<Tile, Slice>(P_smem, S_hbm + row * s.pitch + j0, s.pitch, s.Nq - i0, s.pitch - j0,
                               -INFINITY);
        load_tile<Slice, D>(V_smem, V + (size_t)j0 * s.d, s.d, s.Nk - j0, s.d, 0);
        __syncthreads(); // both tiles are complete
        for (int r = 0; r < Rows; r++) {
            int i = warp * Rows + r;
            float factor;
            P_smem[i][lane] = online_update(P_smem[i][lane], m[r], l[r], factor);
            if (lane == 0) factor_smem[i] = factor;
        }
        __syncthreads(); // the weights and factors of all rows are there
        O.scale_rows(factor_smem);
        O.add(P_smem, V_smem);
        __syncthreads(); // all have read them: the next turn overwrites
    }

    for (int r = 0; r < Rows; r++) {
        int i = warp * Rows + r;
        if (lane != 0) continue;
        factor_smem[i] = 1 / (l[r] > 0 ? l[r] : 1);
        if (i0 + i < s.Nq) LSE_hbm[row + i] = m[r] + logf(l[r]);
    }
    __syncthreads(); // the factors of all rows are there
    O.scale_rows(factor_smem);
    O.store(O_hbm + row * s.d, s.Nq - i0, s.d);
    //< fused
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

enum { S_BUFFER, BUFFERS };

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    size_t bytes = attn_rows(p) * row_pitch(p) * sizeof(float);
    out[S_BUFFER] = {.name = "S", .bytes = bytes, .passes = ATTN_FORWARD, .matrix = true};
    return BUFFERS;
}

template <int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    shape s = shape_of(p);
    auto Q = (const float *)t->Q, K = (const float *)t->K, V = (const float *)t->V;
    auto S = (float *)t->buffer[S_BUFFER], O = (float *)t->O;
    unsigned row_tiles = p->batch * p->heads * ceil_div(s.Nq, Tile);

    LAUNCH(scores, dim3(row_tiles, ceil_div(s.Nk, Tile)), Threads, 0, Q, K, S, s);
    LAUNCH(softmax_weighted_sum<D>, row_tiles, Threads, 0, S, V, O, t->LSE, s);
}

static void forward(const attn_problem *p, const attn_tensors *t) {
    int D = padded(p->head_dim);
    (D == 64 ? launch<64> : D == 128 ? launch<128> : launch<256>)(p, t);
}

//> model
static attn_traffic model(const attn_problem *p, unsigned) {
    uint64_t Nq = p->seqlen_q, Nk = p->seqlen_k, row = p->head_dim / 8, S_row = ceil_div(Nk, 8);
    uint64_t softmax_weighted_sum = Nq * S_row + ceil_div(Nq, Tile) * Nk * row; // S, V
    uint64_t store = Nq * (S_row + 1 + row);                                    // S, LSE, O
    uint64_t heads = (uint64_t)p->batch * p->heads;
    return {.load = heads * (scores_load(p) + softmax_weighted_sum) * SECTOR,
            .store = heads * store * SECTOR};
}
//< model

static const attn_kernel kernel = {
    .step = "step02_online_softmax",
    .rung = 3,
    .name = "one-pass",
    .idea = "S is written once and read once, P never exists",
    .formula = "about (3 d / 16 + 4) N^2 loaded, 4 N^2 stored for each head",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .least_sm = 75,
    .supports = supports<Tile>,
    .buffers = buffers,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step02_3

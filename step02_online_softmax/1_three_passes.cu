// step02, rung 1: softmax in three passes.
//
// The idea: count how often a matrix of N x N elements moves. This is step01's last rung with the
// waste taken out of the rest: P V reads P once, and softmax reads 16 bytes at a time. What is left
// is the algorithm's own: S is written, read for the maximum, read for the sum, read once more to
// make P; P is written and read. Six passes over a matrix of N x N.
//
//   scores         S = scale * Q K^T
//   softmax        P = softmax(S): the maximum, the sum, the quotient      one warp per row
//   weighted_sum   O = P V
//
// The next two rungs take four of the six away.
//
// Run:     make run         (in this folder)
// Limits:  fp32; forward only.

#include "products.h"

namespace step02_1 {

using namespace step02;

__device__ static float max_of(float4 x) { return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)); }
__device__ static float sum_of(float4 x) { return (x.x + x.y) + (x.z + x.w); }

__device__ static float4 exp_of(float4 x, float m) {
    return make_float4(expf(x.x - m), expf(x.y - m), expf(x.z - m), expf(x.w - m));
}

// Four neighbours of a row of S; what is beyond its end is masked.
__device__ static float4 load_scores(const float *S_row, int j, int pitch) {
    return j < pitch ? *(const float4 *)&S_row[j] : all_four(-INFINITY);
}

// grid: x = B * H * Nq rows; block: one warp
__global__ void softmax(const float *S_hbm, // [B, H, Nq, pitch]
                        float *P_hbm,       // [B, H, Nq, pitch]
                        float *LSE_hbm,     // [B, H, Nq]
                        shape s) {
    size_t row = blockIdx.x;
    const float *S_row = S_hbm + row * s.pitch;
    float *P_row = P_hbm + row * s.pitch;
    int lane = threadIdx.x;

    //> softmax
    const int Turn = 4 * Lanes; // elements that the warp reads at once
    float m = -INFINITY;
    for (int j0 = 0; j0 < s.pitch; j0 += Turn)
        m = fmaxf(m, max_of(load_scores(S_row, j0 + 4 * lane, s.pitch)));
    for (int bits = Lanes / 2; bits; bits /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, bits));

    float m_safe = m == -INFINITY ? 0 : m; // a row that sees no key: every exp is 0, and so is l
    float l = 0;
    for (int j0 = 0; j0 < s.pitch; j0 += Turn)
        l += sum_of(exp_of(load_scores(S_row, j0 + 4 * lane, s.pitch), m_safe));
    for (int bits = Lanes / 2; bits; bits /= 2) l += __shfl_xor_sync(~0u, l, bits);

    float factor = 1 / (l > 0 ? l : 1);
    for (int j0 = 0; j0 < s.pitch; j0 += Turn) {
        int j = j0 + 4 * lane;
        float4 p = exp_of(load_scores(S_row, j, s.pitch), m_safe);
        if (j < s.pitch)
            *(float4 *)&P_row[j] =
                make_float4(p.x * factor, p.y * factor, p.z * factor, p.w * factor);
    }
    if (lane == 0) LSE_hbm[row] = m + logf(l);
    //< softmax
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

enum { S_BUFFER, P_BUFFER, BUFFERS };

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    size_t bytes = attn_rows(p) * row_pitch(p) * sizeof(float);
    out[S_BUFFER] = {.name = "S", .bytes = bytes, .passes = ATTN_FORWARD, .matrix = true};
    out[P_BUFFER] = {.name = "P", .bytes = bytes, .passes = ATTN_FORWARD, .matrix = true};
    return BUFFERS;
}

template <int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    shape s = shape_of(p);
    auto Q = (const float *)t->Q, K = (const float *)t->K, V = (const float *)t->V;
    auto S = (float *)t->buffer[S_BUFFER], P = (float *)t->buffer[P_BUFFER], O = (float *)t->O;
    unsigned row_tiles = p->batch * p->heads * ceil_div(s.Nq, Tile);

    LAUNCH(scores, dim3(row_tiles, ceil_div(s.Nk, Tile)), Threads, 0, Q, K, S, s);
    LAUNCH(softmax, attn_rows(p), Lanes, 0, S, P, t->LSE, s);
    LAUNCH(weighted_sum<D>, row_tiles, Threads, 0, P, V, O, s);
}

static void forward(const attn_problem *p, const attn_tensors *t) {
    int D = padded(p->head_dim);
    (D == 64 ? launch<64> : D == 128 ? launch<128> : launch<256>)(p, t);
}

static attn_traffic model(const attn_problem *p, unsigned) {
    uint64_t Nq = p->seqlen_q, Nk = p->seqlen_k, row = p->head_dim / 8, S_row = ceil_div(Nk, 8);
    uint64_t softmax = 3 * Nq * S_row;
    uint64_t weighted_sum = Nq * S_row + ceil_div(Nq, Tile) * Nk * row; // P, V
    uint64_t store = Nq * (S_row + S_row + 1 + row);                    // S, P, LSE, O
    uint64_t heads = (uint64_t)p->batch * p->heads;
    return {.load = heads * (scores_load(p) + softmax + weighted_sum) * SECTOR,
            .store = heads * store * SECTOR};
}

static const attn_kernel kernel = {
    .step = "step02_online_softmax",
    .rung = 1,
    .name = "three-passes",
    .idea = "softmax reads S for its maximum, its sum, and P",
    .formula = "about (3 d / 16 + 16) N^2 loaded, 8 N^2 stored for each head",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .least_sm = 75,
    .supports = supports<0>,
    .buffers = buffers,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step02_1

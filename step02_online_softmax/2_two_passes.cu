// step02, rung 2: the online softmax, two passes.
//
// The idea (Milakov and Gimelshein 2018, arXiv:1805.02867, Algorithm 3): maximum and sum in one
// pass. Keep l, the sum of exp(S - m), for the maximum m so far. When a larger maximum m' comes,
// all terms of the sum are too large by the same factor, so l exp(m - m') is the sum that we would
// have had with m' from the start. S is read twice instead of three times: five passes over a
// matrix of N x N.
//
//   scores         S = scale * Q K^T
//   softmax        (m, l) of a row in one pass, P in a second              one warp per row
//   weighted_sum   O = P V
//
// New since rung 1: struct partial and the first loop of softmax.
//
// Run:     make run         (in this folder)
// Limits:  fp32; forward only.

#include "products.h"

namespace step02_2 {

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

//> partial
// What is known of a row after some of its elements: m, their maximum, and l, the sum of exp(S - m)
// over them. Of no elements: m = -infinity, l = 0.
struct partial {
    float m, l;
};

// -infinity minus -infinity is not a number. Where no key has been seen yet, measure from 0: then
// every exp is 0, and so is l.
__device__ static float safe(float m) { return m == -INFINITY ? 0 : m; }

// Of the elements of both. The order does not matter, nor how elements were grouped before.
__device__ static partial merge(partial a, partial b) {
    float m = fmaxf(a.m, b.m), m_safe = safe(m);
    return {m, a.l * expf(a.m - m_safe) + b.l * expf(b.m - m_safe)};
}
//< partial

// grid: x = B * H * Nq rows; block: one warp
__global__ void softmax(const float *S_hbm, // [B, H, Nq, pitch]
                        float *P_hbm,       // [B, H, Nq, pitch]
                        float *LSE_hbm,     // [B, H, Nq]
                        shape s) {
    size_t row = blockIdx.x;
    const float *S_row = S_hbm + row * s.pitch;
    float *P_row = P_hbm + row * s.pitch;
    int lane = threadIdx.x;

    //> first-pass
    const int Turn = 4 * Lanes; // elements that the warp reads at once
    // First pass: each lane for its own elements, then all lanes' results into one.
    partial row_of_S = {-INFINITY, 0};
    for (int j0 = 0; j0 < s.pitch; j0 += Turn) {
        float4 x = load_scores(S_row, j0 + 4 * lane, s.pitch);
        float m = max_of(x);
        row_of_S = merge(row_of_S, {m, sum_of(exp_of(x, safe(m)))});
    }
    for (int bits = Lanes / 2; bits; bits /= 2)
        row_of_S = merge(row_of_S, {__shfl_xor_sync(~0u, row_of_S.m, bits),
                                    __shfl_xor_sync(~0u, row_of_S.l, bits)});
    //< first-pass

    // Second pass: P.
    float m = row_of_S.m, l = row_of_S.l, m_safe = safe(m);
    float factor = 1 / (l > 0 ? l : 1);
    for (int j0 = 0; j0 < s.pitch; j0 += Turn) {
        int j = j0 + 4 * lane;
        float4 p = exp_of(load_scores(S_row, j, s.pitch), m_safe);
        if (j < s.pitch)
            *(float4 *)&P_row[j] =
                make_float4(p.x * factor, p.y * factor, p.z * factor, p.w * factor);
    }
    if (lane == 0) LSE_hbm[row] = m + logf(l);
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
    uint64_t softmax = 2 * Nq * S_row;
    uint64_t weighted_sum = Nq * S_row + ceil_div(Nq, Tile) * Nk * row; // P, V
    uint64_t store = Nq * (S_row + S_row + 1 + row);                    // S, P, LSE, O
    uint64_t heads = (uint64_t)p->batch * p->heads;
    return {.load = heads * (scores_load(p) + softmax + weighted_sum) * SECTOR,
            .store = heads * store * SECTOR};
}

static const attn_kernel kernel = {
    .step = "step02_online_softmax",
    .rung = 2,
    .name = "two-passes",
    .idea = "online softmax: S is read for (m, l) at once, and for P",
    .formula = "about (3 d / 16 + 12) N^2 loaded, 8 N^2 stored for each head",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .least_sm = 75,
    .supports = supports<0>,
    .buffers = buffers,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step02_2

// step00: attention through HBM.
//
// The idea: none yet. This is attention as its definition reads, three kernels one after the other,
// with the matrices S and P, N x N for every head, written to HBM by one and read by the next:
//
//   scores         S = scale * Q K^T      one thread per element of S
//   softmax        P = softmax(S)         one warp per row
//   weighted_sum   O = P V                one thread per element of O
//
// It is the "standard attention implementation" (Algorithm 0) of the FlashAttention paper, Dao et al.
// 2022, arXiv:2205.14135. Every operand comes straight from HBM, as often as it is used: nothing is
// kept in shared memory, so what the later steps save can be read off against this one.
//
// Run:     make run         (in this folder)
// Limits:  fp32. S and P take 8 N^2 bytes for each head.

#include "kernel.h"

namespace step00 {

constexpr int Lanes = 32;    // a warp covers 32 neighbouring columns of one row
constexpr int Rows = 8;      // a block of scores or weighted_sum: 8 warps, 8 rows

// What a block needs to find its head in the tensors, besides blockIdx.
struct shape {
    int heads, kv_heads;     // H, Hkv
    int Nq, Nk, d;
    size_t pitch;            // elements from one row of S or P to the next
    bool causal;
    float scale;
};

// S and P have rows of Nk elements, padded to whole 32-byte sectors. So every row starts a sector,
// a warp's 32 elements are 4 sectors whatever the row, and the traffic has a closed form (model).
static size_t row_pitch(const attn_problem *p) { return round_up(p->seqlen_k, SECTOR / sizeof(float)); }

// The key/value head that query head `bh` of [B * H] reads: heads / kv_heads neighbours share one.
__device__ static size_t kv_head(const shape &s, int bh) {
    int b = bh / s.heads, h = bh % s.heads;
    return (size_t)b * s.kv_heads + h / (s.heads / s.kv_heads);
}

//> scores
// grid: x = B * H * ceil(Nq / 8) tiles of rows, y = ceil(Nk / 32) tiles of columns
__global__ void scores(const float *Q_hbm,    // [B, H, Nq, d]
                       const float *K_hbm,    // [B, Hkv, Nk, d]
                       float *S_hbm,          // [B, H, Nq, pitch]
                       shape s) {
    int row_tiles = (s.Nq + Rows - 1) / Rows;
    int bh = blockIdx.x / row_tiles;
    int i = blockIdx.x % row_tiles * Rows + threadIdx.y;    // query
    int j = blockIdx.y * Lanes + threadIdx.x;               // key
    if (i >= s.Nq || j >= s.Nk) return;

    size_t row = (size_t)bh * s.Nq + i;
    const float *q = Q_hbm + row * s.d;
    const float *k = K_hbm + (kv_head(s, bh) * s.Nk + j) * s.d;
    float dot = 0;
    for (int c = 0; c < s.d; c++) dot += q[c] * k[c];

    bool visible = !s.causal || j <= i + s.Nk - s.Nq;
    S_hbm[row * s.pitch + j] = visible ? s.scale * dot : -INFINITY;
}
//< scores

//> softmax
// grid: x = B * H * Nq rows; block: one warp
__global__ void softmax(const float *S_hbm,    // [B, H, Nq, pitch]
                        float *P_hbm,          // [B, H, Nq, pitch]
                        float *LSE_hbm,        // [B, H, Nq]
                        shape s) {
    size_t row = blockIdx.x;
    const float *S_row = S_hbm + row * s.pitch;
    float *P_row = P_hbm + row * s.pitch;
    int lane = threadIdx.x;

    // Each pass reads the row from HBM again. The loops count tiles, not elements, so that all
    // lanes make the same number of turns and each turn is one request of the warp.
    float m = -INFINITY;
    for (int j0 = 0; j0 < s.Nk; j0 += Lanes) {
        int j = j0 + lane;
        if (j < s.Nk) m = fmaxf(m, S_row[j]);
    }
    for (int bits = Lanes / 2; bits; bits /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, bits));

    // A row that sees no key has m = -inf, and -inf - (-inf) is NaN: measure it from 0 instead.
    // Then every exp is 0 and l is 0; dividing by 1 instead makes P 0. (With a test around the
    // division nvcc would skip the load as well, and such rows would ask for less than the rest.)
    float m_safe = m == -INFINITY ? 0 : m;
    float l = 0;
    for (int j0 = 0; j0 < s.Nk; j0 += Lanes) {
        int j = j0 + lane;
        if (j < s.Nk) l += expf(S_row[j] - m_safe);
    }
    for (int bits = Lanes / 2; bits; bits /= 2) l += __shfl_xor_sync(~0u, l, bits);

    float l_safe = l > 0 ? l : 1;
    for (int j0 = 0; j0 < s.Nk; j0 += Lanes) {
        int j = j0 + lane;
        if (j < s.Nk) P_row[j] = expf(S_row[j] - m_safe) / l_safe;
    }
    if (lane == 0) LSE_hbm[row] = m + logf(l);    // -inf where no key is seen
}
//< softmax

//> weighted-sum
// grid: x = B * H * ceil(Nq / 8) tiles of rows, y = ceil(d / 32) tiles of columns
__global__ void weighted_sum(const float *P_hbm,    // [B, H, Nq, pitch]
                             const float *V_hbm,    // [B, Hkv, Nk, d]
                             float *O_hbm,          // [B, H, Nq, d]
                             shape s) {
    int row_tiles = (s.Nq + Rows - 1) / Rows;
    int bh = blockIdx.x / row_tiles;
    int i = blockIdx.x % row_tiles * Rows + threadIdx.y;    // query
    int c = blockIdx.y * Lanes + threadIdx.x;               // column of V and O
    if (i >= s.Nq || c >= s.d) return;

    size_t row = (size_t)bh * s.Nq + i;
    const float *P_row = P_hbm + row * s.pitch;
    const float *v = V_hbm + kv_head(s, bh) * s.Nk * s.d + c;
    float o = 0;
    for (int j = 0; j < s.Nk; j++) o += P_row[j] * v[(size_t)j * s.d];
    O_hbm[row * s.d + c] = o;
}
//< weighted-sum

// ---- the host's side: what the harness asks of a rung ------------------------------------------

enum { S_BUFFER, P_BUFFER, BUFFERS };

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    size_t bytes = attn_rows(p) * row_pitch(p) * sizeof(float);
    out[S_BUFFER] = {.name = "S", .bytes = bytes, .passes = ATTN_FORWARD, .kept = false};
    out[P_BUFFER] = {.name = "P", .bytes = bytes, .passes = ATTN_FORWARD, .kept = false};
    return BUFFERS;
}

static bool supports(const attn_problem *p, char *why, size_t why_size) {
    const int most = 65535 * Lanes;    // gridDim.y
    if (p->seqlen_k <= most) return true;
    snprintf(why, why_size, "Nk = %d is above %d, the most that gridDim.y can cover", p->seqlen_k, most);
    return false;
}

//> forward
static void forward(const attn_problem *p, const attn_tensors *t) {
    shape s = {p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim, row_pitch(p), p->causal, p->scale};
    auto Q = (const float *)t->Q, K = (const float *)t->K, V = (const float *)t->V;
    auto S = (float *)t->buffer[S_BUFFER], P = (float *)t->buffer[P_BUFFER], O = (float *)t->O;
    unsigned row_tiles = p->batch * p->heads * ceil_div(s.Nq, Rows);
    dim3 block(Lanes, Rows);

    LAUNCH(scores, dim3(row_tiles, ceil_div(s.Nk, Lanes)), block, 0, Q, K, S, s);
    LAUNCH(softmax, attn_rows(p), Lanes, 0, S, P, t->LSE, s);
    LAUNCH(weighted_sum, dim3(row_tiles, ceil_div(s.d, Lanes)), block, 0, P, V, O, s);
}
//< forward

//> model
// Counted in sectors, for one row of S (one query); d is a multiple of 8 floats, one sector.
static attn_traffic model(const attn_problem *p, unsigned) {
    uint64_t Nk = p->seqlen_k, d = p->head_dim;
    uint64_t S_row = ceil_div(Nk, 8);    // 8 floats to a sector

    // scores, at each of d turns: q[c] is one address for the whole warp, one sector a tile of 32
    // keys; k[c] lies in another row of K for every lane, one sector a key, 28 of its 32 bytes unused.
    uint64_t load = d * (ceil_div(Nk, Lanes) + Nk);
    // softmax reads its row of S three times.
    load += 3 * S_row;
    // weighted_sum, at each of Nk turns: P is one sector for the warp, V is d / 8 for the row.
    load += Nk * (ceil_div(d, Lanes) + d / 8);

    uint64_t store = S_row + S_row + 1 + d / 8;    // S, P, LSE, O
    return {.load = attn_rows(p) * load * SECTOR, .store = attn_rows(p) * store * SECTOR};
}
//< model

static const attn_kernel kernel = {
    .step = "step00_naive",
    .rung = 1,
    .name = "naive",
    .idea = "S and P, N x N for every head, go through HBM",
    .formula = "load (38 d + 12) N^2, store 8 N^2 bytes a head",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .least_sm = 75,
    .supports = supports,
    .buffers = buffers,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

}    // namespace step00

// step00: attention through HBM.
//
// The idea: attention as its definition reads, one kernel after the other, with
// matrices of N x N elements for every head written to HBM by one and read by the next:
//
//   forward    scores              S = scale * Q K^T              one thread per element of S
//              softmax             P = softmax(S)                 one warp per row
//              weighted_sum        O = P V                        one thread per element of O
//
//   backward   transposed_sum      dV = P^T dO                    one thread per element of dV
//              scores              dP = dO V^T
//              softmax_backward    dS = P o (dP - rowsum(P o dP)) one warp per row
//              weighted_sum        dQ = scale * dS K
//              transposed_sum      dK = scale * dS^T Q
//
// It is the "standard attention implementation" of the FlashAttention paper (Dao et al. 2022,
// arXiv:2205.14135), Algorithms 0 and 3. The forward keeps P in HBM for the backward. Every operand
// comes straight from HBM, as often as it is used: nothing is kept in shared memory, so what the
// later steps save can be read off against this one.
//
// Run:     make run         (in this folder)
// Limits:  fp32. S and P take 8 N^2 bytes for each head, dP and dS as much again.

#include "shape.h"

namespace step00 {

constexpr int Lanes = 32; // a warp covers 32 neighbouring columns of one row
constexpr int Rows = 8;   // a block of scores or weighted_sum: 8 warps, 8 rows

//> scores
// grid: x = B * H * ceil(Nq / 8) tiles of rows, y = ceil(Nk / 32) tiles of columns
__global__ void scores(const float *Q_hbm, // [B, H, Nq, d]
                       const float *K_hbm, // [B, Hkv, Nk, d]
                       float *S_hbm,       // [B, H, Nq, pitch]
                       shape s) {
    int row_tiles = (s.Nq + Rows - 1) / Rows;
    int bh = blockIdx.x / row_tiles;
    int i = blockIdx.x % row_tiles * Rows + threadIdx.y; // query
    int j = blockIdx.y * Lanes + threadIdx.x;            // key
    if (i >= s.Nq || j >= s.Nk) return;

    size_t row = (size_t)bh * s.Nq + i;
    const float *q = Q_hbm + row * s.d;
    const float *k = K_hbm + (kv_head(s, bh) * s.Nk + j) * s.d;
    float dot = 0;
    for (int c = 0; c < s.d; c++) dot += q[c] * k[c];

    S_hbm[row * s.pitch + j] = visible(s, i, j) ? s.scale * dot : -INFINITY;
}
//< scores

//> softmax
// grid: x = B * H * Nq rows; block: one warp
__global__ void softmax(const float *S_hbm, // [B, H, Nq, pitch]
                        float *P_hbm,       // [B, H, Nq, pitch]
                        float *LSE_hbm,     // [B, H, Nq]
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
    if (lane == 0) LSE_hbm[row] = m + logf(l); // -inf where no key is seen
}
//< softmax

//> weighted-sum
// grid: x = B * H * ceil(Nq / 8) tiles of rows, y = ceil(d / 32) tiles of columns
__global__ void weighted_sum(const float *P_hbm, // [B, H, Nq, pitch]
                             const float *V_hbm, // [B, Hkv, Nk, d]
                             float *O_hbm,       // [B, H, Nq, d]
                             shape s, float factor) {
    int row_tiles = (s.Nq + Rows - 1) / Rows;
    int bh = blockIdx.x / row_tiles;
    int i = blockIdx.x % row_tiles * Rows + threadIdx.y; // query
    int c = blockIdx.y * Lanes + threadIdx.x;            // column of V and O
    if (i >= s.Nq || c >= s.d) return;

    size_t row = (size_t)bh * s.Nq + i;
    const float *P_row = P_hbm + row * s.pitch;
    const float *v = V_hbm + kv_head(s, bh) * s.Nk * s.d + c;
    float o = 0;
    for (int j = 0; j < s.Nk; j++) o += P_row[j] * v[(size_t)j * s.d];
    O_hbm[row * s.d + c] = factor * o;
}
//< weighted-sum

//> transposed-sum
// X_j = factor * sum over i of A_ij Y_i: the product with A^T. With grouped heads it also sums over
// the query heads that share key/value head of X; one thread does the whole sum, so no atomics.
// grid: x = B * Hkv * ceil(Nk / 8) tiles of rows, y = ceil(d / 32) tiles of columns
__global__ void transposed_sum(const float *A_hbm, // [B, H, Nq, pitch]   P or dS
                               const float *Y_hbm, // [B, H, Nq, d]       dO or Q
                               float *X_hbm,       // [B, Hkv, Nk, d]     dV or dK
                               shape s, float factor) {
    int row_tiles = (s.Nk + Rows - 1) / Rows;
    int kv = blockIdx.x / row_tiles;                     // key/value head, of [B * Hkv]
    int j = blockIdx.x % row_tiles * Rows + threadIdx.y; // key
    int c = blockIdx.y * Lanes + threadIdx.x;            // column of X and Y
    if (j >= s.Nk || c >= s.d) return;

    // The group's query heads are neighbours, so its rows of A and Y follow one another.
    size_t first_row = (size_t)kv * group(s) * s.Nq;
    const float *a = A_hbm + first_row * s.pitch + j;
    const float *y = Y_hbm + first_row * s.d + c;
    float x = 0;
    for (int i = 0; i < group(s) * s.Nq; i++) x += a[(size_t)i * s.pitch] * y[(size_t)i * s.d];
    X_hbm[((size_t)kv * s.Nk + j) * s.d + c] = factor * x;
}
//< transposed-sum

//> softmax-backward
// grid: x = B * H * Nq rows; block: one warp
__global__ void softmax_backward(const float *P_hbm,  // [B, H, Nq, pitch]
                                 const float *dP_hbm, // [B, H, Nq, pitch]
                                 float *dS_hbm,       // [B, H, Nq, pitch]
                                 shape s) {
    size_t row = (size_t)blockIdx.x * s.pitch;
    int lane = threadIdx.x;

    float D = 0; // rowsum(P o dP): the mean of the row's dP, weighted by P
    for (int j0 = 0; j0 < s.Nk; j0 += Lanes) {
        int j = j0 + lane;
        if (j < s.Nk) D += P_hbm[row + j] * dP_hbm[row + j];
    }
    for (int bits = Lanes / 2; bits; bits /= 2) D += __shfl_xor_sync(~0u, D, bits);

    for (int j0 = 0; j0 < s.Nk; j0 += Lanes) {
        int j = j0 + lane;
        if (j < s.Nk) dS_hbm[row + j] = P_hbm[row + j] * (dP_hbm[row + j] - D);
    }
}
//< softmax-backward

// ---- the host's side: what the harness asks of a rung ------------------------------------------

enum { S_BUFFER, P_BUFFER, dP_BUFFER, dS_BUFFER, BUFFERS };

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    size_t bytes = attn_rows(p) * row_pitch(p) * sizeof(float);
    out[S_BUFFER] = {.name = "S", .bytes = bytes, .passes = ATTN_FORWARD, .matrix = true};
    out[P_BUFFER] = {.name = "P",
                     .bytes = bytes,
                     .passes = ATTN_FORWARD | ATTN_BACKWARD,
                     .kept = true,
                     .matrix = true};
    out[dP_BUFFER] = {.name = "dP", .bytes = bytes, .passes = ATTN_BACKWARD, .matrix = true};
    out[dS_BUFFER] = {.name = "dS", .bytes = bytes, .passes = ATTN_BACKWARD, .matrix = true};
    return BUFFERS;
}

static bool supports(const attn_problem *p, unsigned, char *why, size_t why_size) {
    const int most = 65535 * Lanes; // gridDim.y of scores
    if (p->seqlen_k <= most) return true;
    snprintf(why, why_size, "Nk = %d is above %d, the most that gridDim.y can cover", p->seqlen_k,
             most);
    return false;
}

//> forward
static void forward(const attn_problem *p, const attn_tensors *t) {
    shape s = shape_of(p);
    auto Q = (const float *)t->Q, K = (const float *)t->K, V = (const float *)t->V;
    auto S = (float *)t->buffer[S_BUFFER], P = (float *)t->buffer[P_BUFFER], O = (float *)t->O;
    unsigned row_tiles = p->batch * p->heads * ceil_div(s.Nq, Rows);
    dim3 block(Lanes, Rows);

    LAUNCH(scores, dim3(row_tiles, ceil_div(s.Nk, Lanes)), block, 0, Q, K, S, s);
    LAUNCH(softmax, attn_rows(p), Lanes, 0, S, P, t->LSE, s);
    LAUNCH(weighted_sum, dim3(row_tiles, ceil_div(s.d, Lanes)), block, 0, P, V, O, s, 1.f);
}
//< forward

//> backward
static void backward(const attn_problem *p, const attn_tensors *t) {
    shape s = shape_of(p);
    auto Q = (const float *)t->Q, K = (const float *)t->K, V = (const float *)t->V,
         dO = (const float *)t->dO;
    auto P = (const float *)t->buffer[P_BUFFER]; // as the forward left it
    auto dP = (float *)t->buffer[dP_BUFFER], dS = (float *)t->buffer[dS_BUFFER];
    auto dQ = (float *)t->dQ, dK = (float *)t->dK, dV = (float *)t->dV;
    dim3 block(Lanes, Rows);
    dim3 over_queries(p->batch * p->heads * ceil_div(s.Nq, Rows), ceil_div(s.d, Lanes));
    dim3 over_keys(p->batch * p->kv_heads * ceil_div(s.Nk, Rows), ceil_div(s.d, Lanes));
    dim3 over_pairs(over_queries.x, ceil_div(s.Nk, Lanes));

    LAUNCH(transposed_sum, over_keys, block, 0, P, dO, dV, s, 1.f);
    // dP = dO V^T is the product that made S, without scale or mask: where P is 0, dS will be too.
    shape plain = s;
    plain.scale = 1, plain.causal = false;
    LAUNCH(scores, over_pairs, block, 0, dO, V, dP, plain);
    LAUNCH(softmax_backward, attn_rows(p), Lanes, 0, P, dP, dS, s);
    LAUNCH(weighted_sum, over_queries, block, 0, dS, K, dQ, s, s.scale);
    LAUNCH(transposed_sum, over_keys, block, 0, dS, Q, dK, s, s.scale);
}
//< backward

//> model
// All in sectors; d is a multiple of 8 floats, one sector. For N and d multiples of 32 a row of the
// forward loads d (N/32 + N) + 3N/8 + N (d/32 + d/8) = N (38 d + 12) / 32 sectors: the `formula`
// below.
struct sectors_of {
    uint64_t load, store;
};

// One row of S. At each of d turns, q[c] is one address for the whole warp, one sector for a tile
// of 32 keys; k[c] lies in another row of K for every lane, one sector a key, 28 of its 32 bytes
// unused.
static sectors_of scores_row(uint64_t Nk, uint64_t d) {
    return {d * (ceil_div(Nk, Lanes) + Nk), ceil_div(Nk, 8)};
}

// One row of a product with P or dS, of `turns` terms. At each turn the weight is one sector for
// the warp, and the row of V (K, dO, Q) is d / 8.
static sectors_of sum_row(uint64_t turns, uint64_t d) {
    return {turns * (ceil_div(d, Lanes) + d / 8), d / 8};
}

static attn_traffic model(const attn_problem *p, unsigned pass) {
    uint64_t Nq = p->seqlen_q, Nk = p->seqlen_k, d = p->head_dim, S_row = ceil_div(Nk, 8);
    uint64_t rows = attn_rows(p), kv_rows = (uint64_t)p->batch * p->kv_heads * Nk;
    sectors_of S = scores_row(Nk, d), O = sum_row(Nk, d);
    if (pass == ATTN_FORWARD) {
        uint64_t load = S.load + 3 * S_row + O.load;    // softmax reads its row three times
        uint64_t store = S.store + S_row + 1 + O.store; // S, P, LSE, O
        return {.load = rows * load * SECTOR, .store = rows * store * SECTOR};
    }
    sectors_of dV = sum_row(p->heads / p->kv_heads * Nq, d); // dK likewise
    uint64_t load = S.load + 4 * S_row + O.load;             // dP; P and dP twice; dQ
    uint64_t store = S.store + S_row + O.store;
    return {.load = (rows * load + 2 * kv_rows * dV.load) * SECTOR,
            .store = (rows * store + 2 * kv_rows * dV.store) * SECTOR};
}
//< model

static const attn_kernel kernel = {
    .step = "step00_naive",
    .rung = 1,
    .name = "naive",
    .idea = "S and P, N x N for every head, go through HBM",
    .formula = "about (38 d + 12) N^2 loaded, 8 N^2 stored for each head",
    .backward_formula = "about (48 d + 16) N^2 loaded, 8 N^2 stored for each head",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD | ATTN_BACKWARD,
    .least_sm = 75,
    .supports = supports,
    .buffers = buffers,
    .forward = forward,
    .backward = backward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step00

// step01, rung 1: tiles in shared memory.
//
// The idea: step00 asks HBM for every operand of every multiplication. Here the threads of a block,
// which make a square tile of S, first fetch together what all of them need: a tile of Q and a tile
// of K, each element once. Then each element in shared memory is used by a whole row or column of
// threads. So Q and K are asked for Tile times less; and in the same way P and V, for O = PV.
//
//   scores         S = scale * Q K^T      one block per tile of S, one thread per element
//   softmax        P = softmax(S)         as in step00: one warp per row
//   weighted_sum   O = P V                one block per tile of O, one thread per element
//
// New since step00: shared memory, __syncthreads(), a column of padding against bank conflicts.
// S and P still go through HBM, and are now most of what is left.
//
// Run:     make run                                            (in this folder)
//          make run ARGS="--kernel tiled-8,tiled-16,tiled"     the same with smaller tiles
// Limits:  fp32; forward only.

#include "shape.h"

namespace step01_1 {

constexpr int Lanes = 32;

//> scores
// grid: x = B * H * ceil(Nq / Tile) tiles of rows, y = ceil(Nk / Tile) tiles of columns
template <int Tile>
__global__ void scores(const float *Q_hbm, // [B, H, Nq, d]
                       const float *K_hbm, // [B, Hkv, Nk, d]
                       float *S_hbm,       // [B, H, Nq, pitch]
                       shape s) {
    __shared__ float Q_smem[Tile][Tile];
    __shared__ float K_smem[Tile][Tile + 1]; // one more, so that a column lies in different banks
    int x = threadIdx.x, y = threadIdx.y;
    int row_tiles = (s.Nq + Tile - 1) / Tile;
    int bh = blockIdx.x / row_tiles;
    int i0 = blockIdx.x % row_tiles * Tile; // first query of the tile
    int j0 = blockIdx.y * Tile;             // first key
    const float *Q = Q_hbm + ((size_t)bh * s.Nq + i0) * s.d;
    const float *K = K_hbm + (kv_head(s, bh) * s.Nk + j0) * s.d;

    float dot = 0;
    for (int c0 = 0; c0 < s.d; c0 += Tile) {
        bool inside = c0 + x < s.d; // beyond the edges the tiles hold zeros, which add nothing
        Q_smem[y][x] = inside && i0 + y < s.Nq ? Q[(size_t)y * s.d + c0 + x] : 0;
        K_smem[y][x] = inside && j0 + y < s.Nk ? K[(size_t)y * s.d + c0 + x] : 0;
        __syncthreads(); // both tiles are complete: each thread reads what others have fetched
        for (int c = 0; c < Tile; c++) dot += Q_smem[y][c] * K_smem[x][c];
        __syncthreads(); // all have read them: the next turn overwrites
    }

    // The padding at the end of a row of S is masked like a key that nobody sees: the softmax will
    // make P 0 there, and weighted_sum can read on without a test.
    int i = i0 + y, j = j0 + x;
    if (i >= s.Nq || j >= s.pitch) return;
    S_hbm[((size_t)bh * s.Nq + i) * s.pitch + j] = visible(s, i, j) ? s.scale * dot : -INFINITY;
}
//< scores

// grid: x = B * H * Nq rows; block: one warp. As in step00, but for the padding.
__global__ void softmax(const float *S_hbm, // [B, H, Nq, pitch]
                        float *P_hbm,       // [B, H, Nq, pitch]
                        float *LSE_hbm,     // [B, H, Nq]
                        shape s) {
    size_t row = blockIdx.x;
    int lane = threadIdx.x, pitch = s.pitch;
    const float *S_row = S_hbm + row * pitch;
    float *P_row = P_hbm + row * pitch;

    float m = -INFINITY;
    for (int j0 = 0; j0 < pitch; j0 += Lanes)
        if (j0 + lane < pitch) m = fmaxf(m, S_row[j0 + lane]);
    for (int bits = Lanes / 2; bits; bits /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, bits));

    float m_safe = m == -INFINITY ? 0 : m; // a row that sees no key: every exp is 0, and so is l
    float l = 0;
    for (int j0 = 0; j0 < pitch; j0 += Lanes)
        if (j0 + lane < pitch) l += expf(S_row[j0 + lane] - m_safe);
    for (int bits = Lanes / 2; bits; bits /= 2) l += __shfl_xor_sync(~0u, l, bits);

    float l_safe = l > 0 ? l : 1;
    for (int j0 = 0; j0 < pitch; j0 += Lanes)
        if (j0 + lane < pitch) P_row[j0 + lane] = expf(S_row[j0 + lane] - m_safe) / l_safe;
    if (lane == 0) LSE_hbm[row] = m + logf(l);
}

// grid: x = B * H * ceil(Nq / Tile) tiles of rows, y = ceil(d / Tile) tiles of columns
template <int Tile>
__global__ void weighted_sum(const float *P_hbm, // [B, H, Nq, pitch]
                             const float *V_hbm, // [B, Hkv, Nk, d]
                             float *O_hbm,       // [B, H, Nq, d]
                             shape s) {
    __shared__ float P_smem[Tile][Tile];
    __shared__ float V_smem[Tile][Tile]; // read along rows: no padding needed
    int x = threadIdx.x, y = threadIdx.y;
    int row_tiles = (s.Nq + Tile - 1) / Tile, pitch = s.pitch;
    int bh = blockIdx.x / row_tiles;
    int i = blockIdx.x % row_tiles * Tile + y; // query
    int c = blockIdx.y * Tile + x;             // column of V and O
    const float *P_row = P_hbm + ((size_t)bh * s.Nq + i) * pitch;
    const float *V = V_hbm + kv_head(s, bh) * s.Nk * s.d;

    //> weighted-sum
    float o = 0;
    for (int j0 = 0; j0 < s.Nk; j0 += Tile) {
        P_smem[y][x] = i < s.Nq && j0 + x < pitch ? P_row[j0 + x] : 0;
        V_smem[y][x] = j0 + y < s.Nk && c < s.d ? V[(size_t)(j0 + y) * s.d + c] : 0;
        __syncthreads(); // both tiles are complete
        for (int j = 0; j < Tile; j++) o += P_smem[y][j] * V_smem[j][x];
        __syncthreads(); // all have read them: the next turn overwrites
    }
    if (i < s.Nq && c < s.d) O_hbm[((size_t)bh * s.Nq + i) * s.d + c] = o;
    //< weighted-sum
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

enum { S_BUFFER, P_BUFFER, BUFFERS };

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    size_t bytes = attn_rows(p) * row_pitch(p) * sizeof(float);
    out[S_BUFFER] = {.name = "S", .bytes = bytes, .passes = ATTN_FORWARD, .matrix = true};
    out[P_BUFFER] = {.name = "P", .bytes = bytes, .passes = ATTN_FORWARD, .matrix = true};
    return BUFFERS;
}

template <int Tile>
static bool supports(const attn_problem *p, unsigned, char *why, size_t why_size) {
    const int most = 65535 * Tile; // gridDim.y of scores
    if (!fits(p, Tile * (2 * Tile + 1) * sizeof(float), why, why_size)) return false;
    if (p->seqlen_k <= most) return true;
    snprintf(why, why_size, "Nk = %d is above %d, the most that gridDim.y can cover", p->seqlen_k,
             most);
    return false;
}

template <int Tile> static void forward(const attn_problem *p, const attn_tensors *t) {
    shape s = shape_of(p);
    auto Q = (const float *)t->Q, K = (const float *)t->K, V = (const float *)t->V;
    auto S = (float *)t->buffer[S_BUFFER], P = (float *)t->buffer[P_BUFFER], O = (float *)t->O;
    unsigned row_tiles = p->batch * p->heads * ceil_div(s.Nq, Tile);
    dim3 block(Tile, Tile);

    LAUNCH(scores<Tile>, dim3(row_tiles, ceil_div(s.Nk, Tile)), block, 0, Q, K, S, s);
    LAUNCH(softmax, attn_rows(p), Lanes, 0, S, P, t->LSE, s);
    LAUNCH(weighted_sum<Tile>, dim3(row_tiles, ceil_div(s.d, Tile)), block, 0, P, V, O, s);
}

//> model
// All in sectors. A tile of Q or K is Tile rows of d / 8 sectors. So each row of Q is asked for
// once for each tile of keys, each row of K once for each tile of queries, and each row of P once
// for each tile of columns of O.
template <int Tile> static attn_traffic model(const attn_problem *p, unsigned) {
    uint64_t Nq = p->seqlen_q, Nk = p->seqlen_k, row = p->head_dim / 8, S_row = ceil_div(Nk, 8);
    uint64_t Tr = ceil_div(Nq, Tile), Tc = ceil_div(Nk, Tile),
             columns = ceil_div(p->head_dim, Tile);
    uint64_t scores = Nq * Tc * row + Nk * Tr * row;
    uint64_t softmax = 3 * Nq * S_row;
    uint64_t weighted_sum = Nq * columns * S_row + Nk * Tr * row;
    uint64_t store = Nq * (S_row + S_row + 1 + row); // S, P, LSE, O
    uint64_t heads = (uint64_t)p->batch * p->heads;
    return {.load = heads * (scores + softmax + weighted_sum) * SECTOR,
            .store = heads * store * SECTOR};
}
//< model

template <int Tile> static constexpr attn_kernel rung(const char *name) {
    return {
        .step = "step01_tiling",
        .rung = 1,
        .name = name,
        .idea = "tiles in shared memory; S and P through HBM",
        .formula = "about (16 d / Tile + 12) N^2 loaded, 8 N^2 stored for each head",
        .dtypes = 1u << ATTN_FP32,
        .passes = ATTN_FORWARD,
        .least_sm = 75,
        .variant = Tile != 32,
        .supports = supports<Tile>,
        .buffers = buffers,
        .forward = forward<Tile>,
        .model = model<Tile>,
    };
}

static const attn_kernel kernel = rung<32>("tiled"), half = rung<16>("tiled-16"),
                         quarter = rung<8>("tiled-8");
[[maybe_unused]] static const bool registered =
    attn_register(&kernel) && attn_register(&half) && attn_register(&quarter);

} // namespace step01_1

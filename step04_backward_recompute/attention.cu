// step04: the backward pass by recomputation.
//
// The idea: step00's backward reads P, which its forward has kept in HBM: N x N numbers for each
// head. But P is cheap to make again on the chip. All that is missing is what the softmax divides
// by, and the forward has left that behind: P = exp(S - LSE), one number for each row. So the
// backward walks over tiles as the forward did, computes S and P of a tile again, and uses them at
// once:
//
//   prepare     D = rowsum(dO o O), dQ = 0                     one warp per row
//   gradients   for each tile of K and V:                      one block per key/value head
//                   for each query head of the group, for each tile of Q:
//                       S = scale * Q K^T,  P = exp(S - LSE)   on chip
//                       dP = dO V^T,  dS = P o (dP - D)        on chip
//                       dV += P^T dO,  dK += dS^T Q            on chip
//                       dQ += dS K                             in HBM
//                   dK, dV to HBM
//
// Five products of matrices where step00 has four, and no matrix of N x N anywhere. It is Algorithm
// 4 of Dao et al. 2022 (arXiv:2205.14135) without dropout. D is the exception: the paper's inner
// loop computes it again for each tile of K, and so has to read O each time.
//
// New since step03: the backward. The forward is step03's `fused`, as it is.
//
// Run:     make run ARGS="--kernel recompute --pass both"        (in this folder)
//          make train                                            a layer that learns with it
// Limits:  fp32. One block per key/value head: with few heads most of a large GPU is idle.

#include "step03_fused_fwd/fused.h"
#include "step03_fused_fwd/tiles.h"

namespace step04 {

using step03::add_scaled, step03::dot, step03::first_tile, step03::inside;
using step03::Lanes, step03::Threads, step03::Warps;
using step03::load_rows, step03::shares;
using step03::pitch_of_rows, step03::pitch_of_S, step03::row_sectors, step03::tile_sizes;

// ---- D ------------------------------------------------------------------------------------------

//> prepare
// D_i is the mean of the row's dP, weighted by P; that is dO_i . O_i, and needs neither of them.
// Each row of dQ begins at 0 here, because `gradients` adds to it in HBM.
// grid: ceil(B * H * Nq / Warps); one warp per row
__global__ void prepare(const float *O_hbm,  // [B, H, Nq, d]
                        const float *dO_hbm, // [B, H, Nq, d]
                        float *D_hbm,        // [B, H, Nq]
                        float *dQ_hbm,       // [B, H, Nq, d]
                        int rows, int d) {   // rows = B * H * Nq
    int row = blockIdx.x * Warps + threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
    if (row >= rows) return; // the whole warp
    const float *O = O_hbm + (size_t)row * d, *dO = dO_hbm + (size_t)row * d;
    float D = 0;
    for (int c0 = 0; c0 < d; c0 += 4 * Lanes) {
        int c = c0 + 4 * lane;
        if (c < d) {
            D += dot(*(const float4 *)&O[c], *(const float4 *)&dO[c]);
            *(float4 *)&dQ_hbm[(size_t)row * d + c] = make_float4(0, 0, 0, 0);
        }
    }
    D = step03::sum_of_warp(D);
    if (lane == 0) D_hbm[row] = D;
}
//< prepare

// ---- a tile of gradients ------------------------------------------------------------------------

//> tiles
// Where in `smem` each tile starts: six of d columns, where the forward has four, and two of S's
// shape. Rows of d floats are pitch_of_rows(d) apart, as in step03. There is none for dQ: its rows
// change at each turn of the inner loop, so their sums are kept in HBM.
struct tiles {
    float *Q, *dO;          // [Br, d]
    float *K, *V, *dK, *dV; // [Bc, d]
    float *P, *dS;          // [Br, Bc]
    float *LSE, *D;         // [Br]
    int Br, Bc, row, P_row; // sizes, and the two pitches

    __device__ tiles(tile_sizes t, int d) : Br(t.Br), Bc(t.Bc) {
        row = pitch_of_rows(d), P_row = pitch_of_S(Bc);
        Q = (float *)smem, dO = Q + Br * row;
        K = dO + Br * row, V = K + Bc * row, dK = V + Bc * row, dV = dK + Bc * row;
        P = dV + Bc * row, dS = P + Br * P_row;
        LSE = dS + Br * P_row, D = LSE + Br;
    }
};

static size_t bytes_of_tiles(tile_sizes t, int d) {
    size_t floats =
        (2 * t.Br + 4 * t.Bc) * pitch_of_rows(d) + 2 * t.Br * pitch_of_S(t.Bc) + 2 * t.Br;
    return floats * sizeof(float);
}
//< tiles

//> recompute
// P = exp(S - LSE) and dS = scale * P o (dP - D) of a tile; its first query is i0, its first key
// j0. S and dP are products of the same shape, so a thread makes the same 4 x 4 elements of both,
// and neither has to leave its registers. No maximum is needed: a visible S is at most its LSE.
// The factor `scale` stands in dS, from where it reaches dQ and dK; dV has none.
__device__ static void recompute(const tiles &t, const shape &s, int i0, int j0) {
    int lane = threadIdx.x % Lanes;
    for (int share = threadIdx.x / Lanes; share < shares(t.Br, t.Bc); share += Warps) {
        int across = (t.Bc + 31) / 32;
        int y = share / across * 16 + lane / 8, x = share % across * 32 + lane % 8;
        int q_row[4], k_row[4];
        for (int m = 0; m < 4; m++) q_row[m] = inside(y, 4 * m, 8, t.Br) * t.row;
        for (int n = 0; n < 4; n++) k_row[n] = inside(x, 8 * n, 8 * n, t.Bc) * t.row;
        float S[4][4] = {}, dP[4][4] = {};
        for (int c = 0; c < s.d; c += 4) {
            float4 a[4], b[4];
            for (int m = 0; m < 4; m++) a[m] = *(const float4 *)&t.Q[q_row[m] + c];
            for (int n = 0; n < 4; n++) b[n] = *(const float4 *)&t.K[k_row[n] + c];
            for (int m = 0; m < 4; m++)
                for (int n = 0; n < 4; n++) S[m][n] += dot(a[m], b[n]);
            for (int m = 0; m < 4; m++) a[m] = *(const float4 *)&t.dO[q_row[m] + c];
            for (int n = 0; n < 4; n++) b[n] = *(const float4 *)&t.V[k_row[n] + c];
            for (int m = 0; m < 4; m++)
                for (int n = 0; n < 4; n++) dP[m][n] += dot(a[m], b[n]);
        }
        for (int m = 0; m < 4; m++)
            for (int n = 0; n < 4; n++) {
                int r = y + 4 * m, c = x + 8 * n;
                if (r >= t.Br || c >= t.Bc) continue;
                // Beyond the edge, and behind the mask, P is 0, whatever S and LSE are: a query
                // that sees no key has LSE = -infinity.
                bool seen = i0 + r < s.Nq && visible(s, i0 + r, j0 + c);
                float P = seen ? expf(s.scale * S[m][n] - t.LSE[r]) : 0;
                t.P[r * t.P_row + c] = P;
                t.dS[r * t.P_row + c] = s.scale * P * (dP[m][n] - t.D[r]);
            }
    }
}
//< recompute

//> add-transposed
// sum += A^T B, for dV (A = P, B = dO) and dK (A = dS, B = Q): a row of `sum` for each column of A.
// The sum runs down the rows of A and B, which are the queries. A lane has 4 neighbouring rows of
// `sum` and 4 neighbouring columns, so that it reads 4 columns of A at once.
__device__ static void add_transposed(float *sum, const float *A, const float *B, const tiles &t,
                                      int d) {
    int lane = threadIdx.x % Lanes;
    for (int share = threadIdx.x / Lanes; share < shares(t.Bc, d); share += Warps) {
        int across = (d + 31) / 32;
        int y = share / across * 16 + lane / 8 * 4, x = share % across * 32 + lane % 8 * 4;
        if (y >= t.Bc || x >= d) continue;
        float4 total[4];
        for (int m = 0; m < 4; m++) total[m] = *(float4 *)&sum[(y + m) * t.row + x];
        for (int i = 0; i < t.Br; i++) {
            float4 a = *(const float4 *)&A[i * t.P_row + y];
            float4 b = *(const float4 *)&B[i * t.row + x];
            add_scaled(total[0], a.x, b);
            add_scaled(total[1], a.y, b);
            add_scaled(total[2], a.z, b);
            add_scaled(total[3], a.w, b);
        }
        for (int m = 0; m < 4; m++) *(float4 *)&sum[(y + m) * t.row + x] = total[m];
    }
}
//< add-transposed

//> add-dQ
// dQ += dS K, for the first `rows` rows of the tile. The sum so far is in HBM, where the next tile
// of keys will find it again; no other block has this row, so nothing but the order of the tiles
// decides the order of the additions.
__device__ static void add_dQ(float *dQ_hbm, const tiles &t, int rows, int d) {
    int lane = threadIdx.x % Lanes;
    for (int share = threadIdx.x / Lanes; share < shares(t.Br, d); share += Warps) {
        int across = (d + 31) / 32;
        int y = share / across * 16 + lane / 8, x = share % across * 32 + lane % 8 * 4;
        if (x >= d) continue;
        float4 total[4];
        for (int m = 0; m < 4; m++) total[m] = make_float4(0, 0, 0, 0);
        for (int j = 0; j < t.Bc; j += 4) {
            float4 k[4];
            for (int n = 0; n < 4; n++) k[n] = *(const float4 *)&t.K[(j + n) * t.row + x];
            for (int m = 0; m < 4; m++) {
                float4 a = *(const float4 *)&t.dS[inside(y, 4 * m, 8, t.Br) * t.P_row + j];
                add_scaled(total[m], a.x, k[0]);
                add_scaled(total[m], a.y, k[1]);
                add_scaled(total[m], a.z, k[2]);
                add_scaled(total[m], a.w, k[3]);
            }
        }
        for (int m = 0; m < 4; m++) {
            int r = y + 4 * m;
            if (r >= t.Br || r >= rows) continue;
            float4 *dQ = (float4 *)&dQ_hbm[(size_t)r * d + x], before = *dQ;
            add_scaled(total[m], 1, before);
            *dQ = total[m];
        }
    }
}
//< add-dQ

// What there is one of for each query.
__device__ static void load_sums(const tiles &t, const float *LSE, const float *D, int rows) {
    for (int r0 = 0; r0 < t.Br; r0 += Threads) {
        int r = r0 + threadIdx.x;
        bool there = r < t.Br && r < rows;
        float LSE_row = there ? LSE[r] : 0, D_row = there ? D[r] : 0;
        if (r < t.Br) t.LSE[r] = LSE_row, t.D[r] = D_row;
    }
}

// The first `rows` rows of dK or dV to HBM.
__device__ static void store_tile(float *hbm, const float *tile, const tiles &t, int rows, int d) {
    int in_row = d / 4;
    for (int n0 = 0; n0 < t.Bc * in_row; n0 += Threads) {
        int n = n0 + threadIdx.x, r = n / in_row, c = n % in_row * 4;
        if (r < t.Bc && r < rows)
            *(float4 *)&hbm[(size_t)r * d + c] = *(const float4 *)&tile[r * t.row + c];
    }
}

//> gradients
// dK and dV of a tile of keys stay on the chip until all queries have added to them, those of all
// query heads that share the key/value head included. No other block adds to them, or to this
// head's dQ: no atomics.
// grid: B * Hkv key/value heads
__global__ void gradients(const float *Q_hbm,   // [B, H, Nq, d]
                          const float *K_hbm,   // [B, Hkv, Nk, d]
                          const float *V_hbm,   // [B, Hkv, Nk, d]
                          const float *dO_hbm,  // [B, H, Nq, d]
                          const float *LSE_hbm, // [B, H, Nq]
                          const float *D_hbm,   // [B, H, Nq]
                          float *dQ_hbm,        // [B, H, Nq, d]
                          float *dK_hbm,        // [B, Hkv, Nk, d]
                          float *dV_hbm,        // [B, Hkv, Nk, d]
                          shape s, tile_sizes sizes) {
    tiles t(sizes, s.d);
    for (int j0 = 0; j0 < s.Nk; j0 += t.Bc) {
        size_t key = (size_t)blockIdx.x * s.Nk + j0;
        load_rows(t.K, t.row, t.Bc, K_hbm + key * s.d, s.Nk - j0, s.d);
        load_rows(t.V, t.row, t.Bc, V_hbm + key * s.d, s.Nk - j0, s.d);
        load_rows(t.dK, t.row, t.Bc, nullptr, 0, s.d); // no rows: all zeros
        load_rows(t.dV, t.row, t.Bc, nullptr, 0, s.d);

        // The group's query heads are neighbours: their rows follow one another.
        for (int h = 0; h < group(s); h++)
            for (int i0 = first_tile(s, t.Br, j0); i0 < s.Nq; i0 += t.Br) {
                size_t row = ((size_t)blockIdx.x * group(s) + h) * s.Nq + i0;
                load_rows(t.Q, t.row, t.Br, Q_hbm + row * s.d, s.Nq - i0, s.d);
                load_rows(t.dO, t.row, t.Br, dO_hbm + row * s.d, s.Nq - i0, s.d);
                load_sums(t, LSE_hbm + row, D_hbm + row, s.Nq - i0);
                __syncthreads(); // the tiles are complete
                recompute(t, s, i0, j0);
                __syncthreads(); // P and dS are complete
                add_transposed(t.dV, t.P, t.dO, t, s.d);
                add_transposed(t.dK, t.dS, t.Q, t, s.d);
                add_dQ(dQ_hbm + row * s.d, t, s.Nq - i0, s.d);
                __syncthreads(); // all have read Q, dO, P and dS: the next turn overwrites
            }

        store_tile(dK_hbm + key * s.d, t.dK, t, s.Nk - j0, s.d);
        store_tile(dV_hbm + key * s.d, t.dV, t, s.Nk - j0, s.d);
        __syncthreads(); // all have read dK and dV (each its own part): the next turn overwrites
    }
}
//< gradients

// ---- the host's side: what the harness asks of a rung ------------------------------------------

enum { D_BUFFER, BUFFERS };

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    out[D_BUFFER] = {.name = "D", .bytes = attn_rows(p) * sizeof(float), .passes = ATTN_BACKWARD};
    return BUFFERS;
}

// As in step03: the outer tile, of K and V, takes what fits; the inner one has at most d rows.
static tile_sizes choose_tiles(const attn_problem *p) {
    tile_sizes best = {0, 0};
    for (int Bc = 8; Bc < p->seqlen_k + 8; Bc += 8) {
        tile_sizes next = step03::with_outer(p, false, Bc);
        if (bytes_of_tiles(next, p->head_dim) > p->smem) break;
        best = next;
    }
    return best;
}

static bool supports(const attn_problem *p, unsigned pass, char *why, size_t why_size) {
    if (pass == ATTN_FORWARD) return step03::fused.supports(p, pass, why, why_size);
    return fits(p, bytes_of_tiles({8, 8}, p->head_dim), why, why_size);
}

static void describe(const attn_problem *p, unsigned pass, char *text, size_t size) {
    if (pass == ATTN_FORWARD) return step03::fused.describe(p, pass, text, size);
    tile_sizes t = choose_tiles(p);
    snprintf(text, size, "Br %d, Bc %d take %zu of %zu bytes", t.Br, t.Bc,
             bytes_of_tiles(t, p->head_dim), p->smem);
}

static void forward(const attn_problem *p, const attn_tensors *t) { step03::fused.forward(p, t); }

//> backward
static void backward(const attn_problem *p, const attn_tensors *t) {
    auto Q = (const float *)t->Q, K = (const float *)t->K, V = (const float *)t->V;
    auto O = (const float *)t->O, dO = (const float *)t->dO;
    auto dQ = (float *)t->dQ, dK = (float *)t->dK, dV = (float *)t->dV;
    auto D = (float *)t->buffer[D_BUFFER];
    int rows = (int)attn_rows(p);
    tile_sizes sizes = choose_tiles(p);
    size_t bytes = bytes_of_tiles(sizes, p->head_dim);
    cudaFuncSetAttribute(gradients, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    LAUNCH(prepare, ceil_div(rows, Warps), Threads, 0, O, dO, D, dQ, rows, p->head_dim);
    LAUNCH(gradients, p->batch * p->kv_heads, Threads, bytes, Q, K, V, dO, t->LSE, D, dQ, dK, dV,
           shape_of(p), sizes);
}
//< backward

//> model
// prepare reads O and dO and writes D and dQ once. K, V, dK and dV move once. Q, dO, LSE and D are
// read, and dQ is read and written, once for each tile of keys, as far as its keys are seen.
static attn_traffic model(const attn_problem *p, unsigned pass) {
    if (pass == ATTN_FORWARD) return step03::fused.model(p, pass);
    shape s = shape_of(p);
    tile_sizes t = choose_tiles(p);
    uint64_t Nq = s.Nq, row = s.d / 8, heads = (uint64_t)p->batch * p->heads;
    uint64_t rows = 0, sums = 0, K = attn_kv_elements(p) / 8; // rows of Q; sectors of LSE; of K
    for (int j0 = 0; j0 < s.Nk; j0 += t.Bc) rows += s.Nq - first_tile(s, t.Br, j0);
    for (uint64_t bh = 0; bh < heads; bh++)
        for (int j0 = 0; j0 < s.Nk; j0 += t.Bc)
            for (int i0 = first_tile(s, t.Br, j0); i0 < s.Nq; i0 += t.Br)
                sums += row_sectors(bh * Nq + i0, t.Br < s.Nq - i0 ? t.Br : s.Nq - i0);
    uint64_t load = heads * (2 * Nq + 3 * rows) * row + 2 * sums + 2 * K;
    uint64_t store = heads * (Nq + rows) * row + heads * Nq + 2 * K;
    return {.load = load * SECTOR, .store = store * SECTOR};
}
//< model

static const attn_kernel kernel = {
    .step = "step04_backward_recompute",
    .rung = 1,
    .name = "recompute",
    .idea = "the backward makes P again from Q, K and the LSE",
    .formula = "about 8 d N^2 / Br loaded for each head",
    .backward_formula = "about 12 d N^2 / Bc loaded, 4 d N^2 / Bc stored for each head",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD | ATTN_BACKWARD,
    .least_sm = 75,
    .supports = supports,
    .describe = describe,
    .buffers = buffers,
    .forward = forward,
    .backward = backward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step04

// step03, rung 2: FlashAttention's forward as the paper has it, keys outside.
//
// Algorithm 1 of Dao et al. 2022 (arXiv:2205.14135), whose line numbers stand on the right. The
// outer loop walks over tiles of K and V, the inner loop over tiles of Q. So a row of O is not
// finished at one go: it gets a contribution from each tile of keys, and between two of them it
// lies in HBM, with its m and l, divided by l as if it were finished. O is read and written once
// for each tile of keys.
//
//   for each tile of K and V:                             outside
//       for each tile of Q:                               inside
//           O, m, l from HBM
//           the same as in rung 1
//           O, m, l to HBM
//
// New since rung 1: the loops are exchanged; m and l need memory, 8 bytes a row.
//
// Run:     make run         (in this folder)
// Limits:  fp32; forward only. One block per head: with few heads most of a large GPU is idle.

#include "tiles.h"

namespace step03_2 {

using namespace step03;

// m and l of `rows` rows, between HBM and the tile.
__device__ static void load_sums(const tiles &t, const float *m, const float *l, int rows) {
    for (int r0 = 0; r0 < t.Br; r0 += Threads) {
        int r = r0 + threadIdx.x;
        bool there = r < t.Br && r < rows;
        float m_row = there ? m[r] : -INFINITY, l_row = there ? l[r] : 0;
        if (r < t.Br) t.m[r] = m_row, t.l[r] = l_row;
    }
}

__device__ static void store_sums(float *m, float *l, const tiles &t, int rows) {
    for (int r0 = 0; r0 < t.Br; r0 += Threads) {
        int r = r0 + threadIdx.x;
        if (r < t.Br && r < rows) m[r] = t.m[r], l[r] = t.l[r];
    }
}

// O = 0, m = -infinity, l = 0 for a whole head.
__device__ static void start_head(float *O, float *m, float *l, const shape &s) {
    for (int n0 = 0; n0 < s.Nq * (s.d / 4); n0 += Threads) {
        int n = n0 + threadIdx.x;
        if (n < s.Nq * (s.d / 4)) *(float4 *)&O[(size_t)n * 4] = make_float4(0, 0, 0, 0);
    }
    for (int r0 = 0; r0 < s.Nq; r0 += Threads) {
        int r = r0 + threadIdx.x;
        if (r < s.Nq) m[r] = -INFINITY, l[r] = 0;
    }
}

//> algorithm1
// grid: B * H heads
__global__ void algorithm1(const float *Q_hbm, // [B, H, Nq, d]
                           const float *K_hbm, // [B, Hkv, Nk, d]
                           const float *V_hbm, // [B, Hkv, Nk, d]
                           float *O_hbm,       // [B, H, Nq, d]
                           float *LSE_hbm,     // [B, H, Nq]
                           float *m_hbm,       // [B, H, Nq]
                           float *l_hbm,       // [B, H, Nq]
                           shape s, tile_sizes sizes) {
    tiles t(sizes, s.d);
    size_t row = (size_t)blockIdx.x * s.Nq;
    const float *Q = Q_hbm + row * s.d;
    const float *K = K_hbm + kv_head(s, blockIdx.x) * s.Nk * s.d;
    const float *V = V_hbm + kv_head(s, blockIdx.x) * s.Nk * s.d;
    float *O = O_hbm + row * s.d, *m = m_hbm + row, *l = l_hbm + row;

    start_head(O, m, l, s);                   // 2
    __syncthreads();                          // O, m and l are there: other threads will read them
    for (int j0 = 0; j0 < s.Nk; j0 += t.Bc) { // 5
        load_rows(t.K, t.row, t.Bc, K + (size_t)j0 * s.d, s.Nk - j0, s.d); // 6
        load_rows(t.V, t.row, t.Bc, V + (size_t)j0 * s.d, s.Nk - j0, s.d);
        for (int i0 = first_tile(s, t.Br, j0); i0 < s.Nq; i0 += t.Br) {        // 7
            load_rows(t.Q, t.row, t.Br, Q + (size_t)i0 * s.d, s.Nq - i0, s.d); // 8
            load_rows(t.O, t.row, t.Br, O + (size_t)i0 * s.d, s.Nq - i0, s.d);
            load_sums(t, m + i0, l + i0, s.Nq - i0);
            __syncthreads();         // the tiles are complete
            scores(t, s, i0, j0);    // 9
            __syncthreads();         // S is complete
            online_softmax(t, true); // 10, 11
            __syncthreads();         // the weights and factors of all rows are there
            add_weighted(t, s.d);    // 12
            __syncthreads();         // O is complete
            store_rows(O + (size_t)i0 * s.d, t, s.Nq - i0, s.d);
            store_sums(m + i0, l + i0, t, s.Nq - i0); // 13
            __syncthreads(); // all have read the tiles, which the next turn overwrites
        }
    }

    for (int r0 = 0; r0 < s.Nq; r0 += Threads) {
        int r = r0 + threadIdx.x;
        if (r < s.Nq) LSE_hbm[row + r] = m[r] + logf(l[r]);
    }
}
//< algorithm1

// ---- the host's side: what the harness asks of a rung ------------------------------------------

enum { m_BUFFER, l_BUFFER, BUFFERS };

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    size_t bytes = attn_rows(p) * sizeof(float);
    out[m_BUFFER] = {.name = "m", .bytes = bytes, .passes = ATTN_FORWARD};
    out[l_BUFFER] = {.name = "l", .bytes = bytes, .passes = ATTN_FORWARD};
    return BUFFERS;
}

static void describe(const attn_problem *p, unsigned, char *text, size_t size) {
    step03::describe(p, choose_tiles(p, false), text, size);
}

static void forward(const attn_problem *p, const attn_tensors *t) {
    tile_sizes sizes = choose_tiles(p, false);
    size_t bytes = bytes_on_chip(sizes, p->head_dim);
    cudaFuncSetAttribute(algorithm1, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    LAUNCH(algorithm1, p->batch * p->heads, Threads, bytes, (const float *)t->Q,
           (const float *)t->K, (const float *)t->V, (float *)t->O, t->LSE,
           (float *)t->buffer[m_BUFFER], (float *)t->buffer[l_BUFFER], shape_of(p), sizes);
}

//> model
// K and V move once. Q and O move once for each tile of keys, as far as its keys are seen; O, and m
// and l with it, in both directions.
static attn_traffic model(const attn_problem *p, unsigned) {
    shape s = shape_of(p);
    tile_sizes t = choose_tiles(p, false);
    uint64_t Nq = s.Nq, row = s.d / 8, heads = (uint64_t)p->batch * p->heads;
    uint64_t rows = 0, sums = 0, once = 0; // rows of O; sectors of m, or of l
    for (int j0 = 0; j0 < s.Nk; j0 += t.Bc) rows += s.Nq - first_tile(s, t.Br, j0);
    for (uint64_t bh = 0; bh < heads; bh++) {
        once += row_sectors(bh * Nq, Nq); // at the start, and for the LSE
        for (int j0 = 0; j0 < s.Nk; j0 += t.Bc)
            for (int i0 = first_tile(s, t.Br, j0); i0 < s.Nq; i0 += t.Br)
                sums += row_sectors(bh * Nq + i0, t.Br < s.Nq - i0 ? t.Br : s.Nq - i0);
    }
    uint64_t load = heads * (2 * s.Nk + 2 * rows) * row + 2 * sums + 2 * once;
    uint64_t store = heads * (Nq + rows) * row + 2 * sums + 3 * once;
    return {.load = load * SECTOR, .store = store * SECTOR};
}
//< model

static const attn_kernel kernel = {
    .step = "step03_fused_fwd",
    .rung = 2,
    .name = "algorithm1",
    .idea = "the paper's order: K, V tiles outside; O, m, l go through HBM",
    .formula = "about 8 d N^2 / Bc loaded, 4 d N^2 / Bc stored for each head",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .least_sm = 75,
    .supports = tiles_fit,
    .describe = describe,
    .buffers = buffers,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step03_2

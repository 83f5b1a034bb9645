// step03, rung 1: FlashAttention's forward, queries outside.
//
// The idea: step02's last rung reads S from HBM only because another kernel wrote it there. But a
// tile of S is a product of a tile of Q and a tile of K, both of which fit on the chip: make it
// where it is used. Then no matrix of N x N exists anywhere. What moves is Q, K, V and O; and K and
// V move once for each tile of Q, so the larger the tiles, the fewer bytes.
//
//   for each tile of Q:                                   outside
//       for each tile of K and V:                         inside
//           S = scale * Q K^T, masked                     on chip
//           weights = exp(S - m), new (m, l)              on chip
//           O = factor * O + weights V                    on chip
//       O / l and LSE to HBM
//
// One block does all this for one head. But no turn of the outer loop needs anything from another,
// so the turns may go to different blocks: the variant fused-wide gives each tile of Q a block.
// Step05 starts there. The paper's own order, rung 2, does not allow it.
//
// New since step02: S on chip, tile sizes from --sram, tiles of keys that no query sees are
// skipped.
//
// Run:     make run                                              (in this folder)
//          make run ARGS="--kernel fused --sram 32K"             with less shared memory
//          make run ARGS="--kernel fused,fused-wide,algorithm1"
// Limits:  fp32; forward only. One block per head: with few heads most of a large GPU is idle.

#include "fused.h"
#include "tiles.h"

namespace step03_1 {

using namespace step03;

//> keys-seen
// How many keys some query before `end` sees: 0 .. Nk. With a causal mask, those of the last one.
__host__ __device__ static int keys_seen(const shape &s, int end) {
    if (!s.causal) return s.Nk;
    int last = end < s.Nq ? end : s.Nq, keys = last + s.Nk - s.Nq;
    return keys > 0 ? keys : 0;
}
//< keys-seen

//> fused
// grid: x = B * H heads; y = blocks that share the tiles of Q of one head, 1 or more
__global__ void fused(const float *Q_hbm, // [B, H, Nq, d]
                      const float *K_hbm, // [B, Hkv, Nk, d]
                      const float *V_hbm, // [B, Hkv, Nk, d]
                      float *O_hbm,       // [B, H, Nq, d]
                      float *LSE_hbm,     // [B, H, Nq]
                      shape s, tile_sizes sizes) {
    tiles t(sizes, s.d);
    size_t first_row = (size_t)blockIdx.x * s.Nq;
    const float *K = K_hbm + kv_head(s, blockIdx.x) * s.Nk * s.d;
    const float *V = V_hbm + kv_head(s, blockIdx.x) * s.Nk * s.d;

    for (int i0 = blockIdx.y * t.Br; i0 < s.Nq; i0 += gridDim.y * t.Br) {
        size_t row = first_row + i0;
        load_rows(t.Q, t.row, t.Br, Q_hbm + row * s.d, s.Nq - i0, s.d);
        load_rows(t.O, t.row, t.Br, nullptr, 0, s.d); // no rows: all zeros
        for (int r = threadIdx.x; r < t.Br; r += Threads) t.m[r] = -INFINITY, t.l[r] = 0;

        int keys = keys_seen(s, i0 + t.Br);
        for (int j0 = 0; j0 < keys; j0 += t.Bc) {
            load_rows(t.K, t.row, t.Bc, K + (size_t)j0 * s.d, s.Nk - j0, s.d);
            load_rows(t.V, t.row, t.Bc, V + (size_t)j0 * s.d, s.Nk - j0, s.d);
            __syncthreads(); // the tiles are complete
            scores(t, s, i0, j0);
            __syncthreads(); // S is complete
            online_softmax(t, false);
            __syncthreads(); // the weights and factors of all rows are there
            add_weighted(t, s.d);
            __syncthreads(); // all have read K, V and the weights: the next turn overwrites
        }
        if (keys == 0) __syncthreads(); // O, m and l are complete

        store_rows(O_hbm + row * s.d, t, s.Nq - i0, s.d);
        for (int r0 = 0; r0 < t.Br; r0 += Threads) {
            int r = r0 + threadIdx.x;
            if (r < t.Br && i0 + r < s.Nq) LSE_hbm[row + r] = t.m[r] + logf(t.l[r]);
        }
        __syncthreads(); // all have read O, m and l: the next tile of Q overwrites
    }
}
//< fused

// ---- the host's side: what the harness asks of a rung ------------------------------------------

static void describe(const attn_problem *p, unsigned, char *text, size_t size) {
    step03::describe(p, choose_tiles(p, true), text, size);
}

static void launch(const attn_problem *p, const attn_tensors *t, dim3 grid, tile_sizes sizes) {
    size_t bytes = bytes_on_chip(sizes, p->head_dim);
    cudaFuncSetAttribute(fused, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    LAUNCH(fused, grid, Threads, bytes, (const float *)t->Q, (const float *)t->K,
           (const float *)t->V, (float *)t->O, t->LSE, shape_of(p), sizes);
}

static void forward(const attn_problem *p, const attn_tensors *t) {
    launch(p, t, p->batch * p->heads, choose_tiles(p, true));
}

//> wide
static void forward_wide(const attn_problem *p, const attn_tensors *t) {
    tile_sizes sizes = choose_tiles(p, true);
    unsigned tiles = ceil_div(p->seqlen_q, sizes.Br), most = 65535; // of gridDim.y
    launch(p, t, dim3(p->batch * p->heads, tiles < most ? tiles : most), sizes);
}
//< wide

//> model
// Q and O move once; K and V once for each tile of Q, as far as its queries see.
static attn_traffic model(const attn_problem *p, unsigned) {
    shape s = shape_of(p);
    tile_sizes t = choose_tiles(p, true);
    uint64_t Nq = s.Nq, row = s.d / 8, heads = (uint64_t)p->batch * p->heads, rows_of_K = 0,
             LSE = 0;
    for (int i0 = 0; i0 < s.Nq; i0 += t.Br) {
        uint64_t tiles = ceil_div(keys_seen(s, i0 + t.Br), t.Bc), keys = tiles * t.Bc;
        rows_of_K += keys < (uint64_t)s.Nk ? keys : s.Nk;
    }
    for (uint64_t bh = 0; bh < heads; bh++)
        for (int i0 = 0; i0 < s.Nq; i0 += t.Br)
            LSE += row_sectors(bh * Nq + i0, t.Br < s.Nq - i0 ? t.Br : s.Nq - i0);
    return {.load = heads * (Nq + 2 * rows_of_K) * row * SECTOR,
            .store = (heads * Nq * row + LSE) * SECTOR};
}
//< model

static constexpr attn_kernel rung(const char *name, bool wide) {
    return {
        .step = "step03_fused_fwd",
        .rung = 1,
        .name = name,
        .idea = wide ? "fused, with a block for each tile of Q"
                     : "no N x N matrix in HBM; Q tiles outside, one block per head",
        .formula = "about 8 d N^2 / Br loaded for each head",
        .dtypes = 1u << ATTN_FP32,
        .passes = ATTN_FORWARD,
        .least_sm = 75,
        .variant = wide,
        .supports = tiles_fit,
        .describe = describe,
        .forward = wide ? forward_wide : forward,
        .model = model,
    };
}

static const attn_kernel kernel = rung("fused", false), wide = rung("fused-wide", true);
[[maybe_unused]] static const bool registered = attn_register(&kernel) && attn_register(&wide);

} // namespace step03_1

const attn_kernel step03::fused = step03_1::kernel; // for step04

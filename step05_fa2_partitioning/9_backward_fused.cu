// step05, rung 9: FlashAttention-2's backward with five products, for every shape.
//
// The idea: where a block of rung 8 makes dK and dV it has dS on the chip, and K. All that its part
// of dQ = dS K lacks is that other blocks have parts of the same rows. So each adds its part to
// sums in HBM, in fp32 and with atomics:
//
//   prepare     LSE and D of each row; zeros for dQ's sums
//   gradients   for each tile of keys: dK and dV; dQ's sums   (gradients.h, gradients_rows.h)
//   finish      dQ = scale * its sums, in 16 bits
//
// Nobody but these kernels sees the sums, so they may lie in any order: here as the fragments do.
// Each lane adds the four numbers that it has of a 16 x 8 product in one instruction, and the lanes
// of a warp add to 512 bytes in a row. `finish` puts them in order.
//
// What it costs: 4 d bytes of workspace for each query; and as blocks come in any order, so do the
// additions, and the last bits of dQ differ from run to run.
//
// New since rung 8: dQ.
//
// Run:     make run ARGS="--kernel fa2-deterministic,fa2-fused --pass both -d 64"
// Limits:  fp16, bf16.

#include "fa2.h"
#include "gradients_rows.h"

namespace step05_9 {

using namespace step05;
using namespace step05::backward;

// grid: B * H * ceil(Nq / Br) tiles of queries, with the threads of `gradients`
template <class T, class Plan>
__global__ void __launch_bounds__(Plan::Threads)
    finish(const float *sums, // [B, H, pitch, D], each tile in the order of its fragments
           T *dQ_hbm,         // [B, H, Nq, d]
           shape s, int pitch) {
    constexpr int D = Plan::D, Br = Plan::Br, Threads = Plan::Threads;
    constexpr int Blocks = Plan::dQ_Rows / 16, Tiles = Plan::dQ_Columns / 8;
    int tiles = (s.Nq + Br - 1) / Br, bh = blockIdx.x / tiles, i0 = blockIdx.x % tiles * Br;
    const float *tile = sums + ((size_t)bh * pitch + i0) * D + 4 * threadIdx.x;
    //> finish
    float dQ[Blocks][Tiles][4]; // where add_fragments has left them
#pragma unroll
    for (int b = 0; b < Blocks; b++)
#pragma unroll
        for (int n = 0; n < Tiles; n++) {
            float4 four = *(const float4 *)&tile[4 * Threads * (b * Tiles + n)];
            dQ[b][n][0] = four.x, dQ[b][n][1] = four.y, dQ[b][n][2] = four.z, dQ[b][n][3] = four.w;
        }
    put<T, D>(own<D>(0, Plan::dQ_row(), Plan::dQ_column()), dQ, s.scale);
    __syncthreads(); // dQ is complete
    store_tile<T, Br, D, Threads>(dQ_hbm + ((size_t)bh * s.Nq + i0) * s.d, 0, s.Nq - i0, s.d);
    //< finish
}

template <class Plan> static attn_traffic finish_traffic(const attn_problem *p) {
    uint64_t heads = (uint64_t)p->batch * p->heads, Nq = p->seqlen_q, store = 0;
    for (uint64_t bh = 0; bh < heads; bh++)
        for (uint64_t i0 = 0; i0 < Nq; i0 += Plan::Br) {
            uint64_t rows = Nq - i0 < Plan::Br ? Nq - i0 : Plan::Br;
            store += tile_sectors<Plan::D>(bh * Nq + i0, rows, p->head_dim);
        }
    return {.load = heads * round_up(Nq, Plan::Br) * Plan::D * sizeof(float),
            .store = store * SECTOR};
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

enum { NUMBERS_BUFFER, SUMS_BUFFER, BUFFERS };

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    size_t bytes = padded_rows(p) * sizeof(float);
    out[NUMBERS_BUFFER] = {.name = "-LSE and -D", .bytes = 2 * bytes, .passes = ATTN_BACKWARD};
    out[SUMS_BUFFER] = {.name = "dQ's sums", .passes = ATTN_BACKWARD};
    with_plan<true>(p, [&]<class Plan>(Plan) { out[SUMS_BUFFER].bytes = bytes * Plan::D; });
    return BUFFERS;
}

template <class T, class Plan> static void launch(const attn_problem *p, const attn_tensors *t) {
    auto numbers = (float *)t->buffer[NUMBERS_BUFFER];
    auto sums = (float *)t->buffer[SUMS_BUFFER];
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Plan::Br);
    size_t bytes = Plan::QueryTile;
    launch_prepare<T, Plan::D, true>(p, t, numbers, sums);
    launch_dK_dV<T, Plan>(p, t, numbers, sums);
    LAUNCH((finish<T, Plan>), grid, Plan::Threads, bytes, sums, (T *)t->dQ, shape_of(p),
           head_pitch(p));
}

static void backward(const attn_problem *p, const attn_tensors *t) {
    with_plan<true>(p, [&]<class Plan>(Plan) {
        (p->dtype == ATTN_FP16 ? launch<__half, Plan> : launch<__nv_bfloat16, Plan>)(p, t);
    });
}

static void forward(const attn_problem *p, const attn_tensors *t) { fa2.forward(p, t); }

static bool supports(const attn_problem *p, unsigned pass, char *why, size_t why_size) {
    if (pass == ATTN_FORWARD) return fa2.supports(p, pass, why, why_size);
    if (!countable(p, why, why_size)) return false;
    bool right = false;
    with_plan<true>(p, [&]<class Plan>(Plan) { right = fits(p, Plan::Smem, why, why_size); });
    return right;
}

static void describe(const attn_problem *p, unsigned pass, char *text, size_t size) {
    text[0] = 0;
    if (pass == ATTN_FORWARD) return;
    with_plan<true>(p, [&]<class Plan>(Plan) {
        snprintf(text, size, "Br %d, Bc %d take %d of %zu bytes", Plan::Br, Plan::Bc, Plan::Smem,
                 p->smem);
    });
}

static attn_traffic model(const attn_problem *p, unsigned pass) {
    if (pass == ATTN_FORWARD) return fa2.model(p, pass);
    attn_traffic sum;
    with_plan<true>(p, [&]<class Plan>(Plan) {
        attn_traffic before = prepare_traffic<Plan::D>(p, true), after = finish_traffic<Plan>(p);
        sum = gradients_traffic<Plan>(p);
        sum.load += before.load + after.load, sum.store += before.store + after.store;
    });
    return sum;
}

static const attn_kernel kernel = {
    .step = "step05_fa2_partitioning",
    .rung = 9,
    .name = "fa2-fused",
    .idea = "backward: five products, dQ summed in HBM by atomics",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .backward_formula = "about 4 d N^2 / Bc loaded and added for each head, each",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD | ATTN_BACKWARD,
    .least_sm = 80,
    .any_order = ATTN_BACKWARD,
    .supports = supports,
    .describe = describe,
    .buffers = buffers,
    .forward = forward,
    .backward = backward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step05_9

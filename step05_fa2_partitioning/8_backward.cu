// step05, rung 8: FlashAttention-2's backward without atomics, for every shape.
//
// The idea: step04's backward on matrix units, with as many blocks as there are tiles. Its one
// block for each head added to dQ in HBM, and no other did. Now a block has a tile of keys, and
// many blocks would add to the same rows of dQ. So dQ gets a kernel of its own, whose blocks have a
// tile of queries each, as in the forward:
//
//   prepare     LSE and D of each row, D = rowsum(dO o O)
//   gradients   for each tile of keys: dK and dV            (gradients.h, gradients_rows.h)
//   query_sums  for each tile of queries: dQ
//
// Both make S, P and dP again: seven products where five would do. What that buys: nobody adds to
// what another one adds to, so the order of all additions is fixed, and each run gives the same
// bits.
//
// New since rung 7: all of it; tiles, fragments and addresses are as there.
//
// Run:     make run ARGS="--kernel fa2-deterministic --pass both -d 64"     (in this folder)
// Limits:  fp16, bf16.

#include "fa2.h"
#include "gradients_rows.h"

namespace step05_8 {

using namespace step05;
using namespace step05::backward;

// ---- dQ -----------------------------------------------------------------------------------------

// A warp has Blocks blocks of 16 queries. Of K and V two tiles each are on the chip.
template <int D> struct tiling_of_queries {
    static constexpr int Blocks = D == 256 ? 1 : 2;
    static constexpr int Warps = 4, Threads = Warps * Lanes, BlocksPerSM = 2;
    static constexpr int Br = Warps * Blocks * 16;
    static constexpr int Bc = D == 64 ? 64 : D == 128 ? 32 : 16;
    static constexpr int Smem = (2 * Br + 4 * Bc) * D * Bytes;
};

// grid: B * H * ceil(Nq / Br) tiles of queries
template <class T, int D>
__global__ void __launch_bounds__(tiling_of_queries<D>::Threads, tiling_of_queries<D>::BlocksPerSM)
    query_sums(const T *Q_hbm,       // [B, H, Nq, d]
               const T *K_hbm,       // [B, Hkv, Nk, d]
               const T *V_hbm,       // [B, Hkv, Nk, d]
               const T *dO_hbm,      // [B, H, Nq, d]
               const float *numbers, // [B, H, pitch / 32, 2, 32]: -LSE in its unit, -D
               T *dQ_hbm,            // [B, H, Nq, d]
               shape s, int pitch) {
    using tiling = tiling_of_queries<D>;
    constexpr int Blocks = tiling::Blocks, Br = tiling::Br, Bc = tiling::Bc;
    constexpr int Threads = tiling::Threads;
    constexpr uint32_t Tile = Bc * D * Bytes, Q = 0, dO = Q + Br * D * Bytes; // in shared memory
    constexpr uint32_t K = dO + Br * D * Bytes, V = K + 2 * Tile;
    int tiles = (s.Nq + Br - 1) / Br, bh = blockIdx.x / tiles;
    int i0 = (tiles - 1 - blockIdx.x % tiles) * Br; // with a mask the last has most to do
    int query = threadIdx.x / Lanes * Blocks * 16, lane = threadIdx.x % Lanes;
    size_t row = (size_t)bh * s.Nq + i0;
    unsigned key = kv_head(s, bh) * s.Nk; // the head's first, of all

    // Of the head's: those that the block's last query sees, and that the warp's first sees.
    int keys = keys_seen(s, i0 + Br), seen_by_all = keys_seen(s, i0 + query + 1);
    auto copy_keys = [&](int j0, uint32_t stage) { // bytes behind K, and behind V
        size_t first = (size_t)(key + j0) * (unsigned)s.d;
        start_copy<T, Bc, D, Threads>(K + stage, K_hbm + first, s.Nk - j0, s.d);
        start_copy<T, Bc, D, Threads>(V + stage, V_hbm + first, s.Nk - j0, s.d);
    };
    start_copy<T, Br, D, Threads>(Q, Q_hbm + row * s.d, s.Nq - i0, s.d);
    start_copy<T, Br, D, Threads>(dO, dO_hbm + row * s.d, s.Nq - i0, s.d);
    if (keys > 0) copy_keys(0, 0);

    float LSE[Blocks][2], D_row[Blocks][2]; // both negative
#pragma unroll
    for (int b = 0; b < Blocks; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            size_t row = (size_t)bh * pitch + i0 + query + 16 * b + 8 * half + lane / 4;
            LSE[b][half] = numbers[first_number(row)];
            D_row[b][half] = numbers[first_number(row) + Apart];
        }

    float dQ[Blocks][D / 8][4] = {};
    float c = s.scale * Unit<T>;
    // Where the lane's fragments begin. Tiles of K and V go to one stage and the other by turns:
    // that is a bit of an address.
    const uint32_t Q_left = straight<D>(Q, query, 0), dO_left = straight<D>(dO, query, 0);
    uint32_t K_right = crossed<D>(K, 0, 0), K_down = straight<D>(K, 0, 0), other = Tile;
    static_assert(K % (2 * Tile) == 0 && (Tile & (Tile - 1)) == 0);
    for (int j0 = 0; j0 < keys; j0 += Bc, K_right ^= Tile, K_down ^= Tile, other ^= Tile) {
        cp_async_wait_all();
        __syncthreads(); // this turn's K and V have arrived, and all have read the last turn's
        if (j0 + Bc < keys) copy_keys(j0 + Bc, other);

        //> query-sums
        float S[Blocks][Bc / 8][4] = {}, dP[Blocks][Bc / 8][4];
        multiply<T, D / 16>(
            S, [&](int r, int k) { return load<D>(Q_left, r, k); },
            [&](int k, int n) { return load<D>(K_right, n, k); });
        if (j0 + Bc > seen_by_all) mask<false>(S, s, i0 + query, j0);
        start_from_rows(dP, D_row);
        multiply<T, D / 16>(
            dP, [&](int r, int k) { return load<D>(dO_left, r, k); },
            [&](int k, int n) { return load<D>(K_right + V - K, n, k); });
        fragment P[Blocks][Bc / 16], dS[Blocks][Bc / 16];
        weights_of_rows<T>(P, dS, S, dP, LSE, c);
        multiply<T, Bc / 16>(
            dQ, [&](int r, int k) { return dS[r / 16][k / 16]; },
            [&](int k, int n) { return load_transposed<D>(K_down, k, n); });
        //< query-sums
    }
    cp_async_wait_all();
    __syncthreads(); // all have read Q; or, in a block without keys, it has arrived for nothing
    put<T, D>(own<D>(Q, query, 0), dQ, s.scale);
    __syncthreads(); // dQ is complete
    store_tile<T, Br, D, Threads>(dQ_hbm + row * s.d, Q, s.Nq - i0, s.d);
}

template <int D> static attn_traffic query_sums_traffic(const attn_problem *p) {
    using tiling = tiling_of_queries<D>;
    shape s = shape_of(p);
    int of_group = p->heads / p->kv_heads;
    uint64_t Q = 0, dQ = 0, K = 0, tiles = 0;
    for (int bh = 0; bh < p->batch * p->heads; bh++)
        for (int i0 = 0; i0 < s.Nq; i0 += tiling::Br, tiles++) {
            uint64_t first = (uint64_t)bh / of_group * s.Nk;
            uint64_t row = (uint64_t)bh * s.Nq + i0, rows = min(tiling::Br, s.Nq - i0);
            Q += copied_sectors(row, rows, s.d);
            dQ += tile_sectors<D>(row, rows, s.d);
            for (int j0 = 0; j0 < keys_seen(s, i0 + tiling::Br); j0 += tiling::Bc)
                K += copied_sectors(first + j0, min(tiling::Bc, s.Nk - j0), s.d);
        }
    uint64_t sums = tiles * 2 * tiling::Br * sizeof(float) / SECTOR;
    return {.load = (2 * Q + 2 * K + sums) * SECTOR, .store = dQ * SECTOR};
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

enum { NUMBERS_BUFFER, BUFFERS };

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    size_t bytes = 2 * padded_rows(p) * sizeof(float);
    out[NUMBERS_BUFFER] = {.name = "-LSE and -D", .bytes = bytes, .passes = ATTN_BACKWARD};
    return BUFFERS;
}

template <class T, class Plan> static void launch(const attn_problem *p, const attn_tensors *t) {
    constexpr int D = Plan::D;
    using tiling = tiling_of_queries<D>;
    auto numbers = (float *)t->buffer[NUMBERS_BUFFER];
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, tiling::Br);
    cudaFuncSetAttribute(query_sums<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         tiling::Smem);
    launch_prepare<T, D, false>(p, t, numbers, nullptr);
    launch_dK_dV<T, Plan>(p, t, numbers, nullptr);
    LAUNCH((query_sums<T, D>), grid, tiling::Threads, tiling::Smem, (const T *)t->Q,
           (const T *)t->K, (const T *)t->V, (const T *)t->dO, numbers, (T *)t->dQ, shape_of(p),
           head_pitch(p));
}

static void backward(const attn_problem *p, const attn_tensors *t) {
    with_plan<false>(p, [&]<class Plan>(Plan) {
        (p->dtype == ATTN_FP16 ? launch<__half, Plan> : launch<__nv_bfloat16, Plan>)(p, t);
    });
}

static void forward(const attn_problem *p, const attn_tensors *t) { fa2.forward(p, t); }

// A block of whichever of the two kernels takes more.
template <class Plan> static size_t bytes_of(Plan) {
    return max(Plan::Smem, tiling_of_queries<Plan::D>::Smem);
}

static bool supports(const attn_problem *p, unsigned pass, char *why, size_t why_size) {
    if (pass == ATTN_FORWARD) return fa2.supports(p, pass, why, why_size);
    if (!countable(p, why, why_size)) return false;
    bool right = false;
    with_plan<false>(p, [&](auto plan) { right = fits(p, bytes_of(plan), why, why_size); });
    return right;
}

static void describe(const attn_problem *p, unsigned pass, char *text, size_t size) {
    text[0] = 0;
    if (pass == ATTN_FORWARD) return;
    with_plan<false>(p, [&]<class Plan>(Plan plan) {
        using of_queries = tiling_of_queries<Plan::D>;
        snprintf(text, size, "dK, dV: Br %d, Bc %d; dQ: Br %d, Bc %d; take %zu of %zu bytes",
                 Plan::Br, Plan::Bc, of_queries::Br, of_queries::Bc, bytes_of(plan), p->smem);
    });
}

static attn_traffic model(const attn_problem *p, unsigned pass) {
    if (pass == ATTN_FORWARD) return fa2.model(p, pass);
    attn_traffic sum;
    with_plan<false>(p, [&]<class Plan>(Plan) {
        attn_traffic of_rows = prepare_traffic<Plan::D>(p, false);
        attn_traffic of_keys = gradients_traffic<Plan>(p),
                     of_queries = query_sums_traffic<Plan::D>(p);
        sum = {.load = of_rows.load + of_keys.load + of_queries.load,
               .store = of_rows.store + of_keys.store + of_queries.store};
    });
    return sum;
}

static const attn_kernel kernel = {
    .step = "step05_fa2_partitioning",
    .rung = 8,
    .name = "fa2-deterministic",
    .idea = "backward: a kernel for dK and dV, one for dQ; the same bits in every run",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .backward_formula = "about 4 d N^2 (1/Bc + 1/Br) loaded for each head",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD | ATTN_BACKWARD,
    .least_sm = 80,
    .supports = supports,
    .describe = describe,
    .buffers = buffers,
    .forward = forward,
    .backward = backward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step05_8

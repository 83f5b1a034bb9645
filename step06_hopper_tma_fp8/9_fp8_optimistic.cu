// step06, rung 9: rung 6's bet, in 8 bits.
//
// The idea: rung 6 never looks for a maximum again, and its weights may grow. Those of e4m3 may
// not, beyond 448. But their sum is known, as l needs it: each thread has the sum of its own
// weights of a tile, and none of them is larger. So the sum is what is watched,
//
//   up to 448   every weight of the thread fits. Nothing happens, and nothing has been compared but
//               two numbers, once for a tile
//   above it    m was too low. Weights, l and O are made smaller by a power of two, which is exact,
//               and m larger. The weights are still in fp32 then, so nothing has been lost
//
// and for that to be rare, P begins lower: its largest weight in the first tile is 2^4, not 2^8. A
// thread's sum of 24 to 48 weights then has room, and small weights have 4 bits less to fade into.
//
//   the guard    a weight beyond fp32, where a score is above m by 2^7, is infinite, and so is l at
//                the end
//   the way back is rung 6's: the tile is not stored, and comes again, for the exact softmax
//
// New since rung 7: fit(), attend's second form, and rung 6's way back.
//
// Run:     make run ARGS="--kernel fp8-optimistic --dtype fp8 -d 128"     (in this folder)
// Limits:  forward only; sm_90a.

#include "fp8_roles.h"

namespace step06_9 {

using namespace step06_fp8;

constexpr float LowOffset = 4, LowGrowth = 4.8f; // log2: 2^8.8 is 445.7
constexpr float Largest = 448;                   // of e4m3

// What the way back needs besides. As in rung 6.
template <class Tiling> struct memory_with_verdicts : memory<Tiling> {
    int tile[Tiling::QStages];   // the number of the tile
    bool exact[Tiling::QStages]; // it has failed before
    int failed[Tiling::QStages]; // and now?
};

// What a warpgroup has in registers, for its 64 rows of one tile.
template <class Tiling> struct state {
    float S[Tiling::Bc / 2], O[Tiling::D / 2];
    uint32_t P[Tiling::Bc / 32][4];
    fp8_rows r;
    float c;           // of the exponents, but for K's scale
    float V_scale = 1; // the unit of O: V's scale in the tile that P belongs to
};

// Makes the weights, l of which is the sum of this tile's only, fit e4m3, and m with them. True if
// one of the warp's rows had to change: then O must be multiplied by `factor`, as `before`, l of
// the tiles before, is here. A quad has a row together, so its lanes change it by the same power.
//> fit
template <int Bc> __device__ static bool fit(float (&S)[Bc / 2], fp8_rows &r, float (&before)[2]) {
    bool over = !(r.l[0] <= Largest && r.l[1] <= Largest);
    if (!__any_sync(~0u, over)) return false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = max_of_quad(r.l[half]);
        float powers = sum > Largest ? ceilf(log2f(sum)) - 8 : 0; // so that 128 < sum <= 256
        r.factor[half] = exp2_approx(-powers);
        r.m[half] += powers;
        r.l[half] *= r.factor[half];
        before[half] *= r.factor[half];
#pragma unroll
        for (int n = 0; n < Bc / 8; n++)
#pragma unroll
            for (int e = 4 * n + 2 * half; e < 4 * n + 2 * half + 2; e++) S[e] *= r.factor[half];
    }
    return true;
}
//< fit

// The first tile of keys, number n of the block: S and P.
template <class Tiling>
__device__ static void begin(state<Tiling> &a, memory_with_verdicts<Tiling> &x, uint64_t Q,
                             unsigned n, const shape &s, int i, int j) {
    constexpr int Bc = Tiling::Bc;
    uint64_t K = wait_for_K(x, n);
    float c = exponent_scale(a.c, x, n);
    a.V_scale = x.V_scale[n % Stages];
    wgmma_fence(a.S);
    start_QK<Tiling>(a.S, Q, K);
    wgmma_commit();
    wgmma_wait<0>(a.S);
    free_buffer(&x.K_empty[n % Stages]);
    mask<Bc>(a.S, s, i, j * Bc);
    update_maxima<Bc>(a.S, a.r, c, LowGrowth); // there is no O to rescale
    weights<Bc>(a.S, a.r, c, LowOffset);
    to_operand<Bc>(a.P, a.S);
}

// Each tile after it: S of tile j, O of the tile before, P of tile j. Exact: with a mask and with
// the maxima. Otherwise the tile needs no mask, and m changes only if a sum says so.
template <class Tiling, bool Exact>
__device__ static void attend(state<Tiling> &a, memory_with_verdicts<Tiling> &x, uint64_t Q,
                              unsigned n, const shape &s, int i, int j, int consumer) {
    constexpr int Bc = Tiling::Bc;
    uint64_t K = wait_for_K(x, n);
    float c = exponent_scale(a.c, x, n), V_scale = x.V_scale[n % Stages];
    take_turn(consumer);
    wgmma_fence(a.S);
    start_QK<Tiling>(a.S, Q, K);
    wgmma_commit();
    uint64_t V = wait_for_V(x, n - 1); // it comes after K, and may still be on its way
    wgmma_fence(a.O, a.P);
    start_PV<Tiling>(a.O, a.P, V, true);
    wgmma_commit();
    hand_over<Tiling>(consumer);
    wgmma_wait<1>(a.S); // P V may still run
    free_buffer(&x.K_empty[n % Stages]);
    bool changed = false;
    a.r.factor[0] = a.r.factor[1] = 1;
    if (Exact) {
        mask<Bc>(a.S, s, i, j * Bc);
        changed = update_maxima<Bc>(a.S, a.r, c, LowGrowth);
    }
    //> watch-sums
    float before[2] = {a.r.l[0], a.r.l[1]};
    a.r.l[0] = a.r.l[1] = 0;
    weights<Bc>(a.S, a.r, c, LowOffset);
    if (!Exact) changed = fit<Bc>(a.S, a.r, before);
    a.r.l[0] += before[0];
    a.r.l[1] += before[1];
    //< watch-sums
    wgmma_wait<0>(a.O, a.P);
    free_buffer(&x.V_empty[(n - 1) % Stages]);
    if (changed || V_scale != a.V_scale) rescale<Tiling::D>(a.O, a.r, a.V_scale / V_scale);
    a.V_scale = V_scale;
    to_operand<Bc>(a.P, a.S);
}

// After the last tile: its O.
template <class Tiling>
__device__ static void end(state<Tiling> &a, memory_with_verdicts<Tiling> &x, unsigned n) {
    uint64_t V = wait_for_V(x, n);
    wgmma_fence(a.O, a.P);
    start_PV<Tiling>(a.O, a.P, V, true);
    wgmma_commit();
    wgmma_wait<0>(a.O, a.P);
    free_buffer(&x.V_empty[n % Stages]);
}

// ---- the way back, as in rung 6 -----------------------------------------------------------------

template <class Tiling>
__device__ static int which_tile(memory_with_verdicts<Tiling> &x, unsigned nq, unsigned &judged,
                                 int next) {
    while (judged < nq && (next < 0 || judged + Tiling::QStages <= nq)) {
        unsigned stage = judged % Tiling::QStages;
        mbarrier_wait(&x.O_stored[stage], parity_of<Tiling::QStages>(judged++));
        if (x.failed[stage]) return x.tile[stage];
    }
    return next;
}

template <class Tiling>
__device__ static void produce_all_QK(memory_with_verdicts<Tiling> &x, const sources &from,
                                      const shape &s, const schedule &order) {
    unsigned nq = 0, nk = 0, judged = 0; // tiles of Q, of K, and of O, so far
    int next = blockIdx.x, all = order.tiles * order.heads;
    for (;; nq++) {
        unsigned stage = nq % Tiling::QStages;
        int tile = which_tile(x, nq, judged, next < all ? next : -1);
        x.exact[stage] = tile != next;
        x.tile[stage] = tile;
        x.failed[stage] = 0;
        task t = tile < 0 ? task{-1} : task_of<Tiling>(s, order, tile);
        x.todo[stage] = t;
        if (t.bh < 0) { // the end: no Q comes
            mbarrier_arrive(&x.Q_full[stage]);
            return;
        }
        load_Q(x, from, s, t, stage);
        if (tile == next) next = tile_after(order, tile);
        for (int j = last_tile<Tiling>(t); j >= 0; j--) load_K(x, from, nk++, j, t.head);
    }
}

template <class Tiling>
__device__ static void store_good(memory_with_verdicts<Tiling> &x, const CUtensorMap &O_map,
                                  int d) {
    for (unsigned nq = 0;; nq++) {
        unsigned stage = nq % Tiling::QStages, parity = parity_of<Tiling::QStages>(nq);
        mbarrier_wait(&x.Q_full[stage], parity);
        task t = x.todo[stage];
        if (t.bh < 0) return;
        mbarrier_wait(&x.O_full[stage], parity);
        int columns = x.failed[stage] ? 0 : d;    // a tile that failed comes again
        for (int p = 0; p * Panel < columns; p++) // no panel that is only padding
            tma_store_3d(&O_map, x.O[stage] + p * Tiling::Br * PanelRow, p * Panel, t.i0, t.bh);
        tma_store_commit();
        tma_store_wait_read<0>();
        mbarrier_arrive(&x.O_stored[stage]);
    }
}

// All warpgroups have as many turns.
template <class Tiling>
__device__ static void consume(memory_with_verdicts<Tiling> &x, float *LSE_hbm, const shape &s,
                               int consumer) {
    const int first = consumer * Rows;
    if (consumer == Tiling::Consumers - 1) hand_over<Tiling>(consumer); // 0 has the first turn
    for (unsigned nq = 0, nk = 0;; nq++) { // tiles of Q, and of K and V, so far
        unsigned stage = nq % Tiling::QStages;
        mbarrier_wait(&x.Q_full[stage], parity_of<Tiling::QStages>(nq));
        task t = x.todo[stage];
        if (t.bh < 0) break;
        bool exact = x.exact[stage];
        uint64_t Q = operand<Tiling::D>(x.Q[stage] + first * panel_of(Tiling::D));
        int i = t.i0 + first + row_of_thread();
        state<Tiling> a;
        a.c = s.scale * Log2e * x.Q_scale[stage][consumer];
#pragma unroll
        for (int e = 0; e < Tiling::D / 2; e++) a.O[e] = 0;
        if (t.keys > 0) {
            // All rows of the warpgroup see the first so many tiles of keys whole, and a key of the
            // tile after them.
            int whole = exact ? 0 : max(keys_seen(s, t.i0 + first + 1) - 1, 0) / Tiling::Bc;
            int j = last_tile<Tiling>(t);
            begin(a, x, Q, nk++, s, i, j--);
            for (; j >= whole; j--) attend<Tiling, true>(a, x, Q, nk++, s, i, j, consumer);
            for (; j >= 0; j--) attend<Tiling, false>(a, x, Q, nk++, s, i, j, consumer);
            end(a, x, nk - 1);
        }
        bool held = a.r.l[0] < INFINITY && a.r.l[1] < INFINITY;
        if (!exact && !held) atomicAdd(&x.failed[stage], 1);
        leave<Tiling>(a.O, a.r, a.V_scale, x.O[stage], LSE_hbm, s, t, first, LowOffset);
        mbarrier_arrive(&x.O_full[stage]);
    }
    if (consumer == 0) take_turn(consumer); // the last has handed over once more
}

// grid: as many blocks as run at once
template <class Tiling>
__global__ void __launch_bounds__(Tiling::Threads, 1)
    fp8_optimistic(const __grid_constant__ CUtensorMap Q_map, // [B * H, Nq, d], e4m3
                   const __grid_constant__ CUtensorMap K_map, // [B * Hkv, Nk, d], e4m3
                   const __grid_constant__ CUtensorMap V_map, // [B * Hkv, d, Nk], e4m3
                   const __grid_constant__ CUtensorMap O_map, // [B * H, Nq, d], bf16
                   const __grid_constant__ scalings scales,
                   float *LSE_hbm, // [B, H, Nq]
                   shape s, schedule order) {
    memory_with_verdicts<Tiling> &x = *(memory_with_verdicts<Tiling> *)smem;
    s.causal = Tiling::Causal; // so that the compiler knows
    if (threadIdx.x == 0) init_barriers<Tiling>(x);
    __syncthreads(); // the mbarriers are ready
    // The same in all lanes of a warp, and with a shuffle the compiler knows that, too (rung 5).
    int warp = __shfl_sync(~0u, threadIdx.x / Lanes, 0), warpgroup = warp / 4;
    if (warpgroup == 0) {
        setmaxnreg_dec<Tiling::ProducerRegisters>();
        const sources from = {Q_map, K_map, V_map, scales};
        if (warp == 0 && elect_one()) produce_all_QK(x, from, s, order);
        if (warp == 1 && elect_one()) produce_V(x, from);
        if (warp == 2 && elect_one()) store_good(x, O_map, s.d);
    } else {
        setmaxnreg_inc<Tiling::ConsumerRegisters>();
        consume(x, LSE_hbm, s, warpgroup - 1);
    }
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

// The tiles, by d, the mask and the length: calls f with one of them. Keys that share a scale are a
// tile, too. With a mask and few keys, much of a wide tile would be masked.
template <bool Causal, class F> static auto choose_tiling(const attn_problem *p, F f) {
    const bool blocks = p->fp8_scale == FP8_SCALE_BLOCK, few = p->seqlen_k <= 1024;
    if (p->head_dim <= 64) return f(tiling<64, Causal, 3, 128>());
    if (p->head_dim > 128) return f(tiling<256, Causal, 2, 128>());
    if (blocks || (Causal && few)) return f(tiling<128, Causal, 2, 128>());
    return f(tiling<128, Causal, 3, 96>());
}
template <class F> static auto with_tiling(const attn_problem *p, F f) {
    return p->causal ? choose_tiling<true>(p, f) : choose_tiling<false>(p, f);
}

template <class Tiling> static void launch(const attn_problem *p, const attn_tensors *x) {
    const int heads = p->batch * p->heads, kv_heads = p->batch * p->kv_heads, d = p->head_dim;
    const int tiles = (int)ceil_div(p->seqlen_q, Tiling::Br),
              bytes = sizeof(memory_with_verdicts<Tiling>);
    const int Br = Tiling::Br, Bc = Tiling::Bc, D = Tiling::D;
    schedule order = {tiles, heads, heads_of_group(p), (unsigned *)x->buffer[Next]};
    cudaFuncSetAttribute(fp8_optimistic<Tiling>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         bytes);
    LAUNCH((fp8_optimistic<Tiling>), min(p->sm_count, tiles * heads), Tiling::Threads, bytes,
           map_of_bytes(x->buffer[Q8], heads, p->seqlen_q, d, Br, panel_of(D)),
           map_of_bytes(x->buffer[K8], kv_heads, p->seqlen_k, d, Bc, panel_of(D)),
           map_of_bytes(x->buffer[V8], kv_heads, d, p->seqlen_k, D, panel_of(Bc)),
           map_of(x->O, heads, p->seqlen_q, d, Br), scalings_of(p, x), x->LSE, shape_of(p), order);
}

static void attention(const attn_problem *p, const attn_tensors *x) {
    with_tiling(p, [=](auto t) { launch<decltype(t)>(p, x); });
}

static void forward(const attn_problem *p, const attn_tensors *x) {
    prepass(p, x);
    attention(p, x);
}

static bool supports(const attn_problem *p, unsigned, char *why, size_t why_size) {
    size_t bytes = with_tiling(p, [](auto t) { return sizeof(memory_with_verdicts<decltype(t)>); });
    return fits(p, bytes, why, why_size);
}

static void describe(const attn_problem *p, unsigned, char *text, size_t size) {
    with_tiling(p, [=](auto t) { describe_tiling<decltype(t)>(p, text, size); });
}

static attn_traffic model(const attn_problem *p, unsigned) {
    return with_tiling(p, [=](auto t) { return traffic<decltype(t)>(p); });
}

static const attn_kernel kernel = {
    .step = "step06_hopper_tma_fp8",
    .rung = 9,
    .name = "fp8-optimistic",
    .idea = "no maxima but the first tile's: sums say when weights must be made smaller",
    .formula = "about 2 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_FP8,
    .passes = ATTN_FORWARD,
    .least_sm = 90,
    .exact_sm = 90,
    .redoes = true,
    .supports = supports,
    .describe = describe,
    .buffers = buffers,
    .forward = forward,
    .attention = attention,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step06_9

// step06, rung 7: FlashAttention-3 on 8-bit operands, e4m3.
//
// The idea: tensor cores make twice as many 8-bit products as 16-bit ones in the same time, and all
// tiles are half as large. What has to change for it:
//
//   a pre-pass          quantises Q, K and V, and transposes V (quantize.h)
//   P                   is rounded to e4m3, too: times 2^8, to use the range that there is. A lane
//                       does not have what the left operand wants of it; the pre-pass has put the
//                       keys of V in an order in which it does
//   scales              of Q and K go into c, by which scores become exponents; they cost nothing.
//                       That of V multiplies O, at the end. With one scale for each block of keys
//                       (--fp8-scale block) c is another for each tile, so m is kept in exponents;
//                       and O is kept in units of V's present scale. Where that changes, O must be
//                       rescaled: D / 2 multiplications for a thread, for each tile
//   tiles               as many keys as registers allow, or a third consumer: an exponential
//                       takes as long as before, and products half as long, so there is more to
//                       hide
//
// All else is rung 5's: roles, rings, turns, order of the tiles, masks first, O by TMA.
//
// (FlashAttention-3, Shah et al. 2024, arXiv:2407.08608, section 3.3.)
//
// New since rung 5: quantize.h, and in fp8_roles.h what is said of e4m3 there.
//
// Run:     make run ARGS="--kernel fp8 --dtype fp8 -d 128 --rotate"     (in this folder)
// Limits:  forward only; sm_90a.

#include "fp8_roles.h"

namespace step06_7 {

using namespace step06_fp8;

// What a warpgroup has in registers, for its 64 rows of one tile.
template <class Tiling> struct state {
    float S[Tiling::Bc / 2], O[Tiling::D / 2];
    uint32_t P[Tiling::Bc / 32][4];
    fp8_rows r;
    float c;           // of the exponents, but for K's scale
    float V_scale = 1; // the unit of O: V's scale in the tile that P belongs to
};

// The first tile of keys, number n of the block: S and P.
template <class Tiling>
__device__ static void begin(state<Tiling> &a, memory<Tiling> &x, uint64_t Q, unsigned n,
                             const shape &s, int i, int j) {
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
    update_maxima<Bc>(a.S, a.r, c); // there is no O to rescale
    weights<Bc>(a.S, a.r, c);
    to_operand<Bc>(a.P, a.S);
}

// Each tile after it: S of tile j, O of the tile before, P of tile j.
template <class Tiling, bool Masked>
__device__ static void attend(state<Tiling> &a, memory<Tiling> &x, uint64_t Q, unsigned n,
                              const shape &s, int i, int j, int consumer) {
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
    //> fp8-attend
    if (Masked) mask<Bc>(a.S, s, i, j * Bc);
    bool grown = update_maxima<Bc>(a.S, a.r, c);
    weights<Bc>(a.S, a.r, c);
    wgmma_wait<0>(a.O, a.P);
    free_buffer(&x.V_empty[(n - 1) % Stages]);
    if (grown || V_scale != a.V_scale) rescale<Tiling::D>(a.O, a.r, a.V_scale / V_scale);
    a.V_scale = V_scale;
    to_operand<Bc>(a.P, a.S);
    //< fp8-attend
}

// After the last tile: its O.
template <class Tiling>
__device__ static void end(state<Tiling> &a, memory<Tiling> &x, unsigned n) {
    uint64_t V = wait_for_V(x, n);
    wgmma_fence(a.O, a.P);
    start_PV<Tiling>(a.O, a.P, V, true);
    wgmma_commit();
    wgmma_wait<0>(a.O, a.P);
    free_buffer(&x.V_empty[n % Stages]);
}

// All warpgroups have as many turns.
template <class Tiling>
__device__ static void consume(memory<Tiling> &x, float *LSE_hbm, const shape &s, int consumer) {
    const int first = consumer * Rows;
    if (consumer == Tiling::Consumers - 1) hand_over<Tiling>(consumer); // 0 has the first turn
    for (unsigned nq = 0, nk = 0;; nq++) { // tiles of Q, and of K and V, so far
        unsigned stage = nq % Tiling::QStages;
        mbarrier_wait(&x.Q_full[stage], parity_of<Tiling::QStages>(nq));
        task t = x.todo[stage];
        if (t.bh < 0) break;
        uint64_t Q = operand<Tiling::D>(x.Q[stage] + first * panel_of(Tiling::D));
        int i = t.i0 + first + row_of_thread();
        state<Tiling> a;
        a.c = s.scale * Log2e * x.Q_scale[stage][consumer];
#pragma unroll
        for (int e = 0; e < Tiling::D / 2; e++) a.O[e] = 0;
        if (t.keys > 0) {
            // All rows of the warpgroup see the first so many tiles of keys whole.
            int whole = keys_seen(s, t.i0 + first + 1) / Tiling::Bc;
            int j = last_tile<Tiling>(t);
            begin(a, x, Q, nk++, s, i, j--);
            for (; j >= whole; j--) attend<Tiling, true>(a, x, Q, nk++, s, i, j, consumer);
            for (; j >= 0; j--) attend<Tiling, false>(a, x, Q, nk++, s, i, j, consumer);
            end(a, x, nk - 1);
        }
        leave<Tiling>(a.O, a.r, a.V_scale, x.O[stage], LSE_hbm, s, t, first);
        mbarrier_arrive(&x.O_full[stage]);
    }
    if (consumer == 0) take_turn(consumer); // the last has handed over once more
}

// grid: as many blocks as run at once
template <class Tiling>
__global__ void __launch_bounds__(Tiling::Threads, 1)
    fp8(const __grid_constant__ CUtensorMap Q_map, // [B * H, Nq, d], e4m3
        const __grid_constant__ CUtensorMap K_map, // [B * Hkv, Nk, d], e4m3
        const __grid_constant__ CUtensorMap V_map, // [B * Hkv, d, Nk], e4m3
        const __grid_constant__ CUtensorMap O_map, // [B * H, Nq, d], bf16
        const __grid_constant__ scalings scales,
        float *LSE_hbm, // [B, H, Nq]
        shape s, schedule order) {
    memory<Tiling> &x = *(memory<Tiling> *)smem;
    s.causal = Tiling::Causal; // so that the compiler knows
    if (threadIdx.x == 0) init_barriers<Tiling>(x);
    __syncthreads(); // the mbarriers are ready
    // The same in all lanes of a warp, and with a shuffle the compiler knows that, too (rung 5).
    int warp = __shfl_sync(~0u, threadIdx.x / Lanes, 0), warpgroup = warp / 4;
    if (warpgroup == 0) {
        setmaxnreg_dec<Tiling::ProducerRegisters>();
        const sources from = {Q_map, K_map, V_map, scales};
        if (warp == 0 && elect_one()) produce_QK(x, from, s, order);
        if (warp == 1 && elect_one()) produce_V(x, from);
        if (warp == 2 && elect_one()) store_all(x, O_map, s.d);
    } else {
        setmaxnreg_inc<Tiling::ConsumerRegisters>();
        consume(x, LSE_hbm, s, warpgroup - 1);
    }
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

// The tiles, by d, the mask and the length: calls f with one of them. Keys that share a scale are a
// tile, too. With a mask and few keys, much of a wide tile would be masked.
//> fp8-tilings
template <bool Causal, class F> static auto choose_tiling(const attn_problem *p, F f) {
    const bool blocks = p->fp8_scale == FP8_SCALE_BLOCK, few = p->seqlen_k <= 1024;
    if (p->head_dim <= 64) return f(tiling<64, Causal, 3, 128>());
    if (p->head_dim > 128) return f(tiling<256, Causal, 2, 128>());
    if (blocks || (Causal && few)) return f(tiling<128, Causal, 2, 128>());
    return f(tiling<128, Causal, 3, 96>());
}
//< fp8-tilings
template <class F> static auto with_tiling(const attn_problem *p, F f) {
    return p->causal ? choose_tiling<true>(p, f) : choose_tiling<false>(p, f);
}

template <class Tiling> static void launch(const attn_problem *p, const attn_tensors *x) {
    const int heads = p->batch * p->heads, kv_heads = p->batch * p->kv_heads, d = p->head_dim;
    const int tiles = (int)ceil_div(p->seqlen_q, Tiling::Br), bytes = sizeof(memory<Tiling>);
    const int Br = Tiling::Br, Bc = Tiling::Bc, D = Tiling::D;
    schedule order = {tiles, heads, heads_of_group(p), (unsigned *)x->buffer[Next]};
    cudaFuncSetAttribute(fp8<Tiling>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((fp8<Tiling>), min(p->sm_count, tiles * heads), Tiling::Threads, bytes,
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
    size_t bytes = with_tiling(p, [](auto t) { return sizeof(memory<decltype(t)>); });
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
    .rung = 7,
    .name = "fp8",
    .idea = "8-bit operands: a pre-pass quantises, P is rounded to e4m3",
    .formula = "about 2 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_FP8,
    .passes = ATTN_FORWARD,
    .least_sm = 90,
    .exact_sm = 90,
    .supports = supports,
    .describe = describe,
    .buffers = buffers,
    .forward = forward,
    .attention = attention,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step06_7

// step06, rung 8: sums that are added in fp32.
//
// The idea: for FP8 the tensor cores do not add in fp32. They align products and accumulator to the
// largest exponent and keep about 14 bits (DeepSeek-V3 technical report, arXiv:2412.19437, section
// 3.3.2; SageAttention2, arXiv:2411.10958, finds 13 bits of fraction). O of a row is a sum over all
// keys: the longer it gets, the more of each product is cut off. So here P V of a tile goes to an
// accumulator of its own, T, which begins with 0, and the threads add it to O in fp32:
//
//     rung 7    O += P V               on tensor cores, and  O *= factor  where a maximum has grown
//     here      T = P V                on tensor cores
//               O = O * factor + T     by the threads, for each tile
//
// That is D / 2 multiply-adds for each tile and thread, whether or not a maximum has grown; and T
// takes another D / 2 registers, so tiles are smaller than rung 7's best, and d ends at 128.
//
// (DeepSeek-V3 does so in its matrix products, every 128 of k.)
//
// New since rung 7: T, and `add` in place of `rescale`.
//
// Run:     make run ARGS="--kernel fp8-two-level --dtype fp8 -d 128"     (in this folder)
// Limits:  d up to 128; forward only; sm_90a.

#include "fp8_roles.h"

namespace step06_8 {

using namespace step06_fp8;

// What a warpgroup has in registers, for its 64 rows of one tile.
template <class Tiling> struct state {
    float S[Tiling::Bc / 2], T[Tiling::D / 2], O[Tiling::D / 2];
    uint32_t P[Tiling::Bc / 32][4];
    fp8_rows r;
    float factor[2];   // of O, before what P will give is added
    float c;           // of the exponents, but for K's scale
    float V_scale = 1; // the unit of T: V's scale in the tile that P belongs to
};

// O in T's units, and T.
//> two-level-add
template <int D>
__device__ static void add(float (&O)[D / 2], const float (&T)[D / 2], const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < D / 2; n++) O[n] = O[n] * factor[n / 2 % 2] + T[n];
}
//< two-level-add

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
    update_maxima<Bc>(a.S, a.r, c);
    a.factor[0] = a.factor[1] = 1; // there is no O yet
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
    wgmma_fence(a.T, a.P);
    start_PV<Tiling>(a.T, a.P, V, false);
    wgmma_commit();
    hand_over<Tiling>(consumer);
    wgmma_wait<1>(a.S); // P V may still run
    free_buffer(&x.K_empty[n % Stages]);
    if (Masked) mask<Bc>(a.S, s, i, j * Bc);
    update_maxima<Bc>(a.S, a.r, c);
    weights<Bc>(a.S, a.r, c);
    wgmma_wait<0>(a.T, a.P);
    free_buffer(&x.V_empty[(n - 1) % Stages]);
    add<Tiling::D>(a.O, a.T, a.factor);
    float units = V_scale == a.V_scale ? 1 : a.V_scale / V_scale;
    a.factor[0] = a.r.factor[0] * units;
    a.factor[1] = a.r.factor[1] * units;
    a.V_scale = V_scale;
    to_operand<Bc>(a.P, a.S);
}

// After the last tile: its O.
template <class Tiling>
__device__ static void end(state<Tiling> &a, memory<Tiling> &x, unsigned n) {
    uint64_t V = wait_for_V(x, n);
    wgmma_fence(a.T, a.P);
    start_PV<Tiling>(a.T, a.P, V, false);
    wgmma_commit();
    wgmma_wait<0>(a.T, a.P);
    free_buffer(&x.V_empty[n % Stages]);
    add<Tiling::D>(a.O, a.T, a.factor);
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
    fp8_two_level(const __grid_constant__ CUtensorMap Q_map, // [B * H, Nq, d], e4m3
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

template <bool Causal, class F> static auto choose_tiling(const attn_problem *p, F f) {
    return p->head_dim <= 64 ? f(tiling<64, Causal, 2, 128>()) : f(tiling<128, Causal, 2, 128>());
}
template <class F> static auto with_tiling(const attn_problem *p, F f) {
    return p->causal ? choose_tiling<true>(p, f) : choose_tiling<false>(p, f);
}

template <class Tiling> static void launch(const attn_problem *p, const attn_tensors *x) {
    const int heads = p->batch * p->heads, kv_heads = p->batch * p->kv_heads, d = p->head_dim;
    const int tiles = (int)ceil_div(p->seqlen_q, Tiling::Br), bytes = sizeof(memory<Tiling>);
    const int Br = Tiling::Br, Bc = Tiling::Bc, D = Tiling::D;
    schedule order = {tiles, heads, heads_of_group(p), (unsigned *)x->buffer[Next]};
    cudaFuncSetAttribute(fp8_two_level<Tiling>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((fp8_two_level<Tiling>), min(p->sm_count, tiles * heads), Tiling::Threads, bytes,
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
    if (p->head_dim > 128) {
        snprintf(why, why_size, "d = %d: this rung takes 8 to 128; --kernel fp8 takes all",
                 p->head_dim);
        return false;
    }
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
    .rung = 8,
    .name = "fp8-two-level",
    .idea = "sums of 8-bit products are added in fp32",
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

} // namespace step06_8

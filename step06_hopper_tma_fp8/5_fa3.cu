// step06, rung 5: FlashAttention-3's forward, tuned, for every shape.
//
// The idea: the main loop is rung 4's. What is left is everything around it.
//
//   between two tiles   a block stays, and takes one tile of queries after the other (a persistent
//                       grid). So the producers are ahead of the consumers here, too: the next Q
//                       has a buffer of its own, and K and V just go on through their rings, each
//                       filled by a thread of its own
//   order of the tiles  with a causal mask the longest come first, of a group of heads at a time
//                       that L2 has room for, and a block that is ready takes the next one, by a
//                       counter in HBM. Without a mask all are equally long: head after head, every
//                       gridDim.x-th tile for a block
//   masks               keys are taken from the last to the first. So tiles that need a mask come
//                       first, in a loop of their own, and the main loop knows of none
//   O                   leaves by TMA, from the place of its Q. stmatrix puts it there, and a third
//                       role, one thread, stores it while the consumers are at their next tile
//   tiles               for each d what registers and shared memory allow
//   every d             padded to 64, 128 or 256 on the chip, with the zeros that TMA fills in
//
// (FlashAttention-3, Shah et al. 2024, arXiv:2407.08608; its code has the same parts.)
//
// New since rung 4: each of these; and schedule.h in place of rings.h, with the rings of such
// blocks, the order of their tiles, and turns. Rungs 6 to 9 share it.
//
// Run:     make run ARGS="--kernel fa3 -d 64"     (in this folder)
// Limits:  fp16, bf16; forward only; sm_90a.

#include "schedule.h"

namespace step06_5 {

using namespace step06;

// What is compiled for. d is padded to D.
//> tiling
template <int Columns, bool Mask> struct tiling {
    static constexpr int D = Columns;
    static constexpr bool Causal = Mask;
    // With few columns the products are short, and a third warpgroup fills the gaps that
    // exponentials leave. Registers for that are there when O has 64 columns.
    static constexpr int Consumers = D == 64 ? 3 : 2;
    static constexpr int Br = Consumers * Rows, Bc = D == 256 ? 80 : 128;
    static constexpr unsigned QStages = D == 256 ? 1 : 2; // buffers for Q that fit beside K and V
    static constexpr int Threads = (1 + Consumers) * Warpgroup;
    static constexpr int ProducerRegisters = Consumers == 3 ? 32 : 24;
    static constexpr int ConsumerRegisters = Consumers == 3 ? 160 : 240;
    static_assert(ProducerRegisters + Consumers * ConsumerRegisters <=
                      (1 + Consumers) * (65536 / Threads / 8 * 8),
                  "setmaxnreg would wait for registers that the launch has not taken");
};
//< tiling

template <class Tiling> struct memory { // what lies in a block's shared memory
    static constexpr int Q_bytes = Tiling::Br * Tiling::D * 2, K_bytes = Tiling::Bc * Tiling::D * 2;
    unsigned char Q[Tiling::QStages][Q_bytes]; // and then O
    unsigned char K[Stages][K_bytes], V[Stages][K_bytes];
    task todo[Tiling::QStages]; // what is to be done with this Q; head -1: nothing, it is the end
    // mbarriers (schedule.h). A buffer for Q is free again when its O has been stored.
    uint64_t Q_full[Tiling::QStages], O_full[Tiling::QStages], O_stored[Tiling::QStages];
    uint64_t K_full[Stages], K_empty[Stages], V_full[Stages], V_empty[Stages];
};

// ---- the producers, two threads -----------------------------------------------------------------

template <class Tiling>
__device__ static void load_K(memory<Tiling> &x, const CUtensorMap &map, unsigned n, int j,
                              int head) {
    unsigned stage = n % Stages;
    mbarrier_wait(&x.K_empty[stage], parity_of<Stages>(n) ^ 1);
    load_tile<Tiling::Bc, Tiling::D>(x.K[stage], &map, &x.K_full[stage], j * Tiling::Bc, head);
}

template <class Tiling>
__device__ static void load_V(memory<Tiling> &x, const CUtensorMap &map, unsigned n, int j,
                              int head) {
    unsigned stage = n % Stages;
    mbarrier_wait(&x.V_empty[stage], parity_of<Stages>(n) ^ 1);
    load_tile<Tiling::Bc, Tiling::D>(x.V[stage], &map, &x.V_full[stage], j * Tiling::Bc, head);
}

//> produce
// The first decides what the block does next, and copies Q and K. K of the next tile of queries can
// be on its way before V of this one's last keys is: so V has a thread of its own.
template <class Tiling>
__device__ static void produce_QK(memory<Tiling> &x, const CUtensorMap &Q_map,
                                  const CUtensorMap &K_map, const shape &s, const schedule &order) {
    int tile = blockIdx.x, all = order.tiles * order.heads;
    for (unsigned nq = 0, nk = 0;; nq++) { // tiles of Q, and of K, so far
        unsigned stage = nq % Tiling::QStages;
        mbarrier_wait(&x.O_stored[stage], parity_of<Tiling::QStages>(nq) ^ 1);
        task t = tile < all ? task_of<Tiling>(s, order, tile) : task{-1};
        x.todo[stage] = t;
        if (t.bh < 0) { // the end: no Q comes
            mbarrier_arrive(&x.Q_full[stage]);
            return;
        }
        load_tile<Tiling::Br, Tiling::D>(x.Q[stage], &Q_map, &x.Q_full[stage], t.i0, t.bh);
        tile = tile_after(order, tile);
        for (int j = last_tile<Tiling>(t); j >= 0; j--) load_K(x, K_map, nk++, j, t.head);
    }
}

template <class Tiling>
__device__ static void produce_V(memory<Tiling> &x, const CUtensorMap &V_map) {
    for (unsigned nq = 0, nk = 0;; nq++) {
        unsigned stage = nq % Tiling::QStages;
        mbarrier_wait(&x.Q_full[stage], parity_of<Tiling::QStages>(nq));
        task t = x.todo[stage];
        if (t.bh < 0) return;
        for (int j = last_tile<Tiling>(t); j >= 0; j--) load_V(x, V_map, nk++, j, t.head);
    }
}
//< produce

// ---- the storer, one thread ---------------------------------------------------------------------

template <class Tiling>
__device__ static void store_all(memory<Tiling> &x, const CUtensorMap &O_map, int d) {
    //> store
    for (unsigned nq = 0;; nq++) {
        unsigned stage = nq % Tiling::QStages, parity = parity_of<Tiling::QStages>(nq);
        mbarrier_wait(&x.Q_full[stage], parity);
        task t = x.todo[stage];
        if (t.bh < 0) return;
        mbarrier_wait(&x.O_full[stage], parity);
        for (int p = 0; p * Panel < d; p++) // no panel that is only padding
            tma_store_3d(&O_map, x.Q[stage] + p * Tiling::Br * PanelRow, p * Panel, t.i0, t.bh);
        tma_store_commit();
        tma_store_wait_read<0>();
        mbarrier_arrive(&x.O_stored[stage]);
    }
    //< store
}

// ---- the consumers, a warpgroup each ------------------------------------------------------------

template <class Tiling> __device__ static uint64_t wait_for_K(memory<Tiling> &x, unsigned n) {
    mbarrier_wait(&x.K_full[n % Stages], parity_of<Stages>(n));
    return wgmma_k_major(x.K[n % Stages]);
}

template <class Tiling> __device__ static uint64_t wait_for_V(memory<Tiling> &x, unsigned n) {
    mbarrier_wait(&x.V_full[n % Stages], parity_of<Stages>(n));
    return wgmma_mn_major(x.V[n % Stages], Tiling::Bc * PanelRow);
}

// What a warpgroup has in registers, for its 64 rows of one tile.
template <class Tiling> struct state {
    float S[Tiling::Bc / 2], O[Tiling::D / 2];
    uint32_t P[Tiling::Bc / 16][4];
    rows r;
};

// The first tile of keys, number n of the block: S and P.
template <class T, class Tiling>
__device__ static void begin(state<Tiling> &a, memory<Tiling> &x, uint64_t Q, unsigned n,
                             const shape &s, int i, int j) {
    constexpr int Bc = Tiling::Bc;
    float c = s.scale * Log2e;
    uint64_t K = wait_for_K(x, n);
    wgmma_fence(a.S);
    start_QK<T, Tiling::Br, Bc, Tiling::D>(a.S, Q, K);
    wgmma_commit();
    wgmma_wait<0>(a.S);
    free_buffer(&x.K_empty[n % Stages]);
    mask<Bc>(a.S, s, i, j * Bc);
    update_maxima<Bc>(a.S, a.r, c); // there is no O to rescale
    weights<Bc>(a.S, a.r, c);
    to_operand<T, Bc>(a.P, a.S);
}

// Each tile after it: S of tile j, O of the tile before, P of tile j.
template <class T, class Tiling, bool Masked>
__device__ static void attend(state<Tiling> &a, memory<Tiling> &x, uint64_t Q, unsigned n,
                              const shape &s, int i, int j, int consumer) {
    constexpr int Bc = Tiling::Bc, D = Tiling::D;
    float c = s.scale * Log2e;
    uint64_t K = wait_for_K(x, n);
    take_turn(consumer);
    wgmma_fence(a.S);
    start_QK<T, Tiling::Br, Bc, D>(a.S, Q, K);
    wgmma_commit();
    uint64_t V = wait_for_V(x, n - 1); // it comes after K, and may still be on its way
    wgmma_fence(a.O, a.P);
    start_PV<T, Bc, D>(a.O, a.P, V);
    wgmma_commit();
    hand_over<Tiling>(consumer);
    wgmma_wait<1>(a.S); // P V may still run
    free_buffer(&x.K_empty[n % Stages]);
    if (Masked) mask<Bc>(a.S, s, i, j * Bc);
    bool grown = update_maxima<Bc>(a.S, a.r, c);
    weights<Bc>(a.S, a.r, c);
    wgmma_wait<0>(a.O, a.P);
    free_buffer(&x.V_empty[(n - 1) % Stages]);
    if (grown) rescale<D>(a.O, a.r);
    to_operand<T, Bc>(a.P, a.S);
}

// After the last tile: its O.
template <class T, class Tiling>
__device__ static void end(state<Tiling> &a, memory<Tiling> &x, unsigned n) {
    uint64_t V = wait_for_V(x, n);
    wgmma_fence(a.O, a.P);
    start_PV<T, Tiling::Bc, Tiling::D>(a.O, a.P, V);
    wgmma_commit();
    wgmma_wait<0>(a.O, a.P);
    free_buffer(&x.V_empty[n % Stages]);
}

// O / l to the place of Q, and LSE to HBM. `first` is the warpgroup's first row of the tile.
template <class T, class Tiling>
__device__ static void leave(state<Tiling> &a, unsigned char *O_smem, float *LSE_hbm,
                             const shape &s, task t, int first) {
    int lane = threadIdx.x % Lanes, i = t.i0 + first + row_of_thread();
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++, i += 8) {
        float l = sum_of_quad(a.r.l[half]);
        inverse[half] = 1 / (l > 0 ? l : 1); // a row that sees no key: O = 0
        if (lane % 4 == 0 && i < s.Nq)
            LSE_hbm[(size_t)t.bh * s.Nq + i] = s.scale * a.r.m[half] + logf(l);
    }
    // 16 rows of 16 columns at a time are four matrices of stmatrix. A lane gives the place of one
    // row of one of them: lanes 0 to 15 of the left two, the others of the right two.
    int row = first + threadIdx.x % Warpgroup / Lanes * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < Tiling::D; k += 16) {
        uint32_t matrices[4]; // left: rows 0 to 7, 8 to 15; right: the same
#pragma unroll
        for (int m = 0; m < 4; m++)
            matrices[m] = pack<T>(a.O[k / 2 + 2 * m] * inverse[m % 2],
                                  a.O[k / 2 + 2 * m + 1] * inverse[m % 2]);
        int piece = (k % Panel / 8 + lane / 16) ^ row % 8; // as TMA expects it: swizzled
        stmatrix_x4(O_smem + (k / Panel * Tiling::Br + row) * PanelRow + piece * 16, matrices);
    }
    fence_proxy_async(); // what this thread has stored is there for TMA
}

// All warpgroups have as many turns.
template <class T, class Tiling>
__device__ static void consume(memory<Tiling> &x, float *LSE_hbm, const shape &s, int consumer) {
    const int first = consumer * Rows;
    if (consumer == Tiling::Consumers - 1) hand_over<Tiling>(consumer); // 0 has the first turn
    for (unsigned nq = 0, nk = 0;; nq++) { // tiles of Q, and of K and V, so far
        unsigned stage = nq % Tiling::QStages;
        mbarrier_wait(&x.Q_full[stage], parity_of<Tiling::QStages>(nq));
        task t = x.todo[stage];
        if (t.bh < 0) break;
        uint64_t Q = wgmma_k_major(x.Q[stage] + first * PanelRow);
        int i = t.i0 + first + row_of_thread();
        state<Tiling> a;
#pragma unroll
        for (int e = 0; e < Tiling::D / 2; e++) a.O[e] = 0;
        if (t.keys > 0) {
            // All rows of the warpgroup see the first so many tiles of keys whole.
            int whole = keys_seen(s, t.i0 + first + 1) / Tiling::Bc;
            int j = last_tile<Tiling>(t);
            begin<T>(a, x, Q, nk++, s, i, j--);
            for (; j >= whole; j--) attend<T, Tiling, true>(a, x, Q, nk++, s, i, j, consumer);
            for (; j >= 0; j--) attend<T, Tiling, false>(a, x, Q, nk++, s, i, j, consumer);
            end<T>(a, x, nk - 1);
        }
        leave<T>(a, x.Q[stage], LSE_hbm, s, t, first);
        mbarrier_arrive(&x.O_full[stage]);
    }
    if (consumer == 0) take_turn(consumer); // the last has handed over once more
}

// ---- the kernel ---------------------------------------------------------------------------------

// grid: as many blocks as run at once
template <class T, class Tiling>
__global__ void __launch_bounds__(Tiling::Threads, 1)
    fa3(const __grid_constant__ CUtensorMap Q_map, // [B * H, Nq, d]
        const __grid_constant__ CUtensorMap K_map, // [B * Hkv, Nk, d]
        const __grid_constant__ CUtensorMap V_map, // [B * Hkv, Nk, d]
        const __grid_constant__ CUtensorMap O_map, // [B * H, Nq, d]
        float *LSE_hbm,                            // [B, H, Nq]
        shape s, schedule order) {
    memory<Tiling> &x = *(memory<Tiling> *)smem;
    s.causal = Tiling::Causal; // so that the compiler knows
    if (threadIdx.x == 0) init_barriers<Tiling>(x);
    __syncthreads(); // the mbarriers are ready
    // The same in all lanes of a warp, and with a shuffle the compiler knows that, too: what
    // follows from it, such as the descriptors of wgmma, is computed once for the warp (uniform
    // registers).
    int warp = __shfl_sync(~0u, threadIdx.x / Lanes, 0), warpgroup = warp / 4;
    if (warpgroup == 0) {
        setmaxnreg_dec<Tiling::ProducerRegisters>();
        if (warp == 0 && elect_one()) produce_QK(x, Q_map, K_map, s, order);
        if (warp == 1 && elect_one()) produce_V(x, V_map);
        if (warp == 2 && elect_one()) store_all(x, O_map, s.d);
    } else {
        setmaxnreg_inc<Tiling::ConsumerRegisters>();
        consume<T>(x, LSE_hbm, s, warpgroup - 1);
    }
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

// Calls f with the tiling for this problem.
template <class F> static auto with_tiling(const attn_problem *p, F f) {
    int d = p->head_dim;
    if (p->causal)
        return d <= 64    ? f(tiling<64, true>())
               : d <= 128 ? f(tiling<128, true>())
                          : f(tiling<256, true>());
    return d <= 64    ? f(tiling<64, false>())
           : d <= 128 ? f(tiling<128, false>())
                      : f(tiling<256, false>());
}

template <class T, class Tiling> static void launch(const attn_problem *p, const attn_tensors *x) {
    const int heads = p->batch * p->heads, kv_heads = p->batch * p->kv_heads, d = p->head_dim;
    const int tiles = (int)ceil_div(p->seqlen_q, Tiling::Br), bytes = sizeof(memory<Tiling>);
    schedule order = {tiles, heads, heads_of_group(p), (unsigned *)x->buffer[0]};
    cudaFuncSetAttribute(fa3<T, Tiling>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((fa3<T, Tiling>), min(p->sm_count, tiles * heads), Tiling::Threads, bytes,
           map_of(x->Q, heads, p->seqlen_q, d, Tiling::Br),
           map_of(x->K, kv_heads, p->seqlen_k, d, Tiling::Bc),
           map_of(x->V, kv_heads, p->seqlen_k, d, Tiling::Bc),
           map_of(x->O, heads, p->seqlen_q, d, Tiling::Br), x->LSE, shape_of(p), order);
}

static void forward(const attn_problem *p, const attn_tensors *x) {
    with_tiling(p, [=](auto t) {
        using Tiling = decltype(t);
        (p->dtype == ATTN_FP16 ? launch<__half, Tiling> : launch<__nv_bfloat16, Tiling>)(p, x);
    });
}

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    out[0] = {.name = "tiles asked for", .bytes = 4, .passes = ATTN_FORWARD, .zeroed = true};
    return p->causal; // one, or none
}

static bool supports(const attn_problem *p, unsigned, char *why, size_t why_size) {
    size_t bytes = with_tiling(p, [](auto t) { return sizeof(memory<decltype(t)>); });
    return fits(p, bytes, why, why_size);
}

static void describe(const attn_problem *p, unsigned, char *text, size_t size) {
    with_tiling(p, [=](auto t) { describe_tiling<decltype(t)>(p, text, size); });
}

template <class Tiling> static attn_traffic traffic(const attn_problem *p) {
    attn_traffic sum = forward_traffic(p, Tiling::Br, Tiling::Bc, Tiling::D, 0);
    sum.tma_store = stored_bytes(p, Tiling::Br);
    sum.atomic = counter_bytes(p, Tiling::Br);
    return sum;
}

static attn_traffic model(const attn_problem *p, unsigned) {
    return with_tiling(p, [=](auto t) { return traffic<decltype(t)>(p); });
}

static const attn_kernel kernel = {
    .step = "step06_hopper_tma_fp8",
    .rung = 5,
    .name = "fa3",
    .idea = "tuned: persistent blocks, order of tiles, O by TMA, every shape",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD,
    .least_sm = 90,
    .exact_sm = 90,
    .supports = supports,
    .describe = describe,
    .buffers = buffers,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step06_5

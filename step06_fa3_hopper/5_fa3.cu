// step06, rung 5: FlashAttention-3's forward, tuned, for every shape.
//
// The idea: the main loop is that of rung 4. What is left are the places around it.
//
//   between two tiles   a block stays, and takes one tile of queries after the other (persistent).
//                       The producer is ahead of the consumers here, too: the next Q has a buffer
//                       of its own, and K and V go on through their rings
//   order of the tiles  with a causal mask the longest come first, and who is ready takes the next
//                       one, by a counter in HBM. Of only so many heads at a time as K and V of
//                       which fit into L2. Without a mask all are equally long: one head after the
//                       other, each block every gridDim.x-th tile
//   masks               keys are taken from the last to the first. Then the tiles that need a mask
//                       come first, in a loop of their own, and the main loop knows of none
//   O                   leaves by TMA, from the place of its Q: stmatrix puts it there, and a third
//                       role, one thread, stores it, while the consumers are at the next tile
//   tiles               as large as registers and shared memory allow, for each d
//   every d             padded with zeros to 64, 128 or 256 on the chip. TMA fills them in
//
// New since rung 4: each of these.
//
// Run:     make run ARGS="--kernel fa3 -d 64"     (in this folder)
// Limits:  fp16, bf16; forward only; sm_90a.

#include "hopper.h"

namespace step06_5 {

using namespace step06;

constexpr unsigned Stages = 2; // of the rings of K and V

// What is compiled for: d padded to D, with a causal mask or without.
template <int D_, bool Causal_> struct tiling {
    static constexpr int D = D_;
    static constexpr bool Causal = Causal_;
    // With few columns the products are short, and the exponentials of a third warpgroup fill the
    // gaps; its registers are enough for O of 64 columns only.
    static constexpr int Consumers = D == 64 ? 3 : 2;
    static constexpr int Threads = (1 + Consumers) * Warpgroup;
    static constexpr int Br = Consumers * Rows, Bc = D == 256 ? 80 : 128;
    static constexpr unsigned QStages = D == 256 ? 1 : 2; // buffers for Q that fit beside K and V
    static constexpr int ProducerRegisters = Consumers == 3 ? 32 : 24;
    static constexpr int ConsumerRegisters = Consumers == 3 ? 160 : 240;
    static constexpr int LaunchRegisters = 65536 / Threads / 8 * 8;
    static_assert(ProducerRegisters + Consumers * ConsumerRegisters <=
                      (1 + Consumers) * LaunchRegisters,
                  "setmaxnreg would wait for registers that the block does not have");
};

// What lies in a block's shared memory. An mbarrier for each buffer and each thing to wait for.
template <class t> struct memory {
    static constexpr int Q_bytes = t::Br * t::D * 2, K_bytes = t::Bc * t::D * 2;
    unsigned char Q[t::QStages][Q_bytes]; // and then O
    unsigned char K[Stages][K_bytes], V[Stages][K_bytes];
    uint64_t Q_full[t::QStages], Q_empty[t::QStages], O_full[t::QStages];
    uint64_t K_full[Stages], K_empty[Stages], V_full[Stages], V_empty[Stages];
    int tile[t::QStages]; // whose Q this is: its number in the order of work
};

// ---- the order of work --------------------------------------------------------------------------

// A problem's tiles of queries are numbered group by group, in a group the last tiles of all heads
// first: with a causal mask they see most keys.
struct work {
    int tiles, heads, group; // tiles of a head; heads = B * H; heads of a group
    int *next;               // [1] the next tile that nobody has; NULL: taken in turns
};

template <class t> __device__ static task task_of(const shape &s, const work &w, int tile) {
    int first = tile / (w.group * w.tiles) * w.group, n = tile % (w.group * w.tiles);
    int heads = min(w.group, w.heads - first); // the last group may be smaller
    int bh = first + n % heads, i0 = (w.tiles - 1 - n / heads) * t::Br;
    return {bh, (int)kv_head(s, bh), i0, keys_seen(s, i0 + t::Br)};
}

__device__ static int take_next(const work &w, int tile) {
    return w.next ? (int)gridDim.x + atomicAdd(w.next, 1) : tile + (int)gridDim.x;
}

// ---- the producer: one thread, and one more for O -----------------------------------------------

// Number n of what goes through a ring of so many buffers: when it is there, phase n / stages of
// "full" is complete.
template <unsigned Count> __device__ static int parity_of(unsigned n) { return n / Count % 2; }

template <class t>
__device__ static void load_K(memory<t> &x, const CUtensorMap &map, unsigned n, int j, int head) {
    mbarrier_wait(&x.K_empty[n % Stages], parity_of<Stages>(n) ^ 1);
    load_tile<t::Bc, t::D>(x.K[n % Stages], &map, &x.K_full[n % Stages], j * t::Bc, head);
}

template <class t>
__device__ static void load_V(memory<t> &x, const CUtensorMap &map, unsigned n, int j, int head) {
    mbarrier_wait(&x.V_empty[n % Stages], parity_of<Stages>(n) ^ 1);
    load_tile<t::Bc, t::D>(x.V[n % Stages], &map, &x.V_full[n % Stages], j * t::Bc, head);
}

// Q comes with its number.
template <class t>
__device__ static void load_Q(memory<t> &x, const CUtensorMap &map, unsigned n, int tile, task q) {
    unsigned stage = n % t::QStages;
    mbarrier_wait(&x.Q_empty[stage], parity_of<t::QStages>(n) ^ 1);
    x.tile[stage] = tile;
    load_tile<t::Br, t::D>(x.Q[stage], &map, &x.Q_full[stage], q.i0, q.bh);
}

// In the order in which the consumers ask: K of a tile comes before V of the one before it.
template <class t>
__device__ static void produce(memory<t> &x, const CUtensorMap &Q_map, const CUtensorMap &K_map,
                               const CUtensorMap &V_map, const shape &s, const work &w) {
    int tile = blockIdx.x;
    unsigned turn = 0, n = 0; // tiles of Q, and of V, so far
    for (; tile < w.tiles * w.heads; turn++) {
        task q = task_of<t>(s, w, tile);
        int next = take_next(w, tile), j = (q.keys + t::Bc - 1) / t::Bc - 1;
        if (j >= 0) load_K(x, K_map, n, j, q.head);
        load_Q(x, Q_map, turn, tile, q);
        for (; j >= 0; j--, n++) {
            if (j > 0) load_K(x, K_map, n + 1, j - 1, q.head);
            load_V(x, V_map, n, j, q.head);
        }
        tile = next;
    }
    unsigned stage = turn % t::QStages;
    mbarrier_wait(&x.Q_empty[stage], parity_of<t::QStages>(turn) ^ 1);
    x.tile[stage] = tile; // a number behind the last: there are no more
    mbarrier_arrive(&x.Q_full[stage]);
}

// Stores each O as soon as it is complete, and gives its buffer back.
template <class t>
__device__ static void store_O(memory<t> &x, const CUtensorMap &O_map, const shape &s,
                               const work &w) {
    for (unsigned turn = 0;; turn++) {
        int stage = turn % t::QStages, parity = parity_of<t::QStages>(turn);
        mbarrier_wait(&x.Q_full[stage], parity);
        if (x.tile[stage] >= w.tiles * w.heads) return;
        task q = task_of<t>(s, w, x.tile[stage]);
        mbarrier_wait(&x.O_full[stage], parity);
        for (int p = 0; p < t::D / Panel; p++)
            tma_store_3d(&O_map, x.Q[stage] + p * t::Br * PanelRow, p * Panel, q.i0, q.bh);
        tma_store_commit();
        tma_store_wait_read<0>();
        mbarrier_arrive(&x.Q_empty[stage]);
    }
}

// ---- consumers ----------------------------------------------------------------------------------

template <class t> __device__ static uint64_t wait_for_K(memory<t> &x, unsigned n) {
    mbarrier_wait(&x.K_full[n % Stages], parity_of<Stages>(n));
    return wgmma_k_major(x.K[n % Stages]);
}

template <class t> __device__ static uint64_t wait_for_V(memory<t> &x, unsigned n) {
    mbarrier_wait(&x.V_full[n % Stages], parity_of<Stages>(n));
    return wgmma_mn_major(x.V[n % Stages], t::Bc * PanelRow);
}

// One thread of the warpgroup says that it has read a buffer.
__device__ static void free_buffer(uint64_t *empty) {
    if (threadIdx.x % Warpgroup == 0) mbarrier_arrive(empty);
}

template <class t> __device__ static void take_turn(int consumer) {
    named_barrier_sync(1 + consumer, 2 * Warpgroup);
}
template <class t> __device__ static void hand_over(int consumer) {
    named_barrier_arrive(1 + (consumer + 1) % t::Consumers, 2 * Warpgroup);
}

// What a warpgroup has in registers.
template <class t> struct state {
    float S[t::Bc / 2], O[t::D / 2];
    uint32_t P[t::Bc / 16][4];
    rows r;
};

// One turn of the main loop, with tile j of K and V: S of j, O of the tile before. n: its number in
// the rings.
template <class T, class t, bool Masked>
__device__ static void attend(state<t> &a, memory<t> &x, uint64_t Q, unsigned n, const shape &s, int i,
                              int j, int consumer) {
    float c = s.scale * Log2e;
    uint64_t K = wait_for_K(x, n);
    take_turn<t>(consumer);
    wgmma_fence(a.S);
    start_QK<T, t::Br, t::Bc, t::D>(a.S, Q, K);
    wgmma_commit();
    uint64_t V = wait_for_V(x, n - 1);
    wgmma_fence(a.O, a.P);
    start_PV<T, t::Bc, t::D>(a.O, a.P, V);
    wgmma_commit();
    hand_over<t>(consumer);
    wgmma_wait<1>(a.S);
    free_buffer(&x.K_empty[n % Stages]);
    if (Masked) mask<t::Bc>(a.S, s, i, j * t::Bc);
    bool grown = update_maxima<t::Bc>(a.S, a.r, c);
    weights<t::Bc>(a.S, a.r, c);
    wgmma_wait<0>(a.O, a.P);
    free_buffer(&x.V_empty[(n - 1) % Stages]);
    if (grown) rescale<t::D>(a.O, a.r);
    to_operand<T, t::Bc>(a.P, a.S);
}

// O / l to the place of Q, for TMA, and LSE to HBM. first: the warpgroup's first row of the tile.
template <class T, class t>
__device__ static void finish(state<t> &a, unsigned char *Q_smem, float *LSE_hbm, const shape &s,
                              task q, int first) {
    int lane = threadIdx.x % Lanes, i = q.i0 + first + row_of_thread();
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++, i += 8) {
        float l = sum_of_quad(a.r.l[half]);
        inverse[half] = 1 / (l > 0 ? l : 1); // a row that sees no key: O = 0
        if (lane % 4 == 0 && i < s.Nq)
            LSE_hbm[(size_t)q.bh * s.Nq + i] = s.scale * a.r.m[half] + logf(l);
    }
    // A lane gives the address of one row of 16 bytes: of the upper or lower 8 of the warp's rows,
    // and of the left or right 8 of 16 columns.
    int row = first + threadIdx.x % Warpgroup / Lanes * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < t::D; k += 16) {
        uint32_t two_by_two[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            two_by_two[e] = pack<T>(a.O[k / 2 + 2 * e] * inverse[e % 2],
                                    a.O[k / 2 + 2 * e + 1] * inverse[e % 2]);
        int piece = k % Panel / 8 + lane / 16;
        stmatrix_x4(Q_smem + k / Panel * t::Br * PanelRow + row * PanelRow + (piece ^ row % 8) * 16,
                    two_by_two);
    }
    fence_proxy_async(); // for TMA
}

// A warpgroup: its 64 rows of each tile of queries. All have as many turns.
template <class T, class t>
__device__ static void consume(memory<t> &x, float *LSE_hbm, const shape &s, const work &w,
                               int consumer) {
    const int first = consumer * Rows;
    float c = s.scale * Log2e;
    unsigned n = 0;                                                // tiles of K and V so far
    if (consumer == t::Consumers - 1) hand_over<t>(consumer); // 0 has the first turn
    for (unsigned turn = 0;; turn++) {
        int stage = turn % t::QStages;
        mbarrier_wait(&x.Q_full[stage], parity_of<t::QStages>(turn));
        if (x.tile[stage] >= w.tiles * w.heads) break;
        task q = task_of<t>(s, w, x.tile[stage]);
        int i = q.i0 + first + row_of_thread();
        uint64_t Q = wgmma_k_major(x.Q[stage] + first * PanelRow);
        state<t> a;
#pragma unroll
        for (int e = 0; e < t::D / 2; e++) a.O[e] = 0;
        if (q.keys > 0) {
            // Of the tiles of keys, the first so many are seen whole by all rows of this warpgroup.
            int whole = keys_seen(s, q.i0 + first + 1) / t::Bc, j = (q.keys - 1) / t::Bc;
            uint64_t K = wait_for_K(x, n);
            wgmma_fence(a.S);
            start_QK<T, t::Br, t::Bc, t::D>(a.S, Q, K);
            wgmma_commit();
            wgmma_wait<0>(a.S);
            free_buffer(&x.K_empty[n % Stages]);
            mask<t::Bc>(a.S, s, i, j * t::Bc);
            update_maxima<t::Bc>(a.S, a.r, c); // O is 0
            weights<t::Bc>(a.S, a.r, c);
            to_operand<T, t::Bc>(a.P, a.S);
            for (j--, n++; j >= 0 && j >= whole; j--, n++)
                attend<T, t, true>(a, x, Q, n, s, i, j, consumer);
            for (; j >= 0; j--, n++) attend<T, t, false>(a, x, Q, n, s, i, j, consumer);
            uint64_t V = wait_for_V(x, n - 1);
            wgmma_fence(a.O, a.P);
            start_PV<T, t::Bc, t::D>(a.O, a.P, V);
            wgmma_commit();
            wgmma_wait<0>(a.O, a.P);
            free_buffer(&x.V_empty[(n - 1) % Stages]);
        }
        finish<T, t>(a, x.Q[stage], LSE_hbm, s, q, first);
        mbarrier_arrive(&x.O_full[stage]);
    }
    if (consumer == 0) take_turn<t>(consumer); // nobody arrives in vain
}

// ---- the kernel ---------------------------------------------------------------------------------

template <class t> __device__ static void init_barriers(memory<t> &x) {
    for (unsigned stage = 0; stage < t::QStages; stage++) {
        mbarrier_init(&x.Q_full[stage], 1);
        mbarrier_init(&x.Q_empty[stage], 1);
        mbarrier_init(&x.O_full[stage], t::Consumers * Warpgroup);
    }
    for (unsigned stage = 0; stage < Stages; stage++) {
        mbarrier_init(&x.K_full[stage], 1);
        mbarrier_init(&x.V_full[stage], 1);
        mbarrier_init(&x.K_empty[stage], t::Consumers);
        mbarrier_init(&x.V_empty[stage], t::Consumers);
    }
    mbarrier_fence_init();
}

// grid: as many blocks as run at once
template <class T, class t>
__global__ void __launch_bounds__(t::Threads, 1)
    fa3(const __grid_constant__ CUtensorMap Q_map, // [B * H, Nq, d]
        const __grid_constant__ CUtensorMap K_map, // [B * Hkv, Nk, d]
        const __grid_constant__ CUtensorMap V_map, // [B * Hkv, Nk, d]
        const __grid_constant__ CUtensorMap O_map, // [B * H, Nq, d]
        float *LSE_hbm,                            // [B, H, Nq]
        shape s, work w) {
    memory<t> &x = *(memory<t> *)smem;
    s.causal = t::Causal; // the compiler may know
    if (threadIdx.x == 0) init_barriers(x);
    __syncthreads(); // the mbarriers are ready
    if (threadIdx.x < Warpgroup) {
        setmaxnreg_dec<t::ProducerRegisters>();
        int warp = threadIdx.x / Lanes;
        if (warp == 0 && elect_one()) produce(x, Q_map, K_map, V_map, s, w);
        if (warp == 1 && elect_one()) store_O(x, O_map, s, w);
    } else {
        setmaxnreg_inc<t::ConsumerRegisters>();
        consume<T>(x, LSE_hbm, s, w, __shfl_sync(~0u, (int)threadIdx.x / Warpgroup - 1, 0));
    }
}

__global__ void nobody_has_taken_any(int *next) { *next = 0; }

// ---- the host's side: what the harness asks of a rung ------------------------------------------

// Calls f with the tiling of the problem.
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

// Heads whose K and V take about half of an H200's L2, and at least those that share one K and V.
// Without a mask the order within a group does not matter: one head after the other.
static int heads_of_group(const attn_problem *p) {
    const uint64_t half_of_L2 = 32 << 20, KV = 2 * 2 * (uint64_t)p->seqlen_k * p->head_dim;
    if (!p->causal) return 1;
    uint64_t kv_heads = half_of_L2 / KV > 1 ? half_of_L2 / KV : 1;
    uint64_t heads = kv_heads * (p->heads / p->kv_heads), all = (uint64_t)p->batch * p->heads;
    return (int)(heads < all ? heads : all);
}

template <class T, class t> static void launch(const attn_problem *p, const attn_tensors *x) {
    const int heads = p->batch * p->heads, kv_heads = p->batch * p->kv_heads, d = p->head_dim;
    const int tiles = (int)ceil_div(p->seqlen_q, t::Br), bytes = sizeof(memory<t>);
    work w = {tiles, heads, heads_of_group(p), (int *)x->buffer[0]};
    if (w.next) LAUNCH(nobody_has_taken_any, 1, 1, 0, w.next);
    cudaFuncSetAttribute(fa3<T, t>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((fa3<T, t>), min(p->sm_count, tiles * heads), t::Threads, bytes,
           map_of(x->Q, heads, p->seqlen_q, d, t::Br),
           map_of(x->K, kv_heads, p->seqlen_k, d, t::Bc),
           map_of(x->V, kv_heads, p->seqlen_k, d, t::Bc),
           map_of(x->O, heads, p->seqlen_q, d, t::Br), x->LSE, shape_of(p), w);
}

static void forward(const attn_problem *p, const attn_tensors *x) {
    with_tiling(p, [=](auto t) {
        (p->dtype == ATTN_FP16 ? launch<__half, decltype(t)>
                               : launch<__nv_bfloat16, decltype(t)>)(p, x);
    });
}

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    out[0] = {.name = "next tile", .bytes = sizeof(int), .passes = ATTN_FORWARD};
    return p->causal;
}

static bool supports(const attn_problem *p, unsigned, char *why, size_t why_size) {
    size_t bytes = with_tiling(p, [](auto t) { return sizeof(memory<decltype(t)>); });
    return fits(p, bytes, why, why_size);
}

static void describe(const attn_problem *p, unsigned, char *text, size_t size) {
    with_tiling(p, [=](auto t) {
        snprintf(text, size, "Br %d, Bc %d, %d consumers, d padded to %d, groups of %d heads", t.Br,
                 t.Bc, t.Consumers, t.D, heads_of_group(p));
    });
}

// All boxes count whole. The counter is set to zero once, and each block takes from it once for
// each of its tiles: together, as many times as there are tiles.
template <class t> static attn_traffic traffic(const attn_problem *p) {
    attn_traffic sum = forward_traffic(p, t::Br, t::Bc, t::D, 0);
    uint64_t tiles = (uint64_t)p->batch * p->heads * ceil_div(p->seqlen_q, t::Br);
    sum.tma_store = tiles * t::Br * t::D * 2;
    if (p->causal) sum.store += SECTOR, sum.atomic = tiles * SECTOR;
    return sum;
}

static attn_traffic model(const attn_problem *p, unsigned) {
    return with_tiling(p, [=](auto t) { return traffic<decltype(t)>(p); });
}

static const attn_kernel kernel = {
    .step = "step06_fa3_hopper",
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

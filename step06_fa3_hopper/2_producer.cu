// step06, rung 2: who copies does not multiply.
//
// The idea: in rung 1 the warps that multiply also start the copies, and meet twice a turn so that
// no buffer is overwritten that somebody reads. Here a warp of its own, the producer, does nothing
// but start copies, as far ahead as there are buffers. K and V have two each, and two mbarriers for
// each buffer:
//
//     full    TMA has filled it           the consumers wait, the producer need not
//     empty   both consumers have read it the producer waits, the consumers need not
//
// So nobody meets anybody: each warpgroup goes at its own pace. wgmma wants many registers and
// copying few: setmaxnreg moves them from the producer's warpgroup to the others.
//
// New since rung 1: roles, two rings of buffers, no __syncthreads() in the loop.
//
// Run:     make run ARGS="--kernel producer -d 64"     (in this folder)
// Limits:  fp16, bf16; d = 64, 128; forward only; sm_90a.

#include "hopper.h"

namespace step06_2 {

using namespace step06;

constexpr int Consumers = 2, Threads = (1 + Consumers) * Warpgroup;
constexpr int Br = Consumers * Rows, Bc = 128, Stages = 2;

template <int D> struct memory {
    unsigned char Q[Br * D * 2], K[Stages][Bc * D * 2], V[Stages][Bc * D * 2];
    uint64_t Q_full, K_full[Stages], K_empty[Stages], V_full[Stages], V_empty[Stages];
};

template <int D> __device__ static void init_barriers(memory<D> &x) {
    mbarrier_init(&x.Q_full, 1);
    for (int stage = 0; stage < Stages; stage++) {
        mbarrier_init(&x.K_full[stage], 1);
        mbarrier_init(&x.V_full[stage], 1);
        mbarrier_init(&x.K_empty[stage], Consumers); // one thread of each
        mbarrier_init(&x.V_empty[stage], Consumers);
    }
    mbarrier_fence_init();
}

// One thread. Tile n of K goes to buffer n % Stages, as the n / Stages-th that this one holds; a
// wait for "empty" before the first asks for the phase before the first, and passes.
template <int D>
__device__ static void produce(memory<D> &x, const CUtensorMap &Q_map, const CUtensorMap &K_map,
                               const CUtensorMap &V_map, task t) {
    load_tile<Br, D>(x.Q, &Q_map, &x.Q_full, t.i0, t.bh);
    for (int n = 0; n * Bc < t.keys; n++) {
        int stage = n % Stages, parity = n / Stages % 2;
        mbarrier_wait(&x.K_empty[stage], parity ^ 1);
        load_tile<Bc, D>(x.K[stage], &K_map, &x.K_full[stage], n * Bc, t.head);
        mbarrier_wait(&x.V_empty[stage], parity ^ 1);
        load_tile<Bc, D>(x.V[stage], &V_map, &x.V_full[stage], n * Bc, t.head);
    }
}

// A warpgroup, for its 64 rows from `first` on.
template <class T, int D>
__device__ static void consume(memory<D> &x, T *O_hbm, float *LSE_hbm, const shape &s, task t,
                               int first) {
    int i = t.i0 + first + row_of_thread();
    bool leader = threadIdx.x % Warpgroup == 0; // speaks for the warpgroup
    uint64_t Q = wgmma_k_major(x.Q + first * PanelRow);
    float c = s.scale * Log2e, S[Bc / 2], O[D / 2] = {};
    uint32_t P[Bc / 16][4];
    rows r;
    mbarrier_wait(&x.Q_full, 0);
    for (int n = 0; n * Bc < t.keys; n++) {
        int stage = n % Stages, parity = n / Stages % 2;
        mbarrier_wait(&x.K_full[stage], parity);
        wgmma_fence(S);
        start_QK<T, Br, Bc, D>(S, Q, wgmma_k_major(x.K[stage]));
        wgmma_commit();
        wgmma_wait<0>(S);
        if (leader) mbarrier_arrive(&x.K_empty[stage]);

        if (!visible(s, t.i0 + first, n * Bc + Bc - 1)) mask<Bc>(S, s, i, n * Bc);
        if (update_maxima<Bc>(S, r, c)) rescale<D>(O, r);
        weights<Bc>(S, r, c);
        to_operand<T, Bc>(P, S);

        mbarrier_wait(&x.V_full[stage], parity);
        wgmma_fence(O, P);
        start_PV<T, Bc, D>(O, P, wgmma_mn_major(x.V[stage], Bc * PanelRow));
        wgmma_commit();
        wgmma_wait<0>(O);
        if (leader) mbarrier_arrive(&x.V_empty[stage]);
    }
    store<T, D>(O_hbm, LSE_hbm, O, r, s, t.bh, i);
}

// grid: B * H * ceil(Nq / Br) tiles of queries
template <class T, int D>
__global__ void __launch_bounds__(Threads, 1)
    producer(const __grid_constant__ CUtensorMap Q_map, // [B * H, Nq, D]
             const __grid_constant__ CUtensorMap K_map, // [B * Hkv, Nk, D]
             const __grid_constant__ CUtensorMap V_map, // [B * Hkv, Nk, D]
             T *O_hbm,                                  // [B, H, Nq, D]
             float *LSE_hbm,                            // [B, H, Nq]
             shape s) {
    memory<D> &x = *(memory<D> *)smem;
    task t = task_of_block<Br>(s);
    if (threadIdx.x == 0) init_barriers(x);
    __syncthreads(); // the mbarriers are ready
    if (threadIdx.x < Warpgroup) {
        setmaxnreg_dec<24>();
        if (threadIdx.x < Lanes && elect_one()) produce(x, Q_map, K_map, V_map, t);
    } else {
        setmaxnreg_inc<240>();
        consume(x, O_hbm, LSE_hbm, s, t, (threadIdx.x / Warpgroup - 1) * Rows);
    }
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

template <class T, int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    const int bytes = sizeof(memory<D>), kv_heads = p->batch * p->kv_heads;
    cudaFuncSetAttribute(producer<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((producer<T, D>), grid, Threads, bytes,
           map_of(t->Q, p->batch * p->heads, p->seqlen_q, D, Br),
           map_of(t->K, kv_heads, p->seqlen_k, D, Bc), map_of(t->V, kv_heads, p->seqlen_k, D, Bc),
           (T *)t->O, t->LSE, shape_of(p));
}

static void forward(const attn_problem *p, const attn_tensors *t) { STEP06_DISPATCH(launch, p, t); }

static attn_traffic model(const attn_problem *p, unsigned) { return forward_traffic(p, Br, Bc); }

static const attn_kernel kernel = {
    .step = "step06_fa3_hopper",
    .rung = 2,
    .name = "producer",
    .idea = "a warp that copies, two warpgroups that multiply, rings between them",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD,
    .least_sm = 90,
    .exact_sm = 90,
    .supports = takes_64_and_128<memory>,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step06_2

// step06, rung 4: a warpgroup's own softmax during its own products.
//
// The idea: in rung 3 a warpgroup waits for both of its products before its softmax begins. But the
// softmax needs only Q K^T, and P V could run meanwhile. So Q K^T of the next tile is started first
// and P V second, each as a group of its own, and it waits for the first group alone: the softmax
// of tile n is made while P V of tile n - 1 still runs. What touches O or P comes after that: O is
// rescaled, and the weights become P, when the second group is complete.
//
// (FlashAttention-3, Shah et al. 2024, arXiv:2407.08608: section 3.1 is rungs 2 and 3, section 3.2
// this one.)
//
// New since rung 3: the order of the two products, two groups, softmax in two parts.
//
// Run:     make run ARGS="--kernel overlap -d 64"     (in this folder)
// Limits:  fp16, bf16; d = 64, 128; forward only; sm_90a.

#include "rings.h"

namespace step06_4 {

using namespace step06;

// Named barrier 1 + c stands for "consumer c may use the tensor cores". In each of its phases one
// warpgroup arrives, to hand over, and the other waits.
__device__ static void take_turn(int consumer) { named_barrier_sync(1 + consumer, 2 * Warpgroup); }
__device__ static void hand_over(int consumer) {
    named_barrier_arrive(1 + (1 - consumer), 2 * Warpgroup);
}

// A warpgroup, for its 64 rows. Both have as many turns.
template <class T, int D>
__device__ static void consume(memory<D> &x, T *O_hbm, float *LSE_hbm, const shape &s, task t,
                               int consumer) {
    int i = t.i0 + consumer * Rows + row_of_thread(), tiles = (t.keys + Bc - 1) / Bc;
    uint64_t Q = wgmma_k_major(x.Q + consumer * Rows * PanelRow);
    float S[Bc / 2], O[D / 2] = {};
    uint32_t P[Bc / 16][4];
    rows r;
    mbarrier_wait(&x.Q_full, 0);
    if (tiles == 0) return store<T, D>(O_hbm, LSE_hbm, O, r, s, t.bh, i);

    if (consumer == 1) hand_over(consumer); // 0 has the first turn
    uint64_t K = wait_for_K(x, 0);
    take_turn(consumer);
    wgmma_fence(S);
    start_QK<T, Br, Bc, D>(S, Q, K);
    wgmma_commit();
    hand_over(consumer);
    wgmma_wait<0>(S);
    free_K(x, 0);
    softmax<Bc, D>(S, O, r, s, i, 0);
    to_operand<T, Bc>(P, S);

    //> overlap
    for (int n = 1; n < tiles; n++) {
        uint64_t K = wait_for_K(x, n), V = wait_for_V(x, n - 1);
        take_turn(consumer);
        wgmma_fence(S, O, P);
        start_QK<T, Br, Bc, D>(S, Q, K);
        wgmma_commit();
        start_PV<T, Bc, D>(O, P, V);
        wgmma_commit();
        hand_over(consumer);
        wgmma_wait<1>(S); // P V may still run
        free_K(x, n);
        bool grown = scores_to_weights<Bc>(S, r, s, i, n * Bc);
        wgmma_wait<0>(O, P);
        free_V(x, n - 1);
        if (grown) rescale<D>(O, r);
        to_operand<T, Bc>(P, S);
    }
    //< overlap

    uint64_t V = wait_for_V(x, tiles - 1);
    take_turn(consumer);
    wgmma_fence(O, P);
    start_PV<T, Bc, D>(O, P, V);
    wgmma_commit();
    if (consumer == 0) hand_over(consumer); // 1 has the last turn
    wgmma_wait<0>(O, P);
    store<T, D>(O_hbm, LSE_hbm, O, r, s, t.bh, i);
}

// grid: B * H * ceil(Nq / Br) tiles of queries
template <class T, int D>
__global__ void __launch_bounds__(Threads, 1)
    overlap(const __grid_constant__ CUtensorMap Q_map, // [B * H, Nq, D]
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
        consume(x, O_hbm, LSE_hbm, s, t, threadIdx.x / Warpgroup - 1);
    }
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

template <class T, int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    const int bytes = sizeof(memory<D>), kv_heads = p->batch * p->kv_heads;
    cudaFuncSetAttribute(overlap<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((overlap<T, D>), grid, Threads, bytes,
           map_of(t->Q, p->batch * p->heads, p->seqlen_q, D, Br),
           map_of(t->K, kv_heads, p->seqlen_k, D, Bc), map_of(t->V, kv_heads, p->seqlen_k, D, Bc),
           (T *)t->O, t->LSE, shape_of(p));
}

static void forward(const attn_problem *p, const attn_tensors *t) { STEP06_DISPATCH(launch, p, t); }

// O leaves 4 bytes a lane, 16 bytes a row and request: half of each sector.
static attn_traffic model(const attn_problem *p, unsigned) {
    return forward_traffic(p, Br, Bc, p->head_dim, 16);
}

static const attn_kernel kernel = {
    .step = "step06_hopper_tma_fp8",
    .rung = 4,
    .name = "overlap",
    .idea = "the next tile's softmax during this tile's P V",
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

} // namespace step06_4

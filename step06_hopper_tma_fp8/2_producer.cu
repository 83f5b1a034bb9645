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
// New since rung 1: roles, and no __syncthreads() in the loop; rings.h: two rings of buffers.
//
// Run:     make run ARGS="--kernel producer -d 64"     (in this folder)
// Limits:  fp16, bf16; d = 64, 128; forward only; sm_90a.

#include "rings.h"

namespace step06_2 {

using namespace step06;

// A warpgroup, for its 64 rows.
template <class T, int D>
__device__ static void consume(memory<D> &x, T *O_hbm, float *LSE_hbm, const shape &s, task t,
                               int consumer) {
    int i = t.i0 + consumer * Rows + row_of_thread();
    uint64_t Q = wgmma_k_major(x.Q + consumer * Rows * PanelRow);
    float S[Bc / 2], O[D / 2] = {};
    uint32_t P[Bc / 16][4];
    rows r;
    mbarrier_wait(&x.Q_full, 0);
    //> consume
    for (int n = 0; n * Bc < t.keys; n++) {
        uint64_t K = wait_for_K(x, n);
        wgmma_fence(S);
        start_QK<T, Br, Bc, D>(S, Q, K);
        wgmma_commit();
        wgmma_wait<0>(S);
        free_K(x, n);

        softmax<Bc, D>(S, O, r, s, i, n * Bc);
        to_operand<T, Bc>(P, S);

        uint64_t V = wait_for_V(x, n);
        wgmma_fence(O, P);
        start_PV<T, Bc, D>(O, P, V);
        wgmma_commit();
        wgmma_wait<0>(O, P);
        free_V(x, n);
    }
    //< consume
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
    //> roles
    if (threadIdx.x < Warpgroup) {
        setmaxnreg_dec<24>();
        if (threadIdx.x < Lanes && elect_one()) produce(x, Q_map, K_map, V_map, t);
    } else {
        setmaxnreg_inc<240>();
        consume(x, O_hbm, LSE_hbm, s, t, threadIdx.x / Warpgroup - 1);
    }
    //< roles
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

// O leaves 4 bytes a lane, 16 bytes a row and request: half of each sector.
static attn_traffic model(const attn_problem *p, unsigned) {
    return forward_traffic(p, Br, Bc, p->head_dim, 16);
}

static const attn_kernel kernel = {
    .step = "step06_hopper_tma_fp8",
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

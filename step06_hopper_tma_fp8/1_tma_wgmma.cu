// step06, rung 1: the same algorithm with Hopper's instructions.
//
// The idea: an H100 can multiply twice as fast as mma.sync asks it to (step05), but only with
// wgmma, which a whole warpgroup starts and which reads its operands from shared memory by itself.
// And its copies need no threads: one of them names a box of a tensor, and TMA brings it, swizzled.
//
//   two warpgroups, 128 queries:  for 128 keys at a time:
//                                     S = Q K^T            wgmma, Q and K in shared memory
//                                     softmax              in registers, step05's
//                                     O += P V             wgmma, P in registers
//
// V needs no transposing: wgmma takes its right operand along either of its sides (MN_MAJOR). What
// is complete is known by mbarriers, which count the bytes that arrive. One buffer for K and one
// for V: the next K is on its way during the softmax and P V, the next V from P V on.
//
// New since step05: TMA, mbarriers, wgmma.
//
// Run:     make run ARGS="--kernel tma-wgmma -d 64"     (in this folder)
// Limits:  fp16, bf16; d = 64, 128; forward only; sm_90a.

#include "hopper.h"

namespace step06_1 {

using namespace step06;

constexpr int Warpgroups = 2, Threads = Warpgroups * Warpgroup;
constexpr int Br = Warpgroups * Rows, Bc = 128;

template <int D> struct memory { // what lies in a block's shared memory
    unsigned char Q[Br * D * 2], K[Bc * D * 2], V[Bc * D * 2];
    uint64_t Q_full, K_full, V_full; // mbarriers
};

// grid: B * H * ceil(Nq / Br) tiles of queries
template <class T, int D>
__global__ void __launch_bounds__(Threads, 1)
    tma_wgmma(const __grid_constant__ CUtensorMap Q_map, // [B * H, Nq, D]
              const __grid_constant__ CUtensorMap K_map, // [B * Hkv, Nk, D]
              const __grid_constant__ CUtensorMap V_map, // [B * Hkv, Nk, D]
              T *O_hbm,                                  // [B, H, Nq, D]
              float *LSE_hbm,                            // [B, H, Nq]
              shape s) {
    memory<D> &x = *(memory<D> *)smem;
    task t = task_of_block<Br>(s);
    int first = threadIdx.x / Warpgroup * Rows; // the warpgroup's first row of the tile
    int i = t.i0 + first + row_of_thread();     // the thread's
    uint64_t Q = wgmma_k_major(x.Q + first * PanelRow);
    uint64_t K = wgmma_k_major(x.K), V = wgmma_mn_major(x.V, Bc * PanelRow);

    if (threadIdx.x == 0) {
        mbarrier_init(&x.Q_full, 1);
        mbarrier_init(&x.K_full, 1);
        mbarrier_init(&x.V_full, 1);
        mbarrier_fence_init();
        load_tile<Br, D>(x.Q, &Q_map, &x.Q_full, t.i0, t.bh);
        if (t.keys > 0) {
            load_tile<Bc, D>(x.K, &K_map, &x.K_full, 0, t.head);
            load_tile<Bc, D>(x.V, &V_map, &x.V_full, 0, t.head);
        }
    }
    __syncthreads(); // the mbarriers are ready

    float S[Bc / 2], O[D / 2] = {};
    uint32_t P[Bc / 16][4];
    rows r;
    mbarrier_wait(&x.Q_full, 0);
    //> loop
    for (int j0 = 0, parity = 0; j0 < t.keys; j0 += Bc, parity ^= 1) {
        bool more = j0 + Bc < t.keys;
        mbarrier_wait(&x.K_full, parity);
        wgmma_fence(S);
        start_QK<T, Br, Bc, D>(S, Q, K);
        wgmma_commit();
        wgmma_wait<0>(S);
        __syncthreads(); // all have read K
        if (threadIdx.x == 0 && more) load_tile<Bc, D>(x.K, &K_map, &x.K_full, j0 + Bc, t.head);

        softmax<Bc, D>(S, O, r, s, i, j0);
        to_operand<T, Bc>(P, S);

        mbarrier_wait(&x.V_full, parity);
        wgmma_fence(O, P);
        start_PV<T, Bc, D>(O, P, V);
        wgmma_commit();
        wgmma_wait<0>(O, P);
        __syncthreads(); // all have read V
        if (threadIdx.x == 0 && more) load_tile<Bc, D>(x.V, &V_map, &x.V_full, j0 + Bc, t.head);
    }
    //< loop
    store<T, D>(O_hbm, LSE_hbm, O, r, s, t.bh, i);
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

template <class T, int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    const int bytes = sizeof(memory<D>), kv_heads = p->batch * p->kv_heads;
    cudaFuncSetAttribute(tma_wgmma<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((tma_wgmma<T, D>), grid, Threads, bytes,
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
    .rung = 1,
    .name = "tma-wgmma",
    .idea = "TMA, mbarriers and wgmma, one after the other",
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

} // namespace step06_1

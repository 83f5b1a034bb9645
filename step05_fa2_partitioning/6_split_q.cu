// step05, rung 6: 32 queries a warp.
//
// The idea: how the warps of a block share the work decides how often shared memory is read. Since
// rung 2 every warp needs all of K and V of a tile, and a fragment of them, once read, serves the
// 16 rows of Q that the warp has. With 32 rows it serves two products instead of one: K and V are
// read half as often for each query. Shared memory delivers 128 bytes a cycle; with 16 rows that
// feeds half of what the matrix units of a Hopper card can do, with 32 all of it.
//
// FlashAttention-1 split the keys between the warps instead ("split-K"), so that every warp has all
// queries and an O of its own: --kernel split-k (6_split_k.cu) shows what that costs. It is not
// reads in the loop: for each 64 queries and 64 keys they are 576 d elements in rung 5, 384 d in
// split-k and 320 d here.
//
// New since rung 5: two blocks of 16 rows in every function; tiles of 128 queries.
//
// Run:     make run ARGS="--kernel split-q,split-k,lean -d 64"     (in this folder)
// Limits:  fp16, bf16; d = 64, 128; forward only.

#include "lean.h"
#include "swizzle.h"

namespace step05_6 {

using namespace step05;
using namespace step05::lean;

constexpr int Br = 128;
constexpr int Blocks = 2; // of 16 rows, for each warp
constexpr int Warps = Br / 16 / Blocks, Threads = Warps * Lanes;

// Starts copying `rows` rows of D elements, 8 elements a thread, and zeros for the rest of the
// tile. The caller waits for them.
template <class T, int Rows, int D>
__device__ static void start_copy(T *tile, const T *hbm, int rows) {
    for (int n = threadIdx.x; n < Rows * D / 8; n += Threads) {
        int r = n / (D / 8), c = n % (D / 8) * 8;
        cp_async_16(tile + swizzled<D>(r, c), hbm + (size_t)r * D + c, r < rows);
    }
}

//> multiply-QK
// S[32 x 64] = Q K^T for a warp's queries, the rows of Q_smem from `first`.
template <class T, int D>
__device__ static void multiply_QK(float (&S)[Blocks][Bc / 8][4], const T *Q_smem, const T *K_smem,
                                   int first) {
#pragma unroll
    for (int b = 0; b < Blocks; b++)
        for (int n = 0; n < Bc / 8; n++)
            for (int e = 0; e < 4; e++) S[b][n][e] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        fragment q[Blocks];
#pragma unroll
        for (int b = 0; b < Blocks; b++) q[b] = left_operand<T, D>(Q_smem, first + 16 * b, k);
#pragma unroll
        for (int n = 0; n < Bc / 8; n += 2) {
            fragment keys = keys_operand<T, D>(K_smem, 8 * n, k);
#pragma unroll
            for (int b = 0; b < Blocks; b++) {
                mma_m16n8k16<T>(S[b][n], q[b].x, keys.x[0], keys.x[1]);
                mma_m16n8k16<T>(S[b][n + 1], q[b].x, keys.x[2], keys.x[3]);
            }
        }
    }
}
//< multiply-QK

// Rows of P as they left the softmax: the results of two neighbouring products are a left operand.
template <class T>
__device__ static fragment weights_operand(const float (&left)[4], const float (&right)[4]) {
    return {{pack<T>(left[0], left[1]), pack<T>(left[2], left[3]), pack<T>(right[0], right[1]),
             pack<T>(right[2], right[3])}};
}

// O[32 x D] += P V
template <class T, int D>
__device__ static void multiply_PV(float (&O)[Blocks][D / 8][4],
                                   const float (&P)[Blocks][Bc / 8][4], const T *V_smem) {
#pragma unroll
    for (int k = 0; k < Bc / 16; k++) {
        fragment p[Blocks];
#pragma unroll
        for (int b = 0; b < Blocks; b++) p[b] = weights_operand<T>(P[b][2 * k], P[b][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            fragment values = values_operand<T, D>(V_smem, 16 * k, 8 * n);
#pragma unroll
            for (int b = 0; b < Blocks; b++) {
                mma_m16n8k16<T>(O[b][n], p[b].x, values.x[0], values.x[1]);
                mma_m16n8k16<T>(O[b][n + 1], p[b].x, values.x[2], values.x[3]);
            }
        }
    }
}

template <int D> constexpr int smem_elements = Br *D + 2 * 2 * Bc *D; // Q, two of K, two of V

// grid: B * H * ceil(Nq / 128) tiles of queries
template <class T, int D>
__global__ void __launch_bounds__(Threads) split_queries(const T *Q_hbm, // [B, H, Nq, D]
                                                         const T *K_hbm, // [B, Hkv, Nk, D]
                                                         const T *V_hbm, // [B, Hkv, Nk, D]
                                                         T *O_hbm,       // [B, H, Nq, D]
                                                         float *LSE_hbm, // [B, H, Nq]
                                                         shape s) {
    T *Q_smem = (T *)smem, *K_smem = Q_smem + Br * D, *V_smem = K_smem + 2 * Bc * D;
    int tiles = (s.Nq + Br - 1) / Br, bh = blockIdx.x / tiles;
    int i0 = blockIdx.x % tiles * Br, warp = threadIdx.x / Lanes;
    size_t row = (size_t)bh * s.Nq + i0, key = kv_head(s, bh) * s.Nk;

    int i_warp = i0 + 16 * Blocks * warp; // the warp's first query

    float O[Blocks][D / 8][4] = {};
    rows r[Blocks];
    int keys = keys_seen(s, i0 + Br);
    start_copy<T, Br, D>(Q_smem, Q_hbm + row * D, s.Nq - i0);
    if (keys > 0) {
        start_copy<T, Bc, D>(K_smem, K_hbm + key * D, s.Nk);
        start_copy<T, Bc, D>(V_smem, V_hbm + key * D, s.Nk);
    }
    for (int j0 = 0, now = 0; j0 < keys; j0 += Bc, now ^= 1) {
        cp_async_wait_all(); // this thread's copies have arrived
        __syncthreads();     // and the others', and nobody still reads the other buffers
        int next = j0 + Bc, other = (now ^ 1) * Bc * D;
        if (next < keys) {
            start_copy<T, Bc, D>(K_smem + other, K_hbm + (key + next) * D, s.Nk - next);
            start_copy<T, Bc, D>(V_smem + other, V_hbm + (key + next) * D, s.Nk - next);
        }
        float S[Blocks][Bc / 8][4];
        multiply_QK<T, D>(S, Q_smem, K_smem + now * Bc * D, i_warp - i0);
#pragma unroll
        for (int b = 0; b < Blocks; b++) {
            int i = i_warp + 16 * b;
            if (has_hidden(s, i, j0)) mask(S[b], s, i, j0);
            online_softmax<D>(S[b], O[b], r[b], s.scale * Log2e);
        }
        multiply_PV<T, D>(O, S, V_smem + now * Bc * D);
    }
    cp_async_wait_all(); // of a block that has no keys: Q
#pragma unroll
    for (int b = 0; b < Blocks; b++) {
        int i = i_warp + 16 * b;
        store<T, D>(O_hbm + (row + i - i0) * D, LSE_hbm + row + i - i0, O[b], r[b], s.Nq - i,
                    s.scale);
    }
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

template <class T, int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    const int bytes = smem_elements<D> * sizeof(T);
    cudaFuncSetAttribute(split_queries<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((split_queries<T, D>), grid, Threads, bytes, (const T *)t->Q, (const T *)t->K,
           (const T *)t->V, (T *)t->O, t->LSE, shape_of(p));
}

static void forward(const attn_problem *p, const attn_tensors *t) { STEP05_DISPATCH(launch, p, t); }

// O leaves 4 bytes a lane, 16 bytes a row and request: half of each sector.
static attn_traffic model(const attn_problem *p, unsigned) {
    return forward_traffic(p, Br, Bc, 16, 8);
}

static const attn_kernel kernel = {
    .step = "step05_fa2_partitioning",
    .rung = 6,
    .name = "split-q",
    .idea = "32 queries a warp: K and V are read half as often",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD,
    .least_sm = 80,
    .supports = takes_64_and_128<Br + 4 * Bc>,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step05_6

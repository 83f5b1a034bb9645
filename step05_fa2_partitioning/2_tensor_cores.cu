// step05, rung 2: tensor cores.
//
// The idea: the two products are done by the matrix units, with mma.m16n8k16: 16-bit operands, fp32
// sums. A warp has 16 queries. Its part of S stays in registers, where the softmax works on it, and
// becomes the left operand of P V without leaving them: two neighbouring 16 x 8 results, rounded
// and packed in pairs, are one 16 x 16 operand.
//
//   each warp, 16 queries:  S = Q K^T for 64 keys      D / 16 x 8 products
//                           softmax of the rows        in registers, a quad per row
//                           O += P V                   4 x D / 8 products
//
// New since rung 1: fp16 and bf16; a warp needs no other warp but to fetch K and V.
// Slow still: operands are read 2 and 4 bytes at a time from rows that start in the same bank. See
// the conflicts in --profile. Rung 3 does away with them.
//
// Run:     make run ARGS="--kernel tensor-cores -d 64"     (in this folder)
// Limits:  fp16, bf16; d = 64, 128; forward only.

#include "softmax.h"

namespace step05_2 {

using namespace step05;
using namespace step05::plain;

constexpr int Br = 64;
constexpr int Warps = Br / 16, Threads = Warps * Lanes;

// Copies `rows` rows of D elements, 8 elements a thread, and fills the rest of the tile with zeros.
template <class T, int D>
__device__ static void load_tile(T (&tile)[64][D], const T *hbm, int rows) {
    for (int n = threadIdx.x; n < 64 * D / 8; n += Threads) {
        int r = n / (D / 8), c = n % (D / 8) * 8;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (r < rows) x = *(const uint4 *)&hbm[(size_t)r * D + c];
        *(uint4 *)&tile[r][c] = x;
    }
}

//> pairs
// Two neighbours of a row, one register of a fragment: 4 bytes.
template <class T> __device__ static uint32_t row_pair(const T *x) { return *(const uint32_t *)x; }

// Two neighbours of a column, `pitch` elements apart: twice 2 bytes.
template <class T> __device__ static uint32_t column_pair(const T *x, int pitch) {
    uint32_t low = *(const uint16_t *)x, high = *(const uint16_t *)(x + pitch);
    return low | high << 16;
}
//< pairs

//> multiply-QK
// S[16 x 64] = Q K^T for a warp's 16 queries, the rows of Q_smem from `first`.
template <class T, int D>
__device__ static void multiply_QK(float (&S)[Bc / 8][4], const T (&Q_smem)[Br][D],
                                   const T (&K_smem)[Bc][D], int first) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
    for (int n = 0; n < Bc / 8; n++)
        for (int e = 0; e < 4; e++) S[n][e] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        const T *q = &Q_smem[first + g][k + 2 * t], *q8 = &Q_smem[first + g + 8][k + 2 * t];
        uint32_t a[4] = {row_pair(q), row_pair(q8), row_pair(q + 8), row_pair(q8 + 8)};
#pragma unroll
        for (int n = 0; n < Bc / 8; n++) {
            const T *key = &K_smem[8 * n + g][k + 2 * t]; // column 8 n + g of K^T
            mma_m16n8k16<T>(S[n], a, row_pair(key), row_pair(key + 8));
        }
    }
}
//< multiply-QK

//> multiply-PV
// O[16 x D] += P V. P arrives as it left the softmax: the results of two neighbouring products are
// the left operand of this one.
template <class T, int D>
__device__ static void multiply_PV(float (&O)[D / 8][4], const float (&P)[Bc / 8][4],
                                   const T (&V_smem)[Bc][D]) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < Bc / 16; k++) {
        const float(&left)[4] = P[2 * k], (&right)[4] = P[2 * k + 1];
        uint32_t a[4] = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]),
                         pack<T>(right[0], right[1]), pack<T>(right[2], right[3])};
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const T *v = &V_smem[16 * k + 2 * t][8 * n + g]; // rows 2 t, 2 t + 1; column 8 n + g
            mma_m16n8k16<T>(O[n], a, column_pair(v, D), column_pair(v + 8 * D, D));
        }
    }
}
//< multiply-PV

// grid: B * H * ceil(Nq / 64) tiles of queries
template <class T, int D>
__global__ void __launch_bounds__(Threads) tensor_cores(const T *Q_hbm, // [B, H, Nq, D]
                                                        const T *K_hbm, // [B, Hkv, Nk, D]
                                                        const T *V_hbm, // [B, Hkv, Nk, D]
                                                        T *O_hbm,       // [B, H, Nq, D]
                                                        float *LSE_hbm, // [B, H, Nq]
                                                        shape s) {
    __shared__ __align__(16) T Q_smem[Br][D];
    __shared__ __align__(16) T K_smem[Bc][D];
    __shared__ __align__(16) T V_smem[Bc][D];
    int tiles = (s.Nq + Br - 1) / Br, bh = blockIdx.x / tiles;
    int i0 = blockIdx.x % tiles * Br, warp = threadIdx.x / Lanes;
    size_t row = (size_t)bh * s.Nq + i0, key = kv_head(s, bh) * s.Nk;

    load_tile(Q_smem, Q_hbm + row * D, s.Nq - i0);
    float O[D / 8][4] = {};
    rows r;
    int keys = keys_seen(s, i0 + Br);
    for (int j0 = 0; j0 < keys; j0 += Bc) {
        load_tile(K_smem, K_hbm + (key + j0) * D, s.Nk - j0);
        load_tile(V_smem, V_hbm + (key + j0) * D, s.Nk - j0);
        __syncthreads(); // the tiles are complete
        float S[Bc / 8][4];
        multiply_QK<T, D>(S, Q_smem, K_smem, 16 * warp);
        mask(S, s, i0 + 16 * warp, j0);
        online_softmax<D>(S, O, r);
        multiply_PV<T, D>(O, S, V_smem);
        __syncthreads(); // all have read K and V: the next turn overwrites
    }
    row += 16 * warp;
    store<T, D>(O_hbm + row * D, LSE_hbm + row, O, r, s.Nq - i0 - 16 * warp);
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

template <class T, int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    LAUNCH((tensor_cores<T, D>), grid, Threads, 0, (const T *)t->Q, (const T *)t->K,
           (const T *)t->V, (T *)t->O, t->LSE, shape_of(p));
}

static void forward(const attn_problem *p, const attn_tensors *t) { STEP05_DISPATCH(launch, p, t); }

// O leaves 4 bytes a lane, 16 bytes a row and request: half of each sector.
static attn_traffic model(const attn_problem *p, unsigned) {
    return forward_traffic(p, Br, Bc, 16, 8);
}

static const attn_kernel kernel = {
    .step = "step05_fa2_partitioning",
    .rung = 2,
    .name = "tensor-cores",
    .idea = "mma.m16n8k16; P stays in registers; plain shared memory",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD,
    .least_sm = 80,
    .supports = takes_64_and_128<Br + 2 * Bc>,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step05_2

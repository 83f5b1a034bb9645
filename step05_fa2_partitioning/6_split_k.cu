// step05, beside rung 6: keys split between the warps.
//
// The other way to share a tile: a warp has a quarter of its keys, and all of the block's queries.
// This is FlashAttention-1's partition ("split-K" in the FlashAttention-2 paper, section 3.3). K
// and V are then read once and Q by every warp: in the loop that is less than in rung 5, 384 d
// elements for 576 d. But every warp has an (m, l) for every query and an O of all rows, made with
// its own keys. So the work for a row is done in four warps, and in the end what they have must be
// merged: here once, after the last tile, by step02's merge. And it takes registers for 64 rows of
// O in every warp, of which there are enough only at d = 64.
//
// Run:     make run ARGS="--kernel split-q,split-k,lean -d 64"     (in this folder)
// Limits:  fp16, bf16; d = 64; forward only. A variant: for comparison.

#include "lean.h"
#include "swizzle.h"

namespace step05_6k {

using namespace step05;
using lean::Log2e, lean::Most, lean::rows;

constexpr int Br = 64, Bc = 64;
constexpr int Blocks = Br / 16; // of 16 rows
constexpr int Warps = Bc / 16, Threads = Warps * Lanes;

// Starts copying `rows` rows of D elements, 8 elements a thread, and zeros for the rest of the
// tile. The caller waits for them.
template <class T, int D> __device__ static void start_copy(T *tile, const T *hbm, int rows) {
    for (int n = threadIdx.x; n < 64 * D / 8; n += Threads) {
        int r = n / (D / 8), c = n % (D / 8) * 8;
        cp_async_16(tile + swizzled<D>(r, c), hbm + (size_t)r * D + c, r < rows);
    }
}

// S[64 x 16] = Q K^T for all queries and the warp's 16 keys, from `first`.
template <class T, int D>
__device__ static void multiply_QK(float (&S)[Blocks][2][4], const T *Q_smem, const T *K_smem,
                                   int first) {
#pragma unroll
    for (int b = 0; b < Blocks; b++)
        for (int e = 0; e < 4; e++) S[b][0][e] = S[b][1][e] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        fragment keys = keys_operand<T, D>(K_smem, first, k);
#pragma unroll
        for (int b = 0; b < Blocks; b++) {
            fragment q = left_operand<T, D>(Q_smem, 16 * b, k);
            mma_m16n8k16<T>(S[b][0], q.x, keys.x[0], keys.x[1]);
            mma_m16n8k16<T>(S[b][1], q.x, keys.x[2], keys.x[3]);
        }
    }
}

// O[64 x D] += P V, with the warp's 16 keys.
template <class T, int D>
__device__ static void multiply_PV(float (&O)[Blocks][D / 8][4], const float (&P)[Blocks][2][4],
                                   const T *V_smem, int first) {
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        fragment values = values_operand<T, D>(V_smem, first, 8 * n);
#pragma unroll
        for (int b = 0; b < Blocks; b++) {
            const float(&left)[4] = P[b][0], (&right)[4] = P[b][1];
            uint32_t p[4] = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]),
                             pack<T>(right[0], right[1]), pack<T>(right[2], right[3])};
            mma_m16n8k16<T>(O[b][n], p, values.x[0], values.x[1]);
            mma_m16n8k16<T>(O[b][n + 1], p, values.x[2], values.x[3]);
        }
    }
}

// -infinity where the row sees no key. i, j: the first query of the warp, the first key.
__device__ static void mask(float (&S)[2][4], const shape &s, int i, int j) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
    for (int n = 0; n < 2; n++)
        for (int e = 0; e < 4; e++)
            if (!visible(s, i + g + e / 2 * 8, j + 8 * n + 2 * t + e % 2)) S[n][e] = -INFINITY;
}

// Is some element of the tile hidden? The first of its queries sees the least, the last key is seen
// least.
__device__ static bool has_hidden(const shape &s, int i, int j) { return !visible(s, i, j + 15); }

template <int D>
__device__ static void online_softmax(float (&S)[2][4], float (&O)[D / 8][4], rows &r, float c) {
    float m[2];
    bool grown = false;
    for (int half = 0; half < 2; half++) {
        m[half] = r.m[half];
        for (int n = 0; n < 2; n++)
            m[half] = fmaxf(m[half], fmaxf(S[n][2 * half], S[n][2 * half + 1]));
        m[half] = max_of_quad(m[half]);
        // From -infinity to -infinity: NaN, which is not more than anything.
        grown |= c * (m[half] - r.m[half]) > Most;
    }
    if (__any_sync(~0u, grown))
        for (int half = 0; half < 2; half++) {
            float factor = exp2_approx(m[half] == -INFINITY ? 0 : c * (r.m[half] - m[half]));
            r.m[half] = m[half];
            r.l[half] *= factor;
            for (int n = 0; n < D / 8; n++) {
                O[n][2 * half] *= factor;
                O[n][2 * half + 1] *= factor;
            }
        }
    for (int half = 0; half < 2; half++) {
        float c_m = r.m[half] == -INFINITY ? 0 : c * r.m[half];
        for (int n = 0; n < 2; n++)
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                S[n][e] = exp2_approx(c * S[n][e] - c_m);
                r.l[half] += S[n][e];
            }
    }
}

//> merge
// What the warps have of each row becomes one: all are brought to the largest m, and added up, one
// warp after the other, in shared memory.
template <int D> struct merged {
    static constexpr int Pitch = D + 8; // half a warp stores 4 rows of 32 bytes: different banks
    float O[Br][Pitch], m[Warps][Br], l[Warps][Br];
};

template <int D>
__device__ static void merge(merged<D> &all, float (&O)[Blocks][D / 8][4], rows (&r)[Blocks],
                             float c) {
    int warp = threadIdx.x / Lanes, lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int b = 0; b < Blocks; b++)
        for (int half = 0; half < 2; half++)
            if (t == 0) all.m[warp][16 * b + g + 8 * half] = r[b].m[half];
    __syncthreads(); // the maxima of all warps are there
#pragma unroll
    for (int b = 0; b < Blocks; b++)
        for (int half = 0; half < 2; half++) {
            int row = 16 * b + g + 8 * half;
            float m = r[b].m[half], l = sum_of_quad(r[b].l[half]);
            for (int w = 0; w < Warps; w++) m = fmaxf(m, all.m[w][row]);
            float factor = exp2_approx(m == -INFINITY ? 0 : c * (r[b].m[half] - m));
            r[b].m[half] = m;
            if (t == 0) all.l[warp][row] = l * factor;
            for (int n = 0; n < D / 8; n++) {
                O[b][n][2 * half] *= factor;
                O[b][n][2 * half + 1] *= factor;
            }
        }
    for (int w = 0; w < Warps; w++) {
        if (w == warp)
#pragma unroll
            for (int b = 0; b < Blocks; b++)
                for (int half = 0; half < 2; half++)
                    for (int n = 0; n < D / 8; n++) {
                        float2 *at = (float2 *)&all.O[16 * b + g + 8 * half][8 * n + 2 * t];
                        float2 sum = w ? *at : make_float2(0, 0);
                        sum.x += O[b][n][2 * half];
                        sum.y += O[b][n][2 * half + 1];
                        *at = sum;
                    }
        __syncthreads(); // this warp has added its part
    }
}
//< merge

// O / l and LSE of all rows, 16 of them by each warp.
template <class T, int D>
__device__ static void store(T *O_hbm, float *LSE_hbm, const merged<D> &all, int rows_left,
                             float scale) {
    int warp = threadIdx.x / Lanes, lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; half++) {
        int row = 16 * warp + g + 8 * half;
        float l = 0, m = -INFINITY;
        for (int w = 0; w < Warps; w++) l += all.l[w][row], m = fmaxf(m, all.m[w][row]);
        float inverse = 1 / (l > 0 ? l : 1); // a row that sees no key: O = 0
        for (int n = 0; n < D / 8; n++) {
            float2 o = *(const float2 *)&all.O[row][8 * n + 2 * t];
            if (row < rows_left)
                *(uint32_t *)&O_hbm[(size_t)row * D + 8 * n + 2 * t] =
                    pack<T>(o.x * inverse, o.y * inverse);
        }
        if (t == 0 && row < rows_left) LSE_hbm[row] = scale * m + logf(l);
    }
}

template <int D> constexpr int smem_elements = Br *D + 2 * 2 * Bc *D; // Q, two of K, two of V

// grid: B * H * ceil(Nq / 64) tiles of queries
template <class T, int D>
__global__ void __launch_bounds__(Threads) split_keys(const T *Q_hbm, // [B, H, Nq, D]
                                                      const T *K_hbm, // [B, Hkv, Nk, D]
                                                      const T *V_hbm, // [B, Hkv, Nk, D]
                                                      T *O_hbm,       // [B, H, Nq, D]
                                                      float *LSE_hbm, // [B, H, Nq]
                                                      shape s) {
    T *Q_smem = (T *)smem, *K_smem = Q_smem + Br * D, *V_smem = K_smem + 2 * Bc * D;
    int tiles = (s.Nq + Br - 1) / Br, bh = blockIdx.x / tiles;
    int i0 = blockIdx.x % tiles * Br, warp = threadIdx.x / Lanes;
    size_t row = (size_t)bh * s.Nq + i0, key = kv_head(s, bh) * s.Nk;

    float O[Blocks][D / 8][4] = {};
    rows r[Blocks];
    int keys = keys_seen(s, i0 + Br);
    start_copy<T, D>(Q_smem, Q_hbm + row * D, s.Nq - i0);
    if (keys > 0) {
        start_copy<T, D>(K_smem, K_hbm + key * D, s.Nk);
        start_copy<T, D>(V_smem, V_hbm + key * D, s.Nk);
    }
    for (int j0 = 0, now = 0; j0 < keys; j0 += Bc, now ^= 1) {
        cp_async_wait_all(); // this thread's copies have arrived
        __syncthreads();     // and the others', and nobody still reads the other buffers
        int next = j0 + Bc, other = (now ^ 1) * Bc * D;
        if (next < keys) {
            start_copy<T, D>(K_smem + other, K_hbm + (key + next) * D, s.Nk - next);
            start_copy<T, D>(V_smem + other, V_hbm + (key + next) * D, s.Nk - next);
        }
        float S[Blocks][2][4];
        multiply_QK<T, D>(S, Q_smem, K_smem + now * Bc * D, 16 * warp);
#pragma unroll
        for (int b = 0; b < Blocks; b++) {
            int i = i0 + 16 * b, j = j0 + 16 * warp;
            if (has_hidden(s, i, j)) mask(S[b], s, i, j);
            online_softmax<D>(S[b], O[b], r[b], s.scale * Log2e);
        }
        multiply_PV<T, D>(O, S, V_smem + now * Bc * D, 16 * warp);
    }
    cp_async_wait_all(); // of a block that has no keys: Q
    __syncthreads();     // all have read the tiles: the sums take their place
    merged<D> &all = *(merged<D> *)smem;
    merge<D>(all, O, r, s.scale * Log2e);
    store<T, D>(O_hbm + row * D, LSE_hbm + row, all, s.Nq - i0, s.scale);
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

template <class T, int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    const int bytes = smem_elements<D> * sizeof(T);
    cudaFuncSetAttribute(split_keys<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((split_keys<T, D>), grid, Threads, bytes, (const T *)t->Q, (const T *)t->K,
           (const T *)t->V, (T *)t->O, t->LSE, shape_of(p));
}

static void forward(const attn_problem *p, const attn_tensors *t) {
    (p->dtype == ATTN_FP16 ? launch<__half, 64> : launch<__nv_bfloat16, 64>)(p, t);
}

// O leaves 4 bytes a lane, 16 bytes a row and request: half of each sector.
static attn_traffic model(const attn_problem *p, unsigned) {
    return forward_traffic(p, Br, Bc, 16, 8);
}

static bool supports(const attn_problem *p, unsigned, char *why, size_t why_size) {
    if (p->head_dim == 64) return fits(p, smem_elements<64> * 2, why, why_size);
    snprintf(why, why_size, "d = %d: this variant takes 64, for want of registers", p->head_dim);
    return false;
}

static const attn_kernel kernel = {
    .step = "step05_fa2_partitioning",
    .rung = 6,
    .name = "split-k",
    .idea = "keys split between the warps, as in FlashAttention-1",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD,
    .least_sm = 80,
    .variant = true,
    .supports = supports,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step05_6k

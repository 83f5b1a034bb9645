// step05, rung 4: copies in the background.
//
// The idea: rung 3 waits for each tile of K and V, and multiplies nothing meanwhile. cp.async
// copies from HBM to shared memory without a register and without a thread to wait for it. With two
// buffers for K and V the next tiles are on their way while the warps work on these; a block waits
// only if they are late. One barrier for each turn is left.
//
// New since rung 3: cp.async instead of loads and stores, two buffers, dynamic shared memory.
//
// Run:     make run ARGS="--kernel async -d 64"     (in this folder)
// Limits:  fp16, bf16; d = 64, 128; forward only.

#include "swizzle.h"

namespace step05_4 {

using namespace step05;

constexpr int Br = 64, Bc = 64;
constexpr int Warps = Br / 16, Threads = Warps * Lanes;

// Starts copying `rows` rows of D elements, 8 elements a thread, and zeros for the rest of the
// tile. The caller commits, and waits.
template <class T, int D> __device__ static void start_copy(T *tile, const T *hbm, int rows) {
    for (int n = threadIdx.x; n < 64 * D / 8; n += Threads) {
        int r = n / (D / 8), c = n % (D / 8) * 8;
        cp_async_16(tile + swizzled<D>(r, c), hbm + (size_t)r * D + c, r < rows);
    }
}

// S[16 x 64] = Q K^T for a warp's 16 queries, the rows of Q_smem from `first`.
template <class T, int D>
__device__ static void multiply_QK(float (&S)[Bc / 8][4], const T *Q_smem, const T *K_smem,
                                   int first) {
    for (int n = 0; n < Bc / 8; n++)
        for (int e = 0; e < 4; e++) S[n][e] = 0;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        fragment q = left_operand<T, D>(Q_smem, first, k);
#pragma unroll
        for (int n = 0; n < Bc / 8; n += 2) {
            fragment b = keys_operand<T, D>(K_smem, 8 * n, k);
            mma_m16n8k16<T>(S[n], q.x, b.x[0], b.x[1]);
            mma_m16n8k16<T>(S[n + 1], q.x, b.x[2], b.x[3]);
        }
    }
}

// O[16 x D] += P V. P arrives as it left the softmax: the results of two neighbouring products are
// the left operand of this one.
template <class T, int D>
__device__ static void multiply_PV(float (&O)[D / 8][4], const float (&P)[Bc / 8][4],
                                   const T *V_smem) {
#pragma unroll
    for (int k = 0; k < Bc / 16; k++) {
        const float(&left)[4] = P[2 * k], (&right)[4] = P[2 * k + 1];
        uint32_t a[4] = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]),
                         pack<T>(right[0], right[1]), pack<T>(right[2], right[3])};
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            fragment b = values_operand<T, D>(V_smem, 16 * k, 8 * n);
            mma_m16n8k16<T>(O[n], a, b.x[0], b.x[1]);
            mma_m16n8k16<T>(O[n + 1], a, b.x[2], b.x[3]);
        }
    }
}

// What a lane knows of its two rows, g and g + 8.
struct rows {
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
};

// Step02's online update. A lane's 4 elements of each S[n]: two of row g, two of row g + 8.
template <int D>
__device__ static void online_softmax(float (&S)[Bc / 8][4], float (&O)[D / 8][4], rows &r) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float m = r.m[half], sum = 0;
        for (int n = 0; n < Bc / 8; n++) m = fmaxf(m, fmaxf(S[n][2 * half], S[n][2 * half + 1]));
        m = max_of_quad(m);
        float m_safe = m == -INFINITY ? 0 : m, factor = expf(r.m[half] - m_safe);
        for (int n = 0; n < Bc / 8; n++)
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                S[n][e] = expf(S[n][e] - m_safe);
                sum += S[n][e];
            }
        r.m[half] = m;
        r.l[half] = r.l[half] * factor + sum_of_quad(sum);
        for (int n = 0; n < D / 8; n++)
            for (int e = 2 * half; e < 2 * half + 2; e++) O[n][e] *= factor;
    }
}

// Scale, and -infinity where the row sees no key. i, j: the first query of the warp, the first key.
__device__ static void mask(float (&S)[Bc / 8][4], const shape &s, int i, int j) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
    for (int n = 0; n < Bc / 8; n++)
        for (int e = 0; e < 4; e++) {
            bool seen = visible(s, i + g + e / 2 * 8, j + 8 * n + 2 * t + e % 2);
            S[n][e] = seen ? s.scale * S[n][e] : -INFINITY;
        }
}

// O / l and LSE of a warp's rows; `rows_left` of them exist.
template <class T, int D>
__device__ static void store(T *O_hbm, float *LSE_hbm, const float (&O)[D / 8][4], const rows &r,
                             int rows_left) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; half++) {
        int row = g + 8 * half;
        float inverse = 1 / (r.l[half] > 0 ? r.l[half] : 1); // a row that sees no key: O = 0
        for (int n = 0; n < D / 8; n++) {
            uint32_t two = pack<T>(O[n][2 * half] * inverse, O[n][2 * half + 1] * inverse);
            if (row < rows_left) *(uint32_t *)&O_hbm[(size_t)row * D + 8 * n + 2 * t] = two;
        }
        if (t == 0 && row < rows_left) LSE_hbm[row] = r.m[half] + logf(r.l[half]);
    }
}

template <int D> constexpr int smem_elements = Br *D + 2 * 2 * Bc *D; // Q, two of K, two of V

// grid: B * H * ceil(Nq / 64) tiles of queries
template <class T, int D>
__global__ void __launch_bounds__(Threads) async_copies(const T *Q_hbm, // [B, H, Nq, D]
                                                        const T *K_hbm, // [B, Hkv, Nk, D]
                                                        const T *V_hbm, // [B, Hkv, Nk, D]
                                                        T *O_hbm,       // [B, H, Nq, D]
                                                        float *LSE_hbm, // [B, H, Nq]
                                                        shape s) {
    T *Q_smem = (T *)smem, *K_smem = Q_smem + Br * D, *V_smem = K_smem + 2 * Bc * D;
    int tiles = (s.Nq + Br - 1) / Br, bh = blockIdx.x / tiles;
    int i0 = blockIdx.x % tiles * Br, warp = threadIdx.x / Lanes;
    size_t row = (size_t)bh * s.Nq + i0, key = kv_head(s, bh) * s.Nk;

    float O[D / 8][4] = {};
    rows r;
    int keys = keys_seen(s, i0 + Br);
    start_copy<T, D>(Q_smem, Q_hbm + row * D, s.Nq - i0);
    if (keys > 0) {
        start_copy<T, D>(K_smem, K_hbm + key * D, s.Nk);
        start_copy<T, D>(V_smem, V_hbm + key * D, s.Nk);
    }
    for (int j0 = 0, now = 0; j0 < keys; j0 += Bc, now ^= 1) {
        cp_async_wait_all(); // this thread's copies have arrived
        __syncthreads();     // and the others', and nobody still reads the other buffers
        int next = j0 + Bc;
        if (next < keys) {
            start_copy<T, D>(K_smem + (now ^ 1) * Bc * D, K_hbm + (key + next) * D, s.Nk - next);
            start_copy<T, D>(V_smem + (now ^ 1) * Bc * D, V_hbm + (key + next) * D, s.Nk - next);
        }
        float S[Bc / 8][4];
        multiply_QK<T, D>(S, Q_smem, K_smem + now * Bc * D, 16 * warp);
        mask(S, s, i0 + 16 * warp, j0);
        online_softmax<D>(S, O, r);
        multiply_PV<T, D>(O, S, V_smem + now * Bc * D);
    }
    cp_async_wait_all(); // of a block that has no keys: Q
    row += 16 * warp;
    store<T, D>(O_hbm + row * D, LSE_hbm + row, O, r, s.Nq - i0 - 16 * warp);
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

template <class T, int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    const int bytes = smem_elements<D> * sizeof(T);
    cudaFuncSetAttribute(async_copies<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((async_copies<T, D>), grid, Threads, bytes, (const T *)t->Q, (const T *)t->K,
           (const T *)t->V, (T *)t->O, t->LSE, shape_of(p));
}

static void forward(const attn_problem *p, const attn_tensors *t) { STEP05_DISPATCH(launch, p, t); }

// O leaves 4 bytes a lane, 16 bytes a row and request: half of each sector.
static attn_traffic model(const attn_problem *p, unsigned) {
    return forward_traffic(p, Br, Bc, 16, 8);
}

static const attn_kernel kernel = {
    .step = "step05_fa2_partitioning",
    .rung = 4,
    .name = "async",
    .idea = "cp.async into two buffers, while the warps work",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD,
    .least_sm = 80,
    .supports = takes_64_and_128<Br + 4 * Bc>,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step05_4

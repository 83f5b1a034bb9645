// step05, rung 5: less arithmetic that is no product.
//
// The idea: beside its products, rung 4 does for every element of S a multiplication by the scale,
// a mask, an exponential and an addition, and for every element of O and every tile a rescaling.
// Matrix units do a product in the time of a few of these, so they are worth saving:
//
//   exp(scale S - m)        = exp2(c S - c m) with c = scale log2(e): one multiply-add, one
//   instruction mask                    only in tiles that the diagonal or the last key runs
//   through l                       each lane sums what it has; the quad meets once, at the end O =
//   factor O            only when a maximum has grown by more than 8 (in powers of two)
//
// The last is exact. Softmax may measure its exponents from any number; we measure from an older
// maximum for a while, so weights are at most 2^8, and l and O are still relative to the same m.
// All rows of a warp decide together, so that no lane waits for another's branch.
//
// New since rung 4: online_softmax, mask, and when the kernel calls them.
//
// Run:     make run ARGS="--kernel lean -d 64"     (in this folder)
// Limits:  fp16, bf16; d = 64, 128; forward only.

#include "swizzle.h"

namespace step05_5 {

using namespace step05;

constexpr int Br = 64, Bc = 64;
constexpr int Warps = Br / 16, Threads = Warps * Lanes;
constexpr float Log2e = 1.44269504f;

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

// -infinity where the row sees no key. i, j: the first query of the warp, the first key.
__device__ static void mask(float (&S)[Bc / 8][4], const shape &s, int i, int j) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
    for (int n = 0; n < Bc / 8; n++)
        for (int e = 0; e < 4; e++)
            if (!visible(s, i + g + e / 2 * 8, j + 8 * n + 2 * t + e % 2)) S[n][e] = -INFINITY;
}

// Is some element of the tile hidden? The first of its queries sees the least, the last key is seen
// least.
__device__ static bool has_hidden(const shape &s, int i, int j) {
    return !visible(s, i, j + Bc - 1);
}

// What a lane knows of its two rows, g and g + 8. S is not scaled here, nor is m: all exponents are
// powers of two, of c times the difference, where c = scale log2(e).
struct rows {
    float m[2] = {-INFINITY, -INFINITY}; // what the exponents of l and O are measured from
    float l[2] = {0, 0};                 // of the lane's own elements
};

constexpr float Most = 8; // weights are at most 2^Most

template <int D>
__device__ static void online_softmax(float (&S)[Bc / 8][4], float (&O)[D / 8][4], rows &r,
                                      float c) {
    float m[2];
    bool grown = false;
    for (int half = 0; half < 2; half++) {
        m[half] = r.m[half];
        for (int n = 0; n < Bc / 8; n++)
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
        for (int n = 0; n < Bc / 8; n++)
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                S[n][e] = exp2_approx(c * S[n][e] - c_m);
                r.l[half] += S[n][e];
            }
    }
}

// O / l and LSE of a warp's rows; `rows_left` of them exist.
template <class T, int D>
__device__ static void store(T *O_hbm, float *LSE_hbm, const float (&O)[D / 8][4], const rows &r,
                             int rows_left, float scale) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; half++) {
        int row = g + 8 * half;
        float l = sum_of_quad(r.l[half]);
        float inverse = 1 / (l > 0 ? l : 1); // a row that sees no key: O = 0
        for (int n = 0; n < D / 8; n++) {
            uint32_t two = pack<T>(O[n][2 * half] * inverse, O[n][2 * half + 1] * inverse);
            if (row < rows_left) *(uint32_t *)&O_hbm[(size_t)row * D + 8 * n + 2 * t] = two;
        }
        if (t == 0 && row < rows_left) LSE_hbm[row] = scale * r.m[half] + logf(l);
    }
}

template <int D> constexpr int smem_elements = Br *D + 2 * 2 * Bc *D; // Q, two of K, two of V

// grid: B * H * ceil(Nq / 64) tiles of queries
template <class T, int D>
__global__ void __launch_bounds__(Threads) lean_softmax(const T *Q_hbm, // [B, H, Nq, D]
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
        if (has_hidden(s, i0 + 16 * warp, j0)) mask(S, s, i0 + 16 * warp, j0);
        online_softmax<D>(S, O, r, s.scale * Log2e);
        multiply_PV<T, D>(O, S, V_smem + now * Bc * D);
    }
    cp_async_wait_all(); // of a block that has no keys: Q
    row += 16 * warp;
    store<T, D>(O_hbm + row * D, LSE_hbm + row, O, r, s.Nq - i0 - 16 * warp, s.scale);
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

template <class T, int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    const int bytes = smem_elements<D> * sizeof(T);
    cudaFuncSetAttribute(lean_softmax<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((lean_softmax<T, D>), grid, Threads, bytes, (const T *)t->Q, (const T *)t->K,
           (const T *)t->V, (T *)t->O, t->LSE, shape_of(p));
}

static void forward(const attn_problem *p, const attn_tensors *t) { STEP05_DISPATCH(launch, p, t); }

// O leaves 4 bytes a lane, 16 bytes a row and request: half of each sector.
static attn_traffic model(const attn_problem *p, unsigned) {
    return forward_traffic(p, Br, Bc, 16, 8);
}

static const attn_kernel kernel = {
    .step = "step05_fa2_partitioning",
    .rung = 5,
    .name = "lean",
    .idea = "exp2, masks where they are needed, O rescaled only when it must be",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD,
    .least_sm = 80,
    .supports = takes_64_and_128<Br + 4 * Bc>,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step05_5

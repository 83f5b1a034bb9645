// step05, rung 1: a block for each tile of queries.
//
// The idea: FlashAttention-2's partitioning (Dao 2023, arXiv:2307.08691, section 3.2), in fp32, so
// that it can be set beside step03 at equal precision. Step03's variant fused-wide has a block for
// each tile of queries already. This is that, with tile sizes that the compiler knows: O stays in
// registers, and a block takes so little shared memory that two of them share a multiprocessor and
// hide each other's waits.
//
//   each block, 64 queries:  for 32 keys at a time:
//                                S = scale * Q K^T, masked      one warp per 16 x 16 of S
//                                weights, (m, l), factors       one warp per 8 rows
//                                O = factor * O + weights V     in registers
//                            O / l and LSE to HBM, once
//
// New since step03: fixed tiles, O in registers, blocks = heads x tiles of queries.
//
// Run:     make run ARGS="--kernel query-tiles"     (in this folder)
// Limits:  fp32; d = 64, 128 (on Turing, where a block has 64 KB, only 64); forward only.

#include "shared.h"

namespace step05_1 {

using namespace step05;

constexpr int Threads = 256, Warps = Threads / Lanes;
constexpr int Br = 64, Bc = 32;
constexpr int P_pitch = Bc + 8; // 8 floats of each of 4 rows, as S is stored: different banks
template <int D> constexpr int pitch = D + 4; // 16 bytes of each of 8 rows: likewise
template <int D>
constexpr int smem_floats = Br *pitch<D>   // Q
                            + Bc *pitch<D> // K
                            + Bc *D        // V, read along its rows
                            + Br *P_pitch  // S, and then the weights
                            + Br;          // factors

// Copies `rows` rows of D floats and fills up with zeros, 16 bytes a thread.
template <int Rows, int D, int Pitch>
__device__ static void load_tile(float *tile, const float *hbm, int rows) {
    for (int n = threadIdx.x; n < Rows * D / 4; n += Threads) {
        int r = n / (D / 4), c = n % (D / 4) * 4;
        float4 x = make_float4(0, 0, 0, 0);
        if (r < rows) x = *(const float4 *)&hbm[(size_t)r * D + c];
        *(float4 *)&tile[r * Pitch + c] = x;
    }
}

__device__ static float dot(float4 a, float4 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// S = scale * Q K^T for 64 queries from i0 and 32 keys from j0. A lane makes 4 rows and 2 columns.
template <int D>
__device__ static void scores(float *S, const float *Q, const float *K, const shape &s, int i0,
                              int j0) {
    int warp = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
    int y = warp / 2 * 16 + lane / 8, x = warp % 2 * 16 + lane % 8;
    float S_reg[4][2] = {};
    for (int c = 0; c < D; c += 4) {
        float4 q[4], k[2];
        for (int m = 0; m < 4; m++) q[m] = *(const float4 *)&Q[(y + 4 * m) * pitch<D> + c];
        for (int n = 0; n < 2; n++) k[n] = *(const float4 *)&K[(x + 8 * n) * pitch<D> + c];
        for (int m = 0; m < 4; m++)
            for (int n = 0; n < 2; n++) S_reg[m][n] += dot(q[m], k[n]);
    }
    for (int m = 0; m < 4; m++)
        for (int n = 0; n < 2; n++) {
            int r = y + 4 * m, c = x + 8 * n;
            S[r * P_pitch + c] = visible(s, i0 + r, j0 + c) ? s.scale * S_reg[m][n] : -INFINITY;
        }
}

__device__ static float max_of_warp(float x) {
    for (int bits = Lanes / 2; bits; bits /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, bits));
    return x;
}

__device__ static float sum_of_warp(float x) {
    for (int bits = Lanes / 2; bits; bits /= 2) x += __shfl_xor_sync(~0u, x, bits);
    return x;
}

// Step02's update of a row, by a warp: one key a lane.
__device__ static float online_update(float score, float &m, float &l, float &factor) {
    float m_new = fmaxf(m, max_of_warp(score));
    float m_safe = m_new == -INFINITY ? 0 : m_new; // no key seen yet: all weights are 0
    float weight = expf(score - m_safe);
    factor = expf(m - m_safe);
    l = l * factor + sum_of_warp(weight);
    m = m_new;
    return weight;
}

// o += a * v
__device__ static void add_scaled(float4 &o, float a, float4 v) {
    o.x += a * v.x;
    o.y += a * v.y;
    o.z += a * v.z;
    o.w += a * v.w;
}

// What a lane has of O: rows y, y + 4, y + 8, y + 12 and 4 columns from x, x + 64.
template <int D> struct rows_of_O {
    int y, x;
    float4 value[4][D / 64];

    __device__ rows_of_O() {
        int warp = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
        y = warp / 2 * 16 + lane / 8, x = warp % 2 * 32 + lane % 8 * 4;
        for (int m = 0; m < 4; m++)
            for (int n = 0; n < D / 64; n++) value[m][n] = make_float4(0, 0, 0, 0);
    }

    // O = factor * O + P V
    __device__ void update(const float *factor, const float *P, const float *V) {
        scale_rows(factor);
        for (int j = 0; j < Bc; j += 4) {
            float4 p[4];
            for (int m = 0; m < 4; m++) p[m] = *(const float4 *)&P[(y + 4 * m) * P_pitch + j];
            for (int n = 0; n < D / 64; n++) {
                float4 v[4];
                for (int k = 0; k < 4; k++) v[k] = *(const float4 *)&V[(j + k) * D + x + 64 * n];
                for (int m = 0; m < 4; m++) {
                    add_scaled(value[m][n], p[m].x, v[0]);
                    add_scaled(value[m][n], p[m].y, v[1]);
                    add_scaled(value[m][n], p[m].z, v[2]);
                    add_scaled(value[m][n], p[m].w, v[3]);
                }
            }
        }
    }

    __device__ void scale_rows(const float *factor) {
        for (int m = 0; m < 4; m++) {
            float f = factor[y + 4 * m];
            for (int n = 0; n < D / 64; n++) {
                float4 zero = make_float4(0, 0, 0, 0);
                add_scaled(zero, f, value[m][n]);
                value[m][n] = zero;
            }
        }
    }

    __device__ void store(float *O, int rows) const {
        for (int m = 0; m < 4; m++)
            for (int n = 0; n < D / 64; n++) {
                int r = y + 4 * m;
                // An index among float4, since nvcc makes four stores of *(float4 *)&O[...] here:
                // the counters showed it, with four times the sectors.
                if (r < rows) ((float4 *)O)[(size_t)r * (D / 4) + x / 4 + 16 * n] = value[m][n];
            }
    }
};

//> query-tiles
// grid: B * H * ceil(Nq / 64) tiles of queries
template <int D>
__global__ void __launch_bounds__(Threads) query_tiles(const float *Q_hbm, // [B, H, Nq, D]
                                                       const float *K_hbm, // [B, Hkv, Nk, D]
                                                       const float *V_hbm, // [B, Hkv, Nk, D]
                                                       float *O_hbm,       // [B, H, Nq, D]
                                                       float *LSE_hbm,     // [B, H, Nq]
                                                       shape s) {
    const int Rows = Br / Warps; // rows whose softmax is this warp's business
    float *Q = (float *)smem, *K = Q + Br * pitch<D>, *V = K + Bc * pitch<D>;
    float *P = V + Bc * D, *factors = P + Br * P_pitch;
    int tiles = (s.Nq + Br - 1) / Br, bh = blockIdx.x / tiles, i0 = blockIdx.x % tiles * Br;
    size_t row = (size_t)bh * s.Nq + i0, key = kv_head(s, bh) * s.Nk;
    int warp = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;

    load_tile<Br, D, pitch<D>>(Q, Q_hbm + row * D, s.Nq - i0);
    rows_of_O<D> O;
    float m[Rows], l[Rows]; // the same in all lanes of the warp
    for (int r = 0; r < Rows; r++) m[r] = -INFINITY, l[r] = 0;
    int keys = keys_seen(s, i0 + Br);
    for (int j0 = 0; j0 < keys; j0 += Bc) {
        load_tile<Bc, D, pitch<D>>(K, K_hbm + (key + j0) * D, s.Nk - j0);
        load_tile<Bc, D, D>(V, V_hbm + (key + j0) * D, s.Nk - j0);
        __syncthreads(); // the tiles are complete
        scores<D>(P, Q, K, s, i0, j0);
        __syncthreads(); // S is complete
        for (int r = 0; r < Rows; r++) {
            int i = warp * Rows + r;
            float factor;
            P[i * P_pitch + lane] = online_update(P[i * P_pitch + lane], m[r], l[r], factor);
            if (lane == 0) factors[i] = factor;
        }
        __syncthreads(); // the weights and factors of all rows are there
        O.update(factors, P, V);
        __syncthreads(); // all have read K, V, weights and factors: the next turn overwrites
    }

    for (int r = 0; r < Rows; r++) {
        int i = warp * Rows + r;
        if (lane != 0) continue;
        factors[i] = 1 / (l[r] > 0 ? l[r] : 1); // a row that sees no key: O = 0
        if (i0 + i < s.Nq) LSE_hbm[row + i] = m[r] + logf(l[r]);
    }
    __syncthreads(); // the factors of all rows are there
    O.scale_rows(factors);
    O.store(O_hbm + row * D, s.Nq - i0);
}
//< query-tiles

// ---- the host's side: what the harness asks of a rung ------------------------------------------

template <int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    const int bytes = smem_floats<D> * sizeof(float);
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    cudaFuncSetAttribute(query_tiles<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH(query_tiles<D>, grid, Threads, bytes, (const float *)t->Q, (const float *)t->K,
           (const float *)t->V, (float *)t->O, t->LSE, shape_of(p));
}

static void forward(const attn_problem *p, const attn_tensors *t) {
    (p->head_dim == 64 ? launch<64> : launch<128>)(p, t);
}

static bool supports(const attn_problem *p, unsigned, char *why, size_t why_size) {
    int floats = p->head_dim == 64 ? smem_floats<64> : smem_floats<128>;
    return takes_64_and_128<0>(p, 0, why, why_size) &&
           fits(p, floats * sizeof(float), why, why_size);
}

static attn_traffic model(const attn_problem *p, unsigned) {
    return forward_traffic(p, Br, Bc, SECTOR, 0);
}

static const attn_kernel kernel = {
    .step = "step05_fa2_partitioning",
    .rung = 1,
    .name = "query-tiles",
    .idea = "a block for each tile of queries, O in registers; fp32",
    .formula = "about 8 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .least_sm = 75,
    .supports = supports,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step05_1

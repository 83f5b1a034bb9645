// step05, rung 7: FlashAttention-2's forward, tuned, for every shape.
//
// The idea: nothing new, but everything in its place.
//
//   two blocks on a multiprocessor   one buffer for K and one for V, not two of each: V is on its
//                                    way during Q K^T, the next K during P V. While one block
//                                    waits at a barrier, the other multiplies
//   the last tile of keys first      only that one can end early: the others are copied without a
//                                    test of their rows. The mask is behind a branch
//   what a shape does not need       is not compiled: templates know if d < D, and if tiles are cut
//   weights where they are used      P is made 16 keys at a time, right before its product with V:
//                                    exponentials and products of different keys overlap
//   addresses                        a lane's address in a tile is computed once; every fragment
//                                    is that address with some bits flipped
//   order of the blocks              with a causal mask the longest tiles of all heads come
//                                    first, so that the last ones to start are short
//   rows that have seen no key       m starts at a finite number, so that nobody has to ask
//   O                                leaves through shared memory, 16 bytes a lane
//   every d                          padded with zeros to 64, 128 or 256 on the chip
//
// New since rung 6: each of these.
//
// Run:     make run ARGS="--kernel fa2 -d 64"     (in this folder)
// Limits:  fp16, bf16; forward only.

#include "fa2.h"
#include "lean.h"
#include "swizzle.h"

#include <float.h>

namespace step05_7 {

using namespace step05;

using lean::Log2e, lean::Most;

//> tiling
// D: d padded. A warp has Blocks blocks of 16 queries; O of 32 x 256 would not fit into registers.
template <int D> struct tiling {
    static constexpr int Blocks = D == 256 ? 1 : 2;
    static constexpr int Warps = 4, Threads = Warps * Lanes;
    static constexpr int Br = Warps * Blocks * 16;
    static constexpr int Bc = D == 64 ? 128 : 64;
    static constexpr int Elements = (Br + 2 * Bc) * D; // of Q, K and V in shared memory
    static constexpr int RowsAtOnce = Threads / (D / Chunk);
};
//< tiling

// What a lane holds of a warp's S and O: 4 elements of each 16 x 8.
template <int D> using scores = float[tiling<D>::Blocks][tiling<D>::Bc / 8][4];
template <int D> using output = float[tiling<D>::Blocks][D / 8][4];

// Starts copying a tile of Rows x D from rows of d elements, with zeros for the columns from d on
// and, unless the tile is `whole`, for the rows from `rows` on. A thread has the same chunk of
// every row that it copies.
template <class T, int Rows, int D>
__device__ static void start_copy(T *tile, const T *hbm, int d, bool whole, int rows) {
    const int Step = tiling<D>::RowsAtOnce;
    int c = threadIdx.x % (D / Chunk) * Chunk, r0 = threadIdx.x / (D / Chunk);
    const T *from = hbm + (size_t)r0 * d + c;
    if (whole && d == D) {
#pragma unroll
        for (int r = 0; r < Rows; r += Step)
            cp_async_16(tile + swizzled<D>(r + r0, c), from + r * D);
        return;
    }
#pragma unroll
    for (int r = 0; r < Rows; r += Step)
        cp_async_16(tile + swizzled<D>(r + r0, c), from + (size_t)r * d,
                    (whole || r + r0 < rows) && c < d);
}

//> moved
// Where a lane's fragment at (r, c) of a tile lies, for r a multiple of 16 and c of 16, when `at`
// is where its fragment at (0, 0) lies. Rows that are 16 apart are swizzled alike; columns flip
// bits, since each tile begins at a multiple of 128 bytes.
template <class T, int D> __device__ static const T *moved(const T *at, int r, int c) {
    uintptr_t address = (uintptr_t)at ^ (c % 64 * sizeof(T));
    return (const T *)address + r * D + c / 64 * 64;
}
//< moved

// S = Q K^T for the warp's queries. All fragments of 16 columns are asked for before the first
// product that needs one.
template <class T, int D>
__device__ static void multiply_QK(scores<D> &S, const T *q_at, const T *k_at) {
    constexpr int Blocks = tiling<D>::Blocks, Bc = tiling<D>::Bc;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        fragment q[Blocks], keys[Bc / 16];
#pragma unroll
        for (int b = 0; b < Blocks; b++) ldmatrix_x4(q[b].x, moved<T, D>(q_at, 16 * b, k));
#pragma unroll
        for (int n = 0; n < Bc / 16; n++) ldmatrix_x4(keys[n].x, moved<T, D>(k_at, 16 * n, k));
#pragma unroll
        for (int n = 0; n < Bc / 16; n++) {
#pragma unroll
            for (int b = 0; b < Blocks; b++) {
                mma_m16n8k16<T>(S[b][2 * n], q[b].x, keys[n].x[0], keys[n].x[1]);
                mma_m16n8k16<T>(S[b][2 * n + 1], q[b].x, keys[n].x[2], keys[n].x[3]);
            }
        }
    }
}

// -infinity where a query does not see a key. i, j: the warp's first query, the tile's first key.
template <int D> __device__ static void mask(scores<D> &S, const shape &s, int i, int j) {
    int lane = threadIdx.x % Lanes, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int b = 0; b < tiling<D>::Blocks; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = i + 16 * b + 8 * half + g;
            // the last key that the row sees, counted from the lane's first of the tile
            int last = (s.causal ? min(row + s.Nk - s.Nq, s.Nk - 1) : s.Nk - 1) - (j + 2 * t);
#pragma unroll
            for (int n = 0; n < tiling<D>::Bc / 8; n++) {
                if (8 * n > last) S[b][n][2 * half] = -INFINITY;
                if (8 * n + 1 > last) S[b][n][2 * half + 1] = -INFINITY;
            }
        }
}

struct rows { // what a lane knows of two rows
    float m[2], l[2];
};

// The maxima of all rows; O and l are rescaled when one of them has grown by more than Most.
template <int D>
__device__ static void update_maxima(const scores<D> &S, output<D> &O, rows (&r)[tiling<D>::Blocks],
                                     float c) {
    constexpr int Blocks = tiling<D>::Blocks;
    float m[Blocks][2];
    bool grown = false;
#pragma unroll
    for (int b = 0; b < Blocks; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = S[b][0][2 * half];
#pragma unroll
            for (int n = 0; n < tiling<D>::Bc / 8; n++)
                most = fmaxf(most, fmaxf(S[b][n][2 * half], S[b][n][2 * half + 1]));
            m[b][half] = fmaxf(r[b].m[half], max_of_quad(most));
            grown |= c * (m[b][half] - r[b].m[half]) > Most;
        }
    if (!__any_sync(~0u, grown)) return;
#pragma unroll
    for (int b = 0; b < Blocks; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float factor = exp2_approx(c * (r[b].m[half] - m[b][half]));
            r[b].m[half] = m[b][half];
            r[b].l[half] *= factor;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                O[b][n][2 * half] *= factor;
                O[b][n][2 * half + 1] *= factor;
            }
        }
}

//> weights
// The weights of 16 keys, as a left operand, and their sums.
template <class T>
__device__ static fragment weights(const float (&left)[4], const float (&right)[4], rows &r,
                                   float c, const float (&c_m)[2]) {
    float P[2][4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        P[0][e] = exp2_approx(c * left[e] - c_m[e / 2]);
        P[1][e] = exp2_approx(c * right[e] - c_m[e / 2]);
        r.l[e / 2] += P[0][e] + P[1][e];
    }
    return {{pack<T>(P[0][0], P[0][1]), pack<T>(P[0][2], P[0][3]), pack<T>(P[1][0], P[1][1]),
             pack<T>(P[1][2], P[1][3])}};
}
//< weights

// O += P V, and P = exp2(c S - c m) on the way, 16 keys at a time.
template <class T, int D>
__device__ static void multiply_PV(output<D> &O, const scores<D> &S, const T *v_at,
                                   rows (&r)[tiling<D>::Blocks], float c) {
    constexpr int Blocks = tiling<D>::Blocks;
    float c_m[Blocks][2];
#pragma unroll
    for (int b = 0; b < Blocks; b++)
        for (int half = 0; half < 2; half++) c_m[b][half] = c * r[b].m[half];
#pragma unroll
    for (int k = 0; k < tiling<D>::Bc / 16; k++) {
        fragment p[Blocks];
#pragma unroll
        for (int b = 0; b < Blocks; b++)
            p[b] = weights<T>(S[b][2 * k], S[b][2 * k + 1], r[b], c, c_m[b]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            fragment values;
            ldmatrix_x4_trans(values.x, moved<T, D>(v_at, 16 * k, 16 * n));
#pragma unroll
            for (int b = 0; b < Blocks; b++) {
                mma_m16n8k16<T>(O[b][2 * n], p[b].x, values.x[0], values.x[1]);
                mma_m16n8k16<T>(O[b][2 * n + 1], p[b].x, values.x[2], values.x[3]);
            }
        }
    }
}

// O / l goes to the place of Q, which only this warp has read, and from there out, row by row.
// O_hbm, LSE_hbm: the warp's first row, `rows_left` of which exist.
template <class T, int D>
__device__ static void store(T *O_hbm, float *LSE_hbm, T *O_smem, const output<D> &O,
                             const rows (&r)[tiling<D>::Blocks], int rows_left, int d,
                             float scale) {
    constexpr int Blocks = tiling<D>::Blocks;
    int lane = threadIdx.x % Lanes;
#pragma unroll
    for (int b = 0; b < Blocks; b++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float l = sum_of_quad(r[b].l[half]);
            float inverse = 1 / (l > 0 ? l : 1); // a row that sees no key: O = 0
            int at = 16 * b + lane / 4 + 8 * half;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *(uint32_t *)&O_smem[swizzled<D>(at, 8 * n) + lane % 4 * 2] =
                    pack<T>(O[b][n][2 * half] * inverse, O[b][n][2 * half + 1] * inverse);
            if (lane % 4 == 0 && at < rows_left) LSE_hbm[at] = scale * r[b].m[half] + logf(l);
        }
    //> store
    __syncwarp(); // the warp's rows are complete
    int column = lane % (D / Chunk) * Chunk;
#pragma unroll
    for (int at = lane / (D / Chunk); at < 16 * Blocks; at += Lanes / (D / Chunk))
        if (at < rows_left && column < d)
            *(uint4 *)&O_hbm[(size_t)at * d + column] =
                *(const uint4 *)&O_smem[swizzled<D>(at, column)];
    //< store
}

// What the compiler is told, because code that is not there costs no registers. Padded: d < D; if
// not, it knows how far apart rows are. Cut: with a causal mask, or if K ends within a tile. A
// padded kernel always has the code for that, so there are three of each T and D, not four.
// grid: B * H * ceil(Nq / Br) tiles of queries
template <class T, int D, bool Padded, bool Cut>
__global__ void __launch_bounds__(tiling<D>::Threads, D == 256 ? 1 : 2)
    fa2(const T *Q_hbm,       // [B, H, Nq, d]
        const T *K_hbm,       // [B, Hkv, Nk, d]
        const T *V_hbm,       // [B, Hkv, Nk, d]
        T *O_hbm,             // [B, H, Nq, d]
        float *LSE_hbm,       // [B, H, Nq]
        shape s, int heads) { // heads = B * H
    constexpr int Blocks = tiling<D>::Blocks, Br = tiling<D>::Br, Bc = tiling<D>::Bc;
    T *Q_smem = (T *)smem, *K_smem = Q_smem + Br * D, *V_smem = K_smem + Bc * D;
    const int d = Padded ? s.d : D;
    int tiles = (s.Nq + Br - 1) / Br;
    //> order
    // With a mask the last tile of queries has most to do: of all heads, it comes first.
    int bh = s.causal ? blockIdx.x % heads : blockIdx.x / tiles;
    int tile = s.causal ? tiles - 1 - blockIdx.x / heads : blockIdx.x % tiles;
    //< order
    int i0 = tile * Br, lane = threadIdx.x % Lanes;
    int first = threadIdx.x / Lanes * Blocks * 16; // the warp's first row of the tile
    size_t row = (size_t)bh * s.Nq + i0, key = kv_head(s, bh) * s.Nk;
    // Where the lane's first fragments lie.
    const T *q_at = Q_smem + swizzled<D>(first + lane % 16, lane / 16 * 8);
    const T *k_at = K_smem + swizzled<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
    const T *v_at = V_smem + swizzled<D>(lane % 16, lane / 16 * 8);
    float c = s.scale * Log2e;

    output<D> O = {};
    rows r[Blocks];
    //> lowest
    // m starts at about the lowest number whose product with c is still finite, and not at
    // -infinity: c (-infinity - m) is then -infinity, a weight of 0, and no row has to be asked
    // whether it has seen a key. (The quotient is rounded, so a little less: c m must stay finite.)
    float lowest = c > 1 ? -0.999f * FLT_MAX / c : -FLT_MAX;
#pragma unroll
    for (int b = 0; b < Blocks; b++)
        for (int half = 0; half < 2; half++) r[b].m[half] = lowest, r[b].l[half] = 0;
    //< lowest
    // From the last tile of keys to the first. Only the last can end early, so that none of the
    // copies within the loop but the first V has to look where K and V end.
    int keys = keys_seen(s, i0 + Br), last = keys > 0 ? (keys - 1) / Bc * Bc : -1;
    const T *K_tile = K_hbm + (key + last) * d, *V_tile = V_hbm + (key + last) * d;
    start_copy<T, Br, D>(Q_smem, Q_hbm + row * d, d, false, s.Nq - i0);
    //> loop
    if (keys > 0) start_copy<T, Bc, D>(K_smem, K_tile, d, !Cut, s.Nk - last);
#pragma unroll 1
    for (int j0 = last; j0 >= 0; j0 -= Bc) {
        cp_async_wait_all();
        __syncthreads(); // K (and Q) have arrived, and all have read the V before
        start_copy<T, Bc, D>(V_smem, V_tile, d, !Cut || j0 + Bc <= s.Nk, s.Nk - j0);
        scores<D> S = {};
        multiply_QK<T, D>(S, q_at, k_at);
        if (Cut && !visible(s, i0, j0 + Bc - 1)) mask<D>(S, s, i0 + first, j0);
        cp_async_wait_all();
        __syncthreads(); // V has arrived, and all have read K
        K_tile -= Bc * d;
        V_tile -= Bc * d;
        if (j0 > 0) start_copy<T, Bc, D>(K_smem, K_tile, d, true, 0);
        update_maxima<D>(S, O, r, c);
        multiply_PV<T, D>(O, S, v_at, r, c);
    }
    //< loop
    cp_async_wait_all(); // of a block without keys: Q has arrived for nothing
    // After the barrier that is so for all threads' copies, and O may take the place of Q.
    __syncthreads();
    T *O_smem = Q_smem + first * D;
    store<T, D>(O_hbm + (row + first) * d, LSE_hbm + row + first, O_smem, O, r, s.Nq - i0 - first,
                d, s.scale);
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

static int padded_d(int d) { return d <= 64 ? 64 : d <= 128 ? 128 : 256; }

template <class T, int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    constexpr int bytes = tiling<D>::Elements * sizeof(T);
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, tiling<D>::Br);
    bool padded = p->head_dim < D, cut = p->causal || p->seqlen_k % tiling<D>::Bc;
    auto fa2_kernel = padded ? fa2<T, D, true, true>
                      : cut  ? fa2<T, D, false, true>
                             : fa2<T, D, false, false>;
    cudaFuncSetAttribute(fa2_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH(fa2_kernel, grid, tiling<D>::Threads, bytes, (const T *)t->Q, (const T *)t->K,
           (const T *)t->V, (T *)t->O, t->LSE, shape_of(p), p->batch * p->heads);
}

template <class T> static void launch_padded(const attn_problem *p, const attn_tensors *t) {
    int D = padded_d(p->head_dim);
    (D == 64 ? launch<T, 64> : D == 128 ? launch<T, 128> : launch<T, 256>)(p, t);
}

static void forward(const attn_problem *p, const attn_tensors *t) {
    (p->dtype == ATTN_FP16 ? launch_padded<__half> : launch_padded<__nv_bfloat16>)(p, t);
}

template <int D> static int bytes_of_tiles() { return tiling<D>::Elements * 2; }

static bool supports(const attn_problem *p, unsigned, char *why, size_t why_size) {
    int D = padded_d(p->head_dim);
    int bytes = D == 64    ? bytes_of_tiles<64>()
                : D == 128 ? bytes_of_tiles<128>()
                           : bytes_of_tiles<256>();
    return fits(p, bytes, why, why_size);
}

template <int D> static attn_traffic model_of(const attn_problem *p) {
    const int Br = tiling<D>::Br, Bc = tiling<D>::Bc, at_once = Lanes / (D / Chunk);
    shape s = shape_of(p);
    uint64_t load = 0, store = 0;
    for (int bh = 0; bh < p->batch * p->heads; bh++)
        for (int i0 = 0; i0 < s.Nq; i0 += Br) {
            uint64_t row = (uint64_t)bh * s.Nq + i0, rows = min(Br, s.Nq - i0);
            uint64_t K = 0;
            uint64_t kv = (bh / s.heads * s.kv_heads + bh % s.heads / (s.heads / s.kv_heads));
            for (int j0 = 0; j0 < keys_seen(s, i0 + Br); j0 += Bc)
                K += copied_sectors(kv * s.Nk + j0, min(Bc, s.Nk - j0), s.d);
            load += copied_sectors(row, rows, s.d) + 2 * K;
            store += stored_sectors(row, rows, s.d, at_once);
            store += request_sectors(row * sizeof(float), rows * sizeof(float), 32); // LSE
        }
    return {.load = load * SECTOR, .store = store * SECTOR};
}

static attn_traffic model(const attn_problem *p, unsigned) {
    int D = padded_d(p->head_dim);
    return D == 64 ? model_of<64>(p) : D == 128 ? model_of<128>(p) : model_of<256>(p);
}

static const attn_kernel kernel = {
    .step = "step05_fa2_partitioning",
    .rung = 7,
    .name = "fa2",
    .idea = "tuned: two blocks on a multiprocessor, every shape",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD,
    .least_sm = 80,
    .supports = supports,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step05_7

const attn_kernel step05::fa2 = step05_7::kernel; // for the backwards

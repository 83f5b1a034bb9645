// gradients.h - the kernel that both backwards have in common: dK and dV of a tile of keys.
//
// A block keeps its tile of keys and values on the chip, and the sums dK and dV in registers, while
// the queries that see it come by, those of all heads that share it. It works with the transposes
// of S and P, whose rows are keys, as those of dK and dV are:
//
//     S^T = K Q^T,  dP^T = V dO^T                     each warp some rows and some columns
//     P^T = exp(S^T - LSE),  dS^T = P^T o (dP^T - D)  in registers
//     dV += P^T dO,  dK += dS^T Q                     each warp some rows and some columns
//     dQ += dS K                                      rung 9 only
//
// The sums of the second line of products run over queries. Where a warp has all queries of its
// keys (QueryWarps = 1), its P^T and dS^T are the left operands as they are, in registers, as the
// forward's P is. Else several warps share the queries of a key, and P^T and dS^T go through shared
// memory, in 16 bits.
//
// What is the same for the other kernel of keys, gradients_rows.h, stands here, too.
#ifndef STEP05_GRADIENTS_H
#define STEP05_GRADIENTS_H

#include "backward.h"

namespace step05::backward {

// ---- how a block cuts it up ---------------------------------------------------------------------

// D: d padded. KB: of shared memory that a block may have. Warps divide the Bc keys among them by
// KeyWarps, and the Br queries, or the D columns, by QueryWarps. dQ is divided by dQ_Warps along
// the queries and by the rest along its columns. Stages: tiles of Q and dO on the chip.
//> tilings
template <int D, int KB> struct tiling;
template <> struct tiling<64, 99> {
    static constexpr int Br = 32, Bc = 128, KeyWarps = 4, QueryWarps = 1, dQ_Warps = 2;
    static constexpr int Stages = 2, BlocksPerSM = 2;
};
template <> struct tiling<128, 227> {
    static constexpr int Br = 64, Bc = 128, KeyWarps = 4, QueryWarps = 2, dQ_Warps = 2;
    static constexpr int Stages = 3, BlocksPerSM = 1;
};
template <> struct tiling<128, 163> : tiling<128, 227> { static constexpr int Stages = 2; };
template <> struct tiling<128, 99> {
    static constexpr int Br = 32, Bc = 64, KeyWarps = 2, QueryWarps = 2, dQ_Warps = 2;
    static constexpr int Stages = 3, BlocksPerSM = 1;
};
template <> struct tiling<256, 227> {
    static constexpr int Br = 64, Bc = 64, KeyWarps = 2, QueryWarps = 4, dQ_Warps = 2;
    static constexpr int Stages = 2, BlocksPerSM = 1;
};
template <> struct tiling<256, 99> { // two warps: right, and slow
    static constexpr int Br = 32, Bc = 16, KeyWarps = 1, QueryWarps = 2, dQ_Warps = 1;
    static constexpr int Stages = 2, BlocksPerSM = 1;
};
//< tilings

// What follows from it.
template <int D_, int KB, bool WithDQ_> struct plan : tiling<D_, KB> {
    using t = tiling<D_, KB>;
    static constexpr int D = D_;
    static constexpr bool WithDQ = WithDQ_;
    static constexpr int Warps = t::KeyWarps * t::QueryWarps, Threads = Warps * Lanes;
    // Of a warp: its keys, their queries in S^T, their columns in dK and dV; and its part of dQ.
    static constexpr int Keys = t::Bc / t::KeyWarps, Queries = t::Br / t::QueryWarps;
    static constexpr int Columns = D / t::QueryWarps;
    static constexpr int dQ_Rows = t::Br / t::dQ_Warps, dQ_Columns = D / (Warps / t::dQ_Warps);
    __device__ static int dQ_row() { return threadIdx.x / Lanes % t::dQ_Warps * dQ_Rows; }
    __device__ static int dQ_column() { return threadIdx.x / Lanes / t::dQ_Warps * dQ_Columns; }

    // P^T and dS^T in registers only? dS^T must be in shared memory for dQ, whoever has it.
    static constexpr bool InRegisters = t::QueryWarps == 1;
    // One barrier a tile of queries is enough if nothing that it protects is in use on both its
    // sides: with a stage for the tile after next, and two places for P^T and dS^T in turn.
    static constexpr bool OneBarrier = InRegisters || t::Stages == 3;
    static constexpr int Places = OneBarrier ? 2 : 1;

    // Bytes: of a tile of keys, of a tile of queries and of their two numbers each (-LSE and -D),
    // of P^T or dS^T; and where in shared memory they begin.
    static constexpr int KeyTile = t::Bc * D * Bytes, QueryTile = t::Br * D * Bytes;
    static constexpr int NumbersOfTile = 2 * t::Br * sizeof(float), Square = t::Bc * t::Br * Bytes;
    static constexpr uint32_t K = 0, V = K + KeyTile, Q = V + KeyTile;
    static constexpr uint32_t dO = Q + t::Stages * QueryTile;
    static constexpr uint32_t Numbers = dO + t::Stages * QueryTile;
    static constexpr uint32_t dS = Numbers + t::Stages * NumbersOfTile;
    static constexpr uint32_t P = dS + (InRegisters && !WithDQ ? 0 : Places * Square);
    static constexpr int Smem = P + (InRegisters ? 0 : Places * Square);
};

// ---- the kernel ---------------------------------------------------------------------------------

//> weights
// P^T and dS^T of a warp's keys and queries, rounded, as left operands. LSE: of the lane's first
// query, in shared memory, as `prepare` has left it.
template <class T, int Blocks, int Tiles>
__device__ inline void weights(fragment (&P)[Blocks][Tiles / 2], fragment (&dS)[Blocks][Tiles / 2],
                               const float (&S)[Blocks][Tiles][4],
                               const float (&dP)[Blocks][Tiles][4], const float *LSE, float c) {
#pragma unroll
    for (int n = 0; n < Tiles; n++) {
        float2 two = *(const float2 *)&LSE[8 * n];
#pragma unroll
        for (int b = 0; b < Blocks; b++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float left = probability<T>(S[b][n][2 * half], two.x, c);
                float right = probability<T>(S[b][n][2 * half + 1], two.y, c);
                int x = n % 2 * 2 + half;
                P[b][n / 2].x[x] = pack<T>(left, right);
                dS[b][n / 2].x[x] =
                    pack<T>(left * dP[b][n][2 * half], right * dP[b][n][2 * half + 1]);
            }
    }
}

//< weights

//> start-from
// The sums of dP^T start from -D, which so costs nothing.
template <int Blocks, int Tiles>
__device__ inline void start_from(float (&dP)[Blocks][Tiles][4], const float *D) {
#pragma unroll
    for (int n = 0; n < Tiles; n++) {
        float2 two = *(const float2 *)&D[8 * n];
#pragma unroll
        for (int b = 0; b < Blocks; b++)
#pragma unroll
            for (int e = 0; e < 4; e++) dP[b][n][e] = e % 2 ? two.y : two.x;
    }
}

//< start-from

//> add-fragments
// Adds a block's part of dQ to the sums in HBM, in the order of the fragments: each lane has four
// numbers in a row, and the lanes of a block follow one another.
template <int Threads, int Blocks, int Tiles>
__device__ inline void add_fragments(float *sums, const float (&dQ)[Blocks][Tiles][4]) {
    sums += 4 * threadIdx.x;
#pragma unroll
    for (int b = 0; b < Blocks; b++)
#pragma unroll
        for (int n = 0; n < Tiles; n++)
            red_add_f32x4(sums + 4 * Threads * (b * Tiles + n),
                          make_float4(dQ[b][n][0], dQ[b][n][1], dQ[b][n][2], dQ[b][n][3]));
}

//< add-fragments

//> walk
// The first query, rounded down to tiles, that sees key j0 or a later one.
__host__ __device__ inline int first_query(const shape &s, int Br, int j0) {
    int i = j0 + s.Nq - s.Nk;
    return s.causal && i > 0 ? i / Br * Br : 0;
}

// The first query from which on all see key j and those before it.
__device__ inline int first_unmasked(const shape &s, int j) {
    return j >= s.Nk ? INT_MAX : s.causal ? j + s.Nq - s.Nk : 0;
}

// One of the tiles of queries that see some of a block's keys: of all heads of their group, one
// head after the other.
struct tile_of_queries {
    int head, i;
    __device__ void advance(int Br, int first, int Nq) {
        i += Br;
        if (i >= Nq) i = first, head++;
    }
};

//< walk

// Starts copying such a tile: its rows of Q and dO, and their two numbers each.
template <class T, class Plan>
__device__ inline void copy_queries(const tile_of_queries &at, int stage, const T *Q_hbm,
                                    const T *dO_hbm, const float *numbers, const shape &s,
                                    int pitch) {
    constexpr int D = Plan::D, Br = Plan::Br, Threads = Plan::Threads;
    unsigned row = at.head * s.Nq + at.i, padded = at.head * pitch + at.i;
    int rows = s.Nq - at.i;
    unsigned n = 4 * threadIdx.x;
    uint32_t tile = stage * Plan::QueryTile;
    uint32_t of_rows = Plan::Numbers + stage * Plan::NumbersOfTile + n * sizeof(float);
    start_copy<T, Br, D, Threads>(Plan::Q + tile, Q_hbm + (size_t)row * (unsigned)s.d, rows, s.d);
    start_copy<T, Br, D, Threads>(Plan::dO + tile, dO_hbm + (size_t)row * (unsigned)s.d, rows, s.d);
    if (n < 2 * Br) cp_async_16(smem + of_rows, &numbers[2 * padded + n]);
}

// The sums of a block to HBM, by way of shared memory: a warp has them from (key, column) on.
template <class T, class Plan, int Blocks, int Tiles>
__device__ inline void store_gradients(T *dK_hbm, T *dV_hbm, const float (&dK)[Blocks][Tiles][4],
                                       const float (&dV)[Blocks][Tiles][4], int key, int column,
                                       int rows, const shape &s) {
    constexpr int D = Plan::D, Bc = Plan::Bc, Threads = Plan::Threads;
    __syncthreads(); // all have read K, and now dK takes its place, and dV that of V
    put<T, D>(own<D>(Plan::K, key, column), dK, s.scale);
    put<T, D>(own<D>(Plan::V, key, column), dV, 1);
    __syncthreads(); // both are complete
    store_tile<T, Bc, D, Threads>(dK_hbm, Plan::K, rows, s.d);
    store_tile<T, Bc, D, Threads>(dV_hbm, Plan::V, rows, s.d);
}

// grid: B * Hkv * ceil(Nk / Bc) tiles of keys
template <class T, class Plan>
__global__ void __launch_bounds__(Plan::Threads, Plan::BlocksPerSM)
    gradients(const T *Q_hbm,       // [B, H, Nq, d]
              const T *K_hbm,       // [B, Hkv, Nk, d]
              const T *V_hbm,       // [B, Hkv, Nk, d]
              const T *dO_hbm,      // [B, H, Nq, d]
              const float *numbers, // [B, H, pitch / 32, 2, 32]: -LSE in its unit, -D
              float *dQ_sums,       // [B, H, pitch, D], each tile in the order of its fragments
              T *dK_hbm,            // [B, Hkv, Nk, d]
              T *dV_hbm,            // [B, Hkv, Nk, d]
              shape s, int pitch) {
    constexpr int D = Plan::D, Br = Plan::Br, Bc = Plan::Bc, Threads = Plan::Threads;
    constexpr int Blocks = Plan::Keys / 16, Tiles = Plan::Queries / 8; // of the warp's S^T
    constexpr bool OneBarrier = Plan::OneBarrier, InRegisters = Plan::InRegisters;
    // One head after the other, so that blocks at work read the same Q and dO; its first keys,
    // which with a mask have most to do, first.
    int tiles = (s.Nk + Bc - 1) / Bc, kv = blockIdx.x / tiles, j0 = blockIdx.x % tiles * Bc;
    int warp = threadIdx.x / Lanes, t = threadIdx.x % Lanes % 4;
    int key = warp / Plan::QueryWarps * Plan::Keys; // the warp's first, in the tile, and so on
    int query = warp % Plan::QueryWarps * Plan::Queries;
    int column = warp % Plan::QueryWarps * Plan::Columns;
    size_t row_of_K = (size_t)kv * s.Nk + j0;

    int first = first_query(s, Br, j0), turns = (s.Nq - first + Br - 1) / Br * group(s);
    tile_of_queries next = {kv * group(s), first}, now = next; // to be copied, to be worked on
    auto copy_next = [&](int stage) {
        copy_queries<T, Plan>(next, stage, Q_hbm, dO_hbm, numbers, s, pitch);
        next.advance(Br, first, s.Nq);
    };
    start_copy<T, Bc, D, Threads>(Plan::K, K_hbm + row_of_K * s.d, s.Nk - j0, s.d);
    start_copy<T, Bc, D, Threads>(Plan::V, V_hbm + row_of_K * s.d, s.Nk - j0, s.d);
    copy_next(0);
    cp_async_commit();
    if (OneBarrier) {
        if (turns > 1) copy_next(1);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads(); // K, V and the first tile of queries have arrived
    }

    float dK[Blocks][Plan::Columns / 8][4] = {}, dV[Blocks][Plan::Columns / 8][4] = {};
    // Where the lane's fragments begin: of K and V as left operands, Q and dO as right ones of the
    // first two products and of the next two, K as that of dQ; and of P^T and dS^T, likewise.
    const uint32_t K_left = straight<D>(Plan::K, key, 0), V_left = straight<D>(Plan::V, key, 0);
    const uint32_t Q_right = crossed<D>(Plan::Q, query, 0);
    const uint32_t Q_down = straight<D>(Plan::Q, 0, column);
    const uint32_t K_down = straight<D>(Plan::K, 0, Plan::dQ_column());
    const uint32_t dS_own = to_put<Br>(Plan::dS, key, query);
    const uint32_t dS_left = straight<Br>(Plan::dS, key, 0);
    const uint32_t dS_down = crossed<Br>(Plan::dS, 0, Plan::dQ_row());
    constexpr uint32_t From_Q_to_dO = Plan::dO - Plan::Q, From_dS_to_P = Plan::P - Plan::dS;
    float c = s.scale * Unit<T>;
    int unmasked = first_unmasked(s, j0 + key + Plan::Keys - 1) - query; // in a tile from here on
    int stage = 0, place = 0; // of this turn's Q and dO; of its P^T and dS^T
    for (int turn = 0; turn < turns; turn++) {
        if (!OneBarrier) {
            cp_async_wait_all();
            __syncthreads(); // this turn's Q and dO have arrived; all have read the last turn's
            if (turn + 1 < turns) copy_next(stage ^ 1);
        }
        uint32_t tile = stage * Plan::QueryTile, square = place * Plan::Square;
        const float *of_row = (const float *)(smem + Plan::Numbers + stage * Plan::NumbersOfTile) +
                              first_number(query) + 2 * t;

        //> squares
        float S[Blocks][Tiles][4] = {}, dP[Blocks][Tiles][4]; // of the transposes
        multiply<T, D / 16>(
            S, [&](int r, int k) { return load<D>(K_left, r, k); },
            [&](int k, int n) { return load<D>(Q_right + tile, n, k); });
        if (now.i < unmasked) mask<true>(S, s, now.i + query, j0 + key);
        start_from(dP, of_row + Apart);
        multiply<T, D / 16>(
            dP, [&](int r, int k) { return load<D>(V_left, r, k); },
            [&](int k, int n) { return load<D>(Q_right + From_Q_to_dO + tile, n, k); });

        fragment P[Blocks][Tiles / 2], dS[Blocks][Tiles / 2];
        weights<T>(P, dS, S, dP, of_row, c);
        if (!InRegisters) put<Br>(dS_own + From_dS_to_P + square, P);
        if (!InRegisters || Plan::WithDQ) put<Br>(dS_own + square, dS);
        //< squares

        //> sums
        auto add_to_dV = [&] {
            multiply<T, Br / 16>(
                dV,
                [&](int r, int k) {
                    if constexpr (InRegisters) return P[r / 16][k / 16];
                    return load<Br>(dS_left + From_dS_to_P + square, r, k);
                },
                [&](int k, int n) {
                    return load_transposed<D>(Q_down + From_Q_to_dO + tile, k, n);
                });
        };
        auto add_to_dK = [&] {
            multiply<T, Br / 16>(
                dK,
                [&](int r, int k) {
                    if constexpr (InRegisters) return dS[r / 16][k / 16];
                    return load<Br>(dS_left + square, r, k);
                },
                [&](int k, int n) { return load_transposed<D>(Q_down + tile, k, n); });
        };
        if (InRegisters) add_to_dV(), add_to_dK();
        if (OneBarrier) cp_async_wait_all();
        // P^T and dS^T are complete. With one barrier also: the next turn's Q and dO have arrived,
        // and all have read those of the last turn (InRegisters: of this one).
        __syncthreads();
        if (OneBarrier && turn + 2 < turns) copy_next((stage + 2) % Plan::Stages);
        if (!InRegisters) add_to_dV();
        if constexpr (Plan::WithDQ) {
            float dQ[Plan::dQ_Rows / 16][Plan::dQ_Columns / 8][4] = {};
            multiply<T, Bc / 16>(
                dQ, [&](int r, int k) { return load_transposed<Br>(dS_down + square, k, r); },
                [&](int k, int n) { return load_transposed<D>(K_down, k, n); });
            add_fragments<Threads>(dQ_sums + (size_t)(unsigned)(now.head * pitch + now.i) * D, dQ);
        }
        if (!InRegisters) add_to_dK();
        //< sums
        now.advance(Br, first, s.Nq);
        stage = stage + 1 == Plan::Stages ? 0 : stage + 1;
        if (OneBarrier) place ^= 1;
    }

    store_gradients<T, Plan>(dK_hbm + row_of_K * s.d, dV_hbm + row_of_K * s.d, dK, dV, key, column,
                             s.Nk - j0, s);
}

// ---- the host's side ----------------------------------------------------------------------------

// Calls use(plan) with the plan for this problem, the largest that fits, or the smallest.
template <bool WithDQ, class Use> void with_plan(const attn_problem *p, Use use) {
    size_t smem = p->smem;
    if (p->head_dim <= 64) return use(plan<64, 99, WithDQ>());
    if (p->head_dim <= 128) {
        if (plan<128, 227, WithDQ>::Smem <= smem) return use(plan<128, 227, WithDQ>());
        if (plan<128, 163, WithDQ>::Smem <= smem) return use(plan<128, 163, WithDQ>());
        return use(plan<128, 99, WithDQ>());
    }
    if (plan<256, 227, WithDQ>::Smem <= smem) return use(plan<256, 227, WithDQ>());
    use(plan<256, 99, WithDQ>());
}

template <class T, class Plan>
void launch_gradients(const attn_problem *p, const attn_tensors *t, const float *numbers,
                      float *dQ_sums) {
    unsigned grid = p->batch * p->kv_heads * ceil_div(p->seqlen_k, Plan::Bc);
    cudaFuncSetAttribute(gradients<T, Plan>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         Plan::Smem);
    LAUNCH((gradients<T, Plan>), grid, Plan::Threads, Plan::Smem, (const T *)t->Q, (const T *)t->K,
           (const T *)t->V, (const T *)t->dO, numbers, dQ_sums, (T *)t->dK, (T *)t->dV, shape_of(p),
           head_pitch(p));
}

// K, V, dK and dV move once; Q, dO and the rows' two numbers once for each tile of keys, as far as
// queries see it; and so often are a tile's sums added to dQ's.
template <class Plan> attn_traffic gradients_traffic(const attn_problem *p) {
    shape s = shape_of(p);
    int of_group = p->heads / p->kv_heads;
    uint64_t K = 0, dK = 0, Q = 0, turns = 0;
    for (int kv = 0; kv < p->batch * p->kv_heads; kv++)
        for (int j0 = 0; j0 < s.Nk; j0 += Plan::Bc) {
            uint64_t key = (uint64_t)kv * s.Nk + j0, keys = min(Plan::Bc, s.Nk - j0);
            K += copied_sectors(key, keys, s.d);
            dK += tile_sectors<Plan::D>(key, keys, s.d);
            for (int head = kv * of_group; head < (kv + 1) * of_group; head++)
                for (int i0 = first_query(s, Plan::Br, j0); i0 < s.Nq; i0 += Plan::Br, turns++)
                    Q += copied_sectors((uint64_t)head * s.Nq + i0, min(Plan::Br, s.Nq - i0), s.d);
        }
    uint64_t sums = turns * 2 * Plan::Br * sizeof(float) / SECTOR;
    return {.load = (2 * K + 2 * Q + sums) * SECTOR,
            .store = 2 * dK * SECTOR,
            .atomic = Plan::WithDQ ? turns * Plan::Br * Plan::D * sizeof(float) : 0};
}

} // namespace step05::backward

#endif

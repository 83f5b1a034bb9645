// gradients_rows.h - dK and dV of a tile of keys once more, from S in place of its transpose.
//
// gradients.h makes S^T, so that P^T is a left operand as it is. At d = 128 that gains nothing: dK
// and dV fill the registers, two warps must share the queries of a key, and P and dS go through
// shared memory in any case. On the way back ldmatrix can transpose them, at no cost. So here the
// rows of S are queries:
//
//     S = Q K^T,  dP = dO V^T                   each warp some rows and some columns
//     P = exp(S - LSE),  dS = P o (dP - D)      in registers, and to shared memory
//     dV += P^T dO,  dK += dS^T Q               the left operands transposed on the way
//     dQ += dS K                                rung 9 only; dS as it is
//
// What that gains: LSE and D belong to rows. A lane has parts of four rows of S, and of eight
// columns of S^T, so it needs half as many of these numbers.
//
// The tiles, the walk over the queries and the order of dQ's sums are those of gradients.h. So are
// the bytes asked, the barriers and the number of fragments.
#ifndef STEP05_GRADIENTS_ROWS_H
#define STEP05_GRADIENTS_ROWS_H

#include "gradients.h"

namespace step05::backward {

// grid: B * Hkv * ceil(Nk / Bc) tiles of keys
template <class T, class Plan>
__global__ void __launch_bounds__(Plan::Threads, Plan::BlocksPerSM)
    gradients_rows(const T *Q_hbm,       // [B, H, Nq, d]
                   const T *K_hbm,       // [B, Hkv, Nk, d]
                   const T *V_hbm,       // [B, Hkv, Nk, d]
                   const T *dO_hbm,      // [B, H, Nq, d]
                   const float *numbers, // [B, H, pitch / 32, 2, 32]: -LSE in its unit, -D
                   float *dQ_sums, // [B, H, pitch, D], each tile in the order of its fragments
                   T *dK_hbm,      // [B, Hkv, Nk, d]
                   T *dV_hbm,      // [B, Hkv, Nk, d]
                   shape s, int pitch) {
    constexpr int D = Plan::D, Br = Plan::Br, Bc = Plan::Bc, Threads = Plan::Threads;
    constexpr int Blocks = Plan::Queries / 16, Tiles = Plan::Keys / 8; // of the warp's S
    constexpr int KeyBlocks = Plan::Keys / 16, Columns = Plan::Columns;
    static_assert(Plan::OneBarrier && !Plan::InRegisters);
    int tiles = (s.Nk + Bc - 1) / Bc, kv = blockIdx.x / tiles, j0 = blockIdx.x % tiles * Bc;
    int warp = threadIdx.x / Lanes, g = threadIdx.x % Lanes / 4;
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
    if (turns > 1) copy_next(1);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads(); // K, V and the first tile of queries have arrived

    float dK[KeyBlocks][Columns / 8][4] = {}, dV[KeyBlocks][Columns / 8][4] = {};
    // Where the lane's fragments begin: of Q and dO as left operands, K and V as right ones of the
    // first two products, Q and dO as those of the next two, K as that of dQ; and of P and dS:
    // where they go to, as left operands of dV and dK, and of dQ.
    const uint32_t Q_left = straight<D>(Plan::Q, query, 0);
    const uint32_t K_right = crossed<D>(Plan::K, key, 0);
    const uint32_t Q_down = straight<D>(Plan::Q, 0, column);
    const uint32_t K_down = straight<D>(Plan::K, 0, Plan::dQ_column());
    const uint32_t dS_own = to_put<Bc>(Plan::dS, query, key);
    const uint32_t dS_down = crossed<Bc>(Plan::dS, 0, key);
    const uint32_t dS_left = straight<Bc>(Plan::dS, Plan::dQ_row(), 0);
    constexpr uint32_t From_Q_to_dO = Plan::dO - Plan::Q, From_dS_to_P = Plan::P - Plan::dS;
    constexpr uint32_t From_K_to_V = Plan::V - Plan::K;
    float c = s.scale * Unit<T>;
    int unmasked = first_unmasked(s, j0 + key + Plan::Keys - 1) - query; // in a tile from here on
    int stage = 0, place = 0; // of this turn's Q and dO; of its P and dS
    for (int turn = 0; turn < turns; turn++) {
        uint32_t tile = stage * Plan::QueryTile, square = place * Plan::Square;
        const float *of_row = (const float *)(smem + Plan::Numbers + stage * Plan::NumbersOfTile) +
                              first_number(query) + g;
        float LSE[Blocks][2], D_row[Blocks][2]; // both negative
#pragma unroll
        for (int b = 0; b < Blocks; b++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                LSE[b][half] = of_row[16 * b + 8 * half];
                D_row[b][half] = of_row[Apart + 16 * b + 8 * half];
            }

        //> rows
        float S[Blocks][Tiles][4] = {}, dP[Blocks][Tiles][4];
        multiply<T, D / 16>(
            S, [&](int r, int k) { return load<D>(Q_left + tile, r, k); },
            [&](int k, int n) { return load<D>(K_right, n, k); });
        if (now.i < unmasked) mask<false>(S, s, now.i + query, j0 + key);
        start_from_rows(dP, D_row);
        multiply<T, D / 16>(
            dP, [&](int r, int k) { return load<D>(Q_left + From_Q_to_dO + tile, r, k); },
            [&](int k, int n) { return load<D>(K_right + From_K_to_V, n, k); });

        fragment P[Blocks][Tiles / 2], dS[Blocks][Tiles / 2];
        weights_of_rows<T>(P, dS, S, dP, LSE, c);
        put<Bc>(dS_own + From_dS_to_P + square, P);
        put<Bc>(dS_own + square, dS);
        cp_async_wait_all();
        // P and dS are complete, the next turn's Q and dO have arrived, and all have read those of
        // the last turn.
        __syncthreads();
        if (turn + 2 < turns) copy_next(stage == 0 ? 2 : stage - 1);
        multiply<T, Br / 16>(
            dV,
            [&](int r, int k) {
                return load_transposed<Bc>(dS_down + From_dS_to_P + square, k, r);
            },
            [&](int k, int n) { return load_transposed<D>(Q_down + From_Q_to_dO + tile, k, n); });
        if constexpr (Plan::WithDQ) {
            float dQ[Plan::dQ_Rows / 16][Plan::dQ_Columns / 8][4] = {};
            multiply<T, Bc / 16>(
                dQ, [&](int r, int k) { return load<Bc>(dS_left + square, r, k); },
                [&](int k, int n) { return load_transposed<D>(K_down, k, n); });
            add_fragments<Threads>(dQ_sums + (size_t)(unsigned)(now.head * pitch + now.i) * D, dQ);
        }
        multiply<T, Br / 16>(
            dK, [&](int r, int k) { return load_transposed<Bc>(dS_down + square, k, r); },
            [&](int k, int n) { return load_transposed<D>(Q_down + tile, k, n); });
        //< rows
        now.advance(Br, first, s.Nq);
        stage = stage + 1 == Plan::Stages ? 0 : stage + 1;
        place ^= 1;
    }
    store_gradients<T, Plan>(dK_hbm + row_of_K * s.d, dV_hbm + row_of_K * s.d, dK, dV, key, column,
                             s.Nk - j0, s);
}

// ---- the host's side ----------------------------------------------------------------------------

// Which plans take this kernel: d = 128, where a block has shared memory for three stages.
template <class Plan> constexpr bool ByRows = Plan::D == 128 && Plan::Bc == 128 && Plan::OneBarrier;

template <class T, class Plan>
void launch_dK_dV(const attn_problem *p, const attn_tensors *t, const float *numbers,
                  float *dQ_sums) {
    if constexpr (!ByRows<Plan>) {
        launch_gradients<T, Plan>(p, t, numbers, dQ_sums);
    } else {
        unsigned grid = p->batch * p->kv_heads * ceil_div(p->seqlen_k, Plan::Bc);
        cudaFuncSetAttribute(gradients_rows<T, Plan>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             Plan::Smem);
        LAUNCH((gradients_rows<T, Plan>), grid, Plan::Threads, Plan::Smem, (const T *)t->Q,
               (const T *)t->K, (const T *)t->V, (const T *)t->dO, numbers, dQ_sums, (T *)t->dK,
               (T *)t->dV, shape_of(p), head_pitch(p));
    }
}

} // namespace step05::backward

#endif

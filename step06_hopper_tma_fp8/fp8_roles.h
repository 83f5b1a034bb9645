// fp8_roles.h - what rungs 7 to 9 share: rung 5's blocks, with their roles, on e4m3. 7_fp8.cu says
// what FP8 changes; what stands here are tiles, copies, products and softmax, each as rung 5 or
// hopper.h has it for 16 bits, and the host's side. What is the same for both is in schedule.h.
#ifndef STEP06_FP8_ROLES_H
#define STEP06_FP8_ROLES_H

#include "quantize.h"
#include "schedule.h"

#include <float.h>

namespace step06_fp8 {

// What is compiled for. d is padded to D.
template <int Columns, bool Mask, int Warpgroups, int Keys> struct tiling {
    static constexpr int D = Columns, Consumers = Warpgroups, Br = Consumers * Rows, Bc = Keys;
    static constexpr bool Causal = Mask;
    static constexpr unsigned QStages = D == 256 ? 1 : 2; // buffers for Q that fit beside K and V
    static constexpr int Threads = (1 + Consumers) * Warpgroup;
    static constexpr int ProducerRegisters = Consumers == 3 ? 32 : 24;
    static constexpr int ConsumerRegisters = Consumers == 3 ? 160 : 240;
    static_assert(ProducerRegisters + Consumers * ConsumerRegisters <=
                      (1 + Consumers) * (65536 / Threads / 8 * 8),
                  "setmaxnreg would wait for registers that the launch has not taken");
};

// O has two bytes for each element and Q8 one, so it has a place of its own here. And numbers come
// with the tiles: a scale for the rows of each consumer, and those of K and V.
template <class Tiling> struct memory {
    static constexpr int Q_bytes = Tiling::Br * Tiling::D, K_bytes = Tiling::Bc * Tiling::D;
    unsigned char Q[Tiling::QStages][Q_bytes], O[Tiling::QStages][Q_bytes * 2];
    unsigned char K[Stages][K_bytes], V[Stages][K_bytes];
    task todo[Tiling::QStages];
    float Q_scale[Tiling::QStages][Tiling::Consumers]; // come with Q
    float K_scale[Stages], V_scale[Stages];            // come with K
    // mbarriers (schedule.h). A buffer for Q is free again when its O has been stored.
    uint64_t Q_full[Tiling::QStages], O_full[Tiling::QStages], O_stored[Tiling::QStages];
    uint64_t K_full[Stages], K_empty[Stages], V_full[Stages], V_empty[Stages];
};

// ---- tiles of e4m3, and the two products --------------------------------------------------------

// A row of `columns` bytes lies in shared memory as panels of 128 bytes if they come out even, else
// of 64 or 32: the rows that TMA and wgmma can swizzle. 192 keys are three panels of 64.
__host__ __device__ constexpr int panel_of(int columns) {
    return columns % 128 == 0 ? 128 : columns % 64 == 0 ? 64 : 32;
}
__host__ __device__ constexpr tensor_swizzle swizzle_of(int panel) { return (tensor_swizzle)panel; }

// Starts the copy of R rows of Columns bytes, from column x and row y of the tensor on.
template <int R, int Columns>
__device__ inline void load_tile(unsigned char *tile, const CUtensorMap *map, uint64_t *full, int x,
                                 int y, int head) {
    constexpr int P = panel_of(Columns);
    mbarrier_arrive_expect_tx(full, R * Columns);
#pragma unroll
    for (int p = 0; p < Columns / P; p++)
        tma_load_3d(tile + p * R * P, map, full, x + p * P, y, head);
}

template <int Columns> __device__ inline uint64_t operand(const unsigned char *tile) {
    return wgmma_k_major(tile, swizzle_of(panel_of(Columns)));
}

// Where columns k to k + 31 begin, for wgmma, in a tile of R rows.
template <int R, int Columns> __device__ constexpr int column_bytes(int k) {
    constexpr int P = panel_of(Columns);
    return k / P * R * P + k % P;
}

// S = Q K^T is started for the 64 queries at `Q`, in a tile of Br rows; `K` has Bc rows.
template <class Tiling>
__device__ inline void start_QK(float (&S)[Tiling::Bc / 2], uint64_t Q, uint64_t K) {
    constexpr int D = Tiling::D;
#pragma unroll
    for (int k = 0; k < D; k += 32)
        wgmma_m64k32<Tiling::Bc>(S, wgmma_moved(Q, column_bytes<Tiling::Br, D>(k)),
                                 wgmma_moved(K, column_bytes<Tiling::Bc, D>(k)), k > 0);
}

// O += P V is started, or with `accumulate` 0, O = P V. V's tile has D rows, of Bc keys.
//> fp8-start-PV
template <class Tiling>
__device__ inline void start_PV(float (&O)[Tiling::D / 2], const uint32_t (&P)[Tiling::Bc / 32][4],
                                uint64_t V, bool accumulate) {
    constexpr int Bc = Tiling::Bc;
#pragma unroll
    for (int k = 0; k < Bc; k += 32)
        wgmma_m64k32<Tiling::D>(O, P[k / 32], wgmma_moved(V, column_bytes<Tiling::D, Bc>(k)),
                                accumulate || k > 0);
}
//< fp8-start-PV

// ---- rows: the softmax for P in e4m3 ------------------------------------------------------------

// Weights are at most 1, and e4m3 reaches from 2^-9 to 448. So P is 2^8 times the weight: the
// largest is 256, and those down to 2^-14 keep all 3 bits of fraction. O and l have the factor
// both, and only LSE sees it.
//
// Rung 5 puts rescaling off until a maximum has grown by 2^8; here there is room for 448 / 256,
// which is 2^0.807. It is still worth it: most tiles raise a maximum by nothing, or little.
//> fp8-offset
constexpr float Offset = FP8_P_OFFSET; // log2
constexpr float Growth = 0.8f;
//< fp8-offset
constexpr float Ln2 = 0.693147181f;

// What a thread knows of its two rows. m is scaled, as blocks of K can have different scales: it is
// the exponent, of 2, of the largest weight.
struct fp8_rows {
    float m[2] = {-INFINITY, -INFINITY}; // what the exponents of l and O are measured from
    float l[2] = {0, 0};                 // of the thread's own elements
    float factor[2];                     // by which O is to be multiplied
};

// Takes in the maxima of a tile. c S are the exponents. True if one of the warp's rows has grown by
// more than 2^growth; else the old m is good enough, and the factors are 1.
template <int Bc>
__device__ inline bool update_maxima(const float (&S)[Bc / 2], fp8_rows &r, float c,
                                     float growth = Growth) {
    float m[2];
    bool grown = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        m[half] = -INFINITY;
#pragma unroll
        for (int n = 0; n < Bc / 8; n++)
            m[half] = fmaxf(m[half], fmaxf(S[4 * n + 2 * half], S[4 * n + 2 * half + 1]));
        m[half] = fmaxf(r.m[half], c * max_of_quad(m[half]));
        grown |= m[half] - r.m[half] > growth; // NaN, from -infinity to -infinity, is not
        r.factor[half] = 1;
    }
    if (!__any_sync(~0u, grown)) return false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        r.factor[half] = exp2_approx(m[half] == -INFINITY ? 0 : r.m[half] - m[half]);
        r.m[half] = m[half];
        r.l[half] *= r.factor[half];
    }
    return true;
}

// S becomes the weights times 2^offset, and l their sum.
//> fp8-weights
template <int Bc>
__device__ inline void weights(float (&S)[Bc / 2], fp8_rows &r, float c, float offset = Offset) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float least = (r.m[half] == -INFINITY ? 0 : r.m[half]) - offset;
#pragma unroll
        for (int n = 0; n < Bc / 8; n++)
#pragma unroll
            for (int e = 4 * n + 2 * half; e < 4 * n + 2 * half + 2; e++) {
                S[e] = exp2_approx(c * S[e] - least);
                r.l[half] += S[e];
            }
    }
}
//< fp8-weights

// `units`: what O's unit was, in its new one.
template <int D> __device__ inline void rescale(float (&O)[D / 2], const fp8_rows &r, float units) {
    const float factor[2] = {r.factor[0] * units, r.factor[1] * units};
#pragma unroll
    for (int n = 0; n < D / 2; n++) O[n] *= factor[n / 2 % 2];
}

// The weights as a left operand: of 16 columns a lane has 2t, 2t + 1, 2t + 8, 2t + 9 of either row,
// and these become slots 4t to 4t + 3 (quantize.h).
//> fp8-operand
template <int Bc>
__device__ inline void to_operand(uint32_t (&P)[Bc / 32][4], const float (&S)[Bc / 2]) {
#pragma unroll
    for (int k = 0; k < Bc / 32; k++)
#pragma unroll
        for (int part = 0; part < 4; part++) { // row g or g + 8, of the first 16 or the last 16
            int e = 16 * k + 8 * (part / 2) + 2 * (part % 2);
            P[k][part] = pack_e4m3(S[e], S[e + 1], S[e + 4], S[e + 5]);
        }
}
//< fp8-operand

// ---- the producers, a thread for Q and K, and one for V -----------------------------------------

struct sources {
    const CUtensorMap &Q, &K, &V;
    const scalings &scales;
};

// The scales are asked for before the wait, and so are there when it ends.
template <class Tiling>
__device__ inline void load_K(memory<Tiling> &x, const sources &from, unsigned n, int j, int head) {
    unsigned stage = n % Stages;
    float K_scale = scale_of(from.scales.of[K], head, j * Tiling::Bc);
    float V_scale = scale_of(from.scales.of[V], head, j * Tiling::Bc);
    mbarrier_wait(&x.K_empty[stage], parity_of<Stages>(n) ^ 1);
    x.K_scale[stage] = K_scale;
    x.V_scale[stage] = V_scale;
    load_tile<Tiling::Bc, Tiling::D>(x.K[stage], &from.K, &x.K_full[stage], 0, j * Tiling::Bc,
                                     head);
}

template <class Tiling>
__device__ inline void load_V(memory<Tiling> &x, const sources &from, unsigned n, int j, int head) {
    unsigned stage = n % Stages;
    mbarrier_wait(&x.V_empty[stage], parity_of<Stages>(n) ^ 1);
    load_tile<Tiling::D, Tiling::Bc>(x.V[stage], &from.V, &x.V_full[stage], j * Tiling::Bc, 0,
                                     head);
}

template <class Tiling>
__device__ inline void load_Q(memory<Tiling> &x, const sources &from, const shape &s, task t,
                              unsigned stage) {
    for (int consumer = 0; consumer < Tiling::Consumers; consumer++) {
        int row = min(t.i0 + consumer * Rows, s.Nq - 1); // it may have none at all
        x.Q_scale[stage][consumer] = scale_of(from.scales.of[Q], t.bh, row);
    }
    load_tile<Tiling::Br, Tiling::D>(x.Q[stage], &from.Q, &x.Q_full[stage], 0, t.i0, t.bh);
}

template <class Tiling>
__device__ inline void produce_QK(memory<Tiling> &x, const sources &from, const shape &s,
                                  const schedule &order) {
    int tile = blockIdx.x, all = order.tiles * order.heads;
    for (unsigned nq = 0, nk = 0;; nq++) { // tiles of Q, and of K, so far
        unsigned stage = nq % Tiling::QStages;
        mbarrier_wait(&x.O_stored[stage], parity_of<Tiling::QStages>(nq) ^ 1);
        task t = tile < all ? task_of<Tiling>(s, order, tile) : task{-1};
        x.todo[stage] = t;
        if (t.bh < 0) { // the end: no Q comes
            mbarrier_arrive(&x.Q_full[stage]);
            return;
        }
        load_Q(x, from, s, t, stage);
        tile = tile_after(order, tile);
        for (int j = last_tile<Tiling>(t); j >= 0; j--) load_K(x, from, nk++, j, t.head);
    }
}

template <class Tiling> __device__ inline void produce_V(memory<Tiling> &x, const sources &from) {
    for (unsigned nq = 0, nk = 0;; nq++) {
        unsigned stage = nq % Tiling::QStages;
        mbarrier_wait(&x.Q_full[stage], parity_of<Tiling::QStages>(nq));
        task t = x.todo[stage];
        if (t.bh < 0) return;
        for (int j = last_tile<Tiling>(t); j >= 0; j--) load_V(x, from, nk++, j, t.head);
    }
}

// ---- the storer, one thread ---------------------------------------------------------------------

template <class Tiling>
__device__ inline void store_all(memory<Tiling> &x, const CUtensorMap &O_map, int d) {
    for (unsigned nq = 0;; nq++) {
        unsigned stage = nq % Tiling::QStages, parity = parity_of<Tiling::QStages>(nq);
        mbarrier_wait(&x.Q_full[stage], parity);
        task t = x.todo[stage];
        if (t.bh < 0) return;
        mbarrier_wait(&x.O_full[stage], parity);
        for (int p = 0; p * Panel < d; p++) // no panel that is only padding
            tma_store_3d(&O_map, x.O[stage] + p * Tiling::Br * PanelRow, p * Panel, t.i0, t.bh);
        tma_store_commit();
        tma_store_wait_read<0>();
        mbarrier_arrive(&x.O_stored[stage]);
    }
}

// ---- the consumers, a warpgroup each ------------------------------------------------------------

template <class Tiling> __device__ inline uint64_t wait_for_K(memory<Tiling> &x, unsigned n) {
    mbarrier_wait(&x.K_full[n % Stages], parity_of<Stages>(n));
    return operand<Tiling::D>(x.K[n % Stages]);
}

template <class Tiling> __device__ inline uint64_t wait_for_V(memory<Tiling> &x, unsigned n) {
    mbarrier_wait(&x.V_full[n % Stages], parity_of<Stages>(n));
    return operand<Tiling::Bc>(x.V[n % Stages]);
}

// What makes exponents of S: the scores' scale, log2(e), the scales of Q and K. Not 0, even if all
// that is scaled is tiny: 0 times the mask's -infinity would be NaN.
//> exponent-scale
template <class Tiling>
__device__ inline float exponent_scale(float c_Q, const memory<Tiling> &x, unsigned n) {
    return fmaxf(c_Q * x.K_scale[n % Stages], FLT_MIN);
}
//< exponent-scale

// O times `scale` / l to its place in shared memory, as bf16, and LSE to HBM. `first` is the
// warpgroup's first row of the tile.
template <class Tiling>
__device__ inline void leave(const float (&O)[Tiling::D / 2], const fp8_rows &r, float scale,
                             unsigned char *O_smem, float *LSE_hbm, const shape &s, task t,
                             int first, float offset = Offset) {
    int lane = threadIdx.x % Lanes, i = t.i0 + first + row_of_thread();
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++, i += 8) {
        float l = sum_of_quad(r.l[half]);
        inverse[half] = scale / (l > 0 ? l : 1); // a row that sees no key: O = 0
        if (lane % 4 == 0 && i < s.Nq)
            LSE_hbm[(size_t)t.bh * s.Nq + i] = Ln2 * (r.m[half] - offset) + logf(l);
    }
    // 16 rows of 16 columns at a time are four matrices of stmatrix. A lane gives the place of one
    // row of one of them: lanes 0 to 15 of the left two, the others of the right two.
    int row = first + threadIdx.x % Warpgroup / Lanes * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < Tiling::D; k += 16) {
        uint32_t matrices[4]; // left: rows 0 to 7, 8 to 15; right: the same
#pragma unroll
        for (int m = 0; m < 4; m++)
            matrices[m] = pack<__nv_bfloat16>(O[k / 2 + 2 * m] * inverse[m % 2],
                                              O[k / 2 + 2 * m + 1] * inverse[m % 2]);
        int piece = (k % Panel / 8 + lane / 16) ^ row % 8; // as TMA expects it: swizzled
        stmatrix_x4(O_smem + (k / Panel * Tiling::Br + row) * PanelRow + piece * 16, matrices);
    }
    fence_proxy_async(); // what this thread has stored is there for TMA
}

// ---- the host's side ----------------------------------------------------------------------------

// Of a tensor of bytes [heads, rows, columns], in boxes of box_rows rows and a panel's columns.
// Rows begin `pitch` bytes apart.
inline CUtensorMap map_of_bytes(const void *tensor, int heads, int rows, int columns, int box_rows,
                                int panel) {
    uint64_t pitch = pitch_of(columns);
    tensor_box box = {.base = tensor,
                      .element_bytes = 1,
                      .rank = 3,
                      .size = {pitch, (uint64_t)rows, (uint64_t)heads},
                      .stride = {1, pitch, pitch * rows},
                      .box = {(uint32_t)panel, (uint32_t)box_rows, 1},
                      .swizzle = swizzle_of(panel)};
    CUtensorMap map;
    char why[300];
    if (tensor_map_encode(&box, &map, why, sizeof why)) return map;
    fprintf(stderr, "%s\n", why);
    exit(3); // this machine cannot
}

inline int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    prepass_buffers(p, out);
    out[Next] = {.name = "tiles asked for", .bytes = 4, .passes = ATTN_FORWARD, .zeroed = true};
    return Next + p->causal;
}

// What the pre-pass and the attention kernel ask for. Rows of Q8, K8 and V8 are whole sectors, so
// that a tile is as many bytes as it has elements; those that lie outside count, too.
template <class Tiling> attn_traffic traffic(const attn_problem *p) {
    shape s = shape_of(p);
    const int heads = p->batch * p->heads, Br = Tiling::Br;
    attn_traffic sum = prepass_traffic(p);
    sum.tma_store = stored_bytes(p, Br);
    sum.atomic = counter_bytes(p, Br);
    for (int bh = 0; bh < heads; bh++)
        for (int i0 = 0; i0 < p->seqlen_q; i0 += Br) {
            uint64_t tiles = ceil_div(keys_seen(s, i0 + Br), Tiling::Bc);
            sum.tma_load += (Br + 2 * tiles * Tiling::Bc) * Tiling::D;
            sum.load += (Tiling::Consumers + 2 * tiles) * SECTOR; // scales
            sum.store += SECTOR * request_sectors(((uint64_t)bh * s.Nq + i0) * sizeof(float),
                                                  min(Br, s.Nq - i0) * sizeof(float),
                                                  8 * sizeof(float)); // LSE
        }
    return sum;
}

} // namespace step06_fp8

#endif

// quantize.h - the pre-pass of FP8 attention: bf16 Q, K and V become e4m3, and V is transposed.
//
// An e4m3 has 3 bits of fraction and reaches from 2^-9 to 448 (common/dtype.h). So a tensor is
// scaled until its largest element is 448: the whole tensor at once, each head, or each block of
// Block rows of a head (--fp8-scale; common/fp8.h has the rule). With --rotate rows of Q and K are
// multiplied by an orthogonal matrix before, the same for both: Q K^T stays what it was, and what
// stood in one column of a row is spread over all of them, so an outlier is none any more.
//
//     1  largest_of_blocks   reads Q, K, V; writes the largest element of each block of rows
//     2  largest_of_groups   of heads, or tensors (not for --fp8-scale block)
//     3  quantise            reads Q, K, V again; writes Q8, K8 and V8
//
// Both passes over the tensors are bound by HBM. Quantising alone would move 3 bytes for each
// element, 2 in and 1 out. What the largest element is can only be known after all have been seen,
// and that costs 2 bytes more.
//
// V8 is V^T: wgmma takes 8-bit operands along k only (K-major), and in P V, k is the key. So a row
// of V8 is a column of V, and keys are neighbours. They stand in another order, 16 by 16, and the
// reason is P. A lane has the accumulator S of these keys, and should give these as a left operand
// (t is the lane's place in its quad; ptx_sm90.h):
//
//     S     2t, 2t + 1   and 2t + 8, 2t + 9        columns of the accumulator, 8 by 8
//     P     4t, 4t + 1,      4t + 2, 4t + 3        slots of the operand, 16 by 16
//
// A sum over keys may be taken in any order. So nothing moves between lanes: the operand's slots
// are given S's keys in the order in which a lane has them, and V8 has its keys in the same order.
//
//     slot  0  1  2  3 | 4  5  6  7 | 8  9 10 11 |12 13 14 15
//     key   0  1  8  9 | 2  3 10 11 | 4  5 12 13 | 6  7 14 15
//     lane      t = 0  |    t = 1   |    t = 2   |    t = 3
//
#ifndef STEP06_QUANTIZE_H
#define STEP06_QUANTIZE_H

#include "fp8.h"
#include "hopper.h"

namespace step06_fp8 {

using namespace step06;

constexpr int Block = FP8_BLOCK;               // rows that a block of the pre-pass takes
constexpr int PrepassThreads = 128, Ahead = 4; // loads of a thread that are under way together
constexpr int Piece = 8; // columns that a lane takes at once: 16 bytes of bf16

struct tensor { // [heads, rows, d]
    const __nv_bfloat16 *x;
    int heads, rows;
};
enum which { Q, K, V };
struct tensors {
    tensor of[3]; // Q, K, V
    int d;
};

// Rows of Q8 and K8 are d columns and as many zeros as fill whole sectors: what a step of wgmma
// takes, too. So are rows of V8, which are keys.
__host__ __device__ inline int pitch_of(int columns) { return (columns + 31) / 32 * 32; }

__host__ __device__ inline int blocks_of_head(const tensor &t) {
    return (t.rows + Block - 1) / Block;
}
__host__ __device__ inline int blocks_of(const tensor &t) { return t.heads * blocks_of_head(t); }

// Which rows block n takes. Blocks are numbered through Q, K and V.
struct place {
    which tensor;
    int head, row;
};
__device__ inline place place_of(const tensors &t, int n) {
    int q = blocks_of(t.of[Q]), k = blocks_of(t.of[K]);
    which x = n < q ? Q : n < q + k ? K : V;
    n -= x == Q ? 0 : x == K ? q : q + k;
    int of_head = blocks_of_head(t.of[x]);
    return {x, n / of_head, n % of_head * Block};
}

// ---- pieces of rows -----------------------------------------------------------------------------

// bf16 is the upper half of fp32.
__device__ inline void to_floats(float (&x)[Piece], const uint4 &piece) {
    const uint32_t pairs[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(pairs[i] << 16);
        x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000);
    }
}

__device__ inline uint4 load_piece(const tensor &t, int d, int head, int row, int column) {
    uint4 piece = make_uint4(0, 0, 0, 0); // where the tensor has nothing
    if (row < t.rows && column < d)
        piece = *(const uint4 *)&t.x[((size_t)head * t.rows + row) * d + column];
    return piece;
}

// A thread has the same columns of each row that it takes; threads are neighbours in memory.
__device__ inline int column_of_thread(int d) {
    return threadIdx.x % (pitch_of(d) / Piece) * Piece;
}

// Calls use(piece, row) for the thread's pieces of a block's rows. All threads make as many calls;
// where there is no such row, it is t.rows.
template <class F>
__device__ inline void for_each_piece(const tensor &t, int d, int head, int first, F use) {
    const int of_row = pitch_of(d) / Piece, rows = PrepassThreads / of_row; // rows at a time
    const int mine = threadIdx.x / of_row, column = column_of_thread(d);
    for (int r0 = 0; r0 < Block; r0 += rows * Ahead) {
        uint4 piece[Ahead];
        int row[Ahead];
#pragma unroll
        for (int u = 0; u < Ahead; u++) {
            int r = r0 + u * rows + mine;
            row[u] = mine < rows && r < Block ? min(first + r, t.rows) : t.rows;
            piece[u] = load_piece(t, d, head, row[u], column);
        }
#pragma unroll
        for (int u = 0; u < Ahead; u++) use(piece[u], row[u]);
    }
}

// ---- rotation -----------------------------------------------------------------------------------

// Rows are multiplied by diag(signs) H / sqrt(d), where d is a power of two and H Hadamard's matrix
// (fp8.h). For n = 1, 2, 4, … each pair of elements n apart becomes its sum and its difference:
// log2(d) additions for an element, instead of d multiplications.
struct rotation {
    float sign[Piece]; // of the thread's columns
    int lanes;         // that have a row together
    float shorter;     // 1 / sqrt(d)
};
__device__ inline rotation rotation_of_thread(int d) {
    rotation r;
#pragma unroll
    for (int e = 0; e < Piece; e++) r.sign[e] = fp8_sign(column_of_thread(d) + e);
    r.lanes = d / Piece;
    r.shorter = 1 / sqrtf((float)d);
    return r;
}

// A lane has 8 columns, x; the next 8 are the next lane's.
//> rotate
__device__ inline void rotate(float (&x)[Piece], const rotation &r) {
#pragma unroll
    for (int e = 0; e < Piece; e++) x[e] *= r.sign[e];
#pragma unroll
    for (int n = 1; n < Piece; n *= 2)
#pragma unroll
        for (int e = 0; e < Piece; e++)
            if (!(e & n)) {
                float a = x[e], b = x[e + n];
                x[e] = a + b;
                x[e + n] = a - b;
            }
    for (int n = 1; n < r.lanes; n *= 2) {
        float sign = threadIdx.x & n ? -1 : 1; // the lane has the former of the two, or the latter
#pragma unroll
        for (int e = 0; e < Piece; e++) x[e] = __shfl_xor_sync(~0u, x[e], n) + sign * x[e];
    }
#pragma unroll
    for (int e = 0; e < Piece; e++) x[e] *= r.shorter;
}
//< rotate

// ---- the largest elements -----------------------------------------------------------------------

__device__ inline float max_of_warp(float x) {
#pragma unroll
    for (int bits = Lanes / 2; bits > 0; bits /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, bits));
    return x;
}

// Of all threads; only thread 0 is told.
__device__ inline float max_of_block(float x) {
    float *of_warps = (float *)smem;
    x = max_of_warp(x);
    if (threadIdx.x % Lanes == 0) of_warps[threadIdx.x / Lanes] = x;
    __syncthreads();
    x = 0;
    if (threadIdx.x == 0)
        for (unsigned warp = 0; warp < blockDim.x / Lanes; warp++) x = fmaxf(x, of_warps[warp]);
    return x;
}

// grid: blocks of Q, K and V
template <bool Rotate>
__global__ void __launch_bounds__(PrepassThreads)
    largest_of_blocks(const __grid_constant__ tensors t,
                      float *largest) { // [blocks of Q, K and V]
    place at = place_of(t, blockIdx.x);
    rotation turn = Rotate ? rotation_of_thread(t.d) : rotation{};
    float most = 0;
    for_each_piece(t.of[at.tensor], t.d, at.head, at.row, [&](const uint4 &piece, int) {
        float x[Piece];
        to_floats(x, piece);
        if (Rotate && at.tensor != V) rotate(x, turn);
#pragma unroll
        for (int e = 0; e < Piece; e++) most = fmaxf(most, fabsf(x[e]));
    });
    most = max_of_block(most);
    if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

// A tensor's blocks, cut into groups that share a scale.
struct grouping {
    int first[3];  // block of Q, K, V
    int groups[3]; // of each
    int size[3];   // blocks of a group
};

constexpr int GroupThreads = 512;

// grid: groups of Q, K and V
static __global__ void __launch_bounds__(GroupThreads)
    largest_of_groups(const float *of_blocks, float *largest, const __grid_constant__ grouping g) {
    int n = blockIdx.x, q = g.groups[Q], k = g.groups[K];
    which x = n < q ? Q : n < q + k ? K : V;
    n -= x == Q ? 0 : x == K ? q : q + k;
    const float *mine = of_blocks + g.first[x] + (size_t)n * g.size[x];
    float most = 0;
    for (int i0 = 0; i0 < g.size[x]; i0 += GroupThreads) {
        int i = i0 + threadIdx.x;
        if (i < g.size[x]) most = fmaxf(most, mine[i]);
    }
    most = max_of_block(most);
    if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

// Where the largest element is found from which a row's scale follows.
struct scaling {
    const float *largest;
    int head, block; // how much further on that of the next head is, and of the next block of rows
};
__device__ inline float largest_of(const scaling &s, int head, int row) {
    return s.largest[head * s.head + row / Block * s.block];
}
__device__ inline float scale_of(const scaling &s, int head, int row) {
    return fp8_scale_of(largest_of(s, head, row));
}

struct scalings {
    scaling of[3]; // Q, K, V
};

// ---- quantising ---------------------------------------------------------------------------------

template <bool Rotate>
__device__ inline void quantise_rows(const tensor &t, uint8_t *x8, int d, const place &at,
                                     float factor) {
    const int column = column_of_thread(d);
    rotation turn = Rotate ? rotation_of_thread(d) : rotation{};
    for_each_piece(t, d, at.head, at.row, [&](const uint4 &piece, int row) {
        float x[Piece];
        to_floats(x, piece);
        if (Rotate) rotate(x, turn);
#pragma unroll
        for (int e = 0; e < Piece; e++) x[e] *= factor;
        uint2 eight =
            make_uint2(pack_e4m3(x[0], x[1], x[2], x[3]), pack_e4m3(x[4], x[5], x[6], x[7]));
        size_t to = ((size_t)at.head * t.rows + row) * pitch_of(d) + column;
        if (row < t.rows) *(uint2 *)&x8[to] = eight;
    });
}

// Column `e` of a piece.
__device__ inline float element(const uint4 &piece, int e) {
    uint32_t pair = e < 4 ? e < 2 ? piece.x : piece.y : e < 6 ? piece.z : piece.w;
    return __uint_as_float(e % 2 ? pair & 0xffff0000 : pair << 16);
}

// A warp takes 64 columns of 64 keys; its lanes 8 columns of 16 keys each, a group of the order
// above. What a lane packs into one register, 4 slots, are elements of 4 rows: so packing them is
// all of the transposition.
__device__ inline void quantise_columns(const tensor &t, uint8_t *x8, int d, const place &at,
                                        float factor) {
    const int warp = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
    const int wide = (d + 63) / 64, pitch = pitch_of(t.rows);
    for (int n = warp; n < Block / 64 * wide; n += PrepassThreads / Lanes) {
        int column = n % wide * 64 + lane % 8 * Piece;
        int key = at.row + n / wide * 64 + lane / 8 * 16; // the first of 16
        uint4 piece[16];
#pragma unroll
        for (int k = 0; k < 16; k++) piece[k] = load_piece(t, d, at.head, key + k, column);
#pragma unroll
        for (int e = 0; e < Piece; e++) {
            //> transpose
            uint32_t slots[4];
#pragma unroll
            for (int k = 0; k < 8; k += 2)
                slots[k / 2] =
                    pack_e4m3(element(piece[k], e) * factor, element(piece[k + 1], e) * factor,
                              element(piece[k + 8], e) * factor, element(piece[k + 9], e) * factor);
            size_t to = ((size_t)at.head * d + column + e) * pitch + key;
            if (column < d && key < pitch)
                *(uint4 *)&x8[to] = make_uint4(slots[0], slots[1], slots[2], slots[3]);
            //< transpose
        }
    }
}

// grid: blocks of Q, K and V
template <bool Rotate>
__global__ void __launch_bounds__(PrepassThreads)
    quantise(const __grid_constant__ tensors t, const __grid_constant__ scalings s,
             uint8_t *Q8,                               // [heads, Nq, pitch]
             uint8_t *K8,                               // [heads, Nk, pitch]
             uint8_t *V8) {                             // [heads, d, pitch]
    place at = place_of(t, gridDim.x - 1 - blockIdx.x); // what was read last may still be in L2
    const tensor &x = t.of[at.tensor];
    float factor = fp8_factor(largest_of(s.of[at.tensor], at.head, at.row));
    if (at.tensor == V)
        quantise_columns(x, V8, t.d, at, factor);
    else
        quantise_rows<Rotate>(x, at.tensor == Q ? Q8 : K8, t.d, at, factor);
}

// ---- the host's side ----------------------------------------------------------------------------

inline tensors tensors_of(const attn_problem *p, const attn_tensors &x) {
    const int heads = p->batch * p->heads, kv_heads = p->batch * p->kv_heads;
    return {{{(const __nv_bfloat16 *)x.Q, heads, p->seqlen_q},
             {(const __nv_bfloat16 *)x.K, kv_heads, p->seqlen_k},
             {(const __nv_bfloat16 *)x.V, kv_heads, p->seqlen_k}},
            p->head_dim};
}

inline int blocks_of(const tensors &t) {
    return blocks_of(t.of[Q]) + blocks_of(t.of[K]) + blocks_of(t.of[V]);
}

// No groups where each block has a scale of its own.
inline grouping grouping_of(const attn_problem *p, const tensors &t) {
    grouping g = {};
    for (int x = Q, first = 0; x <= V; x++) {
        int blocks = blocks_of(t.of[x]);
        g.first[x] = first, first += blocks;
        if (p->fp8_scale == FP8_SCALE_BLOCK) continue;
        g.groups[x] = p->fp8_scale == FP8_SCALE_HEAD ? t.of[x].heads : 1;
        g.size[x] = blocks / g.groups[x];
    }
    return g;
}
inline int groups_of(const grouping &g) { return g.groups[Q] + g.groups[K] + g.groups[V]; }

// The workspace, in this order. `Largest` has groups, then blocks.
enum workspace { Q8, K8, V8, Largest, Next };
inline int prepass_buffers(const attn_problem *p, attn_buffer *out) {
    const tensors t = tensors_of(p, {});
    const int pitch = pitch_of(p->head_dim), largest = groups_of(grouping_of(p, t)) + blocks_of(t);
    const size_t rows = (size_t)t.of[Q].heads * p->seqlen_q, kv_heads = t.of[K].heads;
    const size_t bytes[] = {rows * pitch, kv_heads * p->seqlen_k * pitch,
                            kv_heads * p->head_dim * pitch_of(p->seqlen_k),
                            largest * sizeof(float)};
    static const char *const names[] = {"Q8", "K8", "V8", "largest elements"};
    for (int i = Q8; i <= Largest; i++)
        out[i] = {.name = names[i], .bytes = bytes[i], .passes = ATTN_FORWARD};
    return Next;
}

inline scalings scalings_of(const attn_problem *p, const attn_tensors *x) {
    const tensors t = tensors_of(p, *x);
    const grouping g = grouping_of(p, t);
    const bool heads = p->fp8_scale == FP8_SCALE_HEAD, blocks = p->fp8_scale == FP8_SCALE_BLOCK;
    scalings s;
    for (int i = Q, group = 0; i <= V; group += g.groups[i++])
        s.of[i] = {(const float *)x->buffer[Largest] + (blocks ? g.first[i] : group),
                   blocks  ? blocks_of_head(t.of[i])
                   : heads ? 1
                           : 0,
                   blocks};
    return s;
}

template <bool Rotate> void launch_prepass(const attn_problem *p, const attn_tensors *x) {
    const tensors t = tensors_of(p, *x);
    const grouping g = grouping_of(p, t);
    const int groups = groups_of(g), warps = PrepassThreads / Lanes;
    float *largest = (float *)x->buffer[Largest], *of_blocks = largest + groups;
    LAUNCH((largest_of_blocks<Rotate>), blocks_of(t), PrepassThreads, warps * sizeof(float), t,
           of_blocks);
    if (groups)
        LAUNCH(largest_of_groups, groups, GroupThreads, GroupThreads / Lanes * sizeof(float),
               of_blocks, largest, g);
    LAUNCH((quantise<Rotate>), blocks_of(t), PrepassThreads, 0, t, scalings_of(p, x),
           (uint8_t *)x->buffer[Q8], (uint8_t *)x->buffer[K8], (uint8_t *)x->buffer[V8]);
}

inline void prepass(const attn_problem *p, const attn_tensors *x) {
    (p->rotate ? launch_prepass<true> : launch_prepass<false>)(p, x);
}

// ---- bytes --------------------------------------------------------------------------------------

// Of the first n pieces of a block, rows as long as the pitch, those that the tensor has.
inline uint64_t pieces_of_tensor(uint64_t n, int d) {
    uint64_t of_row = pitch_of(d) / Piece, real = d / Piece, rest = n % of_row;
    return n / of_row * real + (rest < real ? rest : real);
}

// for_each_piece, for all blocks: what a warp's lanes load is a run of neighbours, as the padding
// has no place in the tensor.
inline uint64_t sectors_of_pieces(const tensor &t, int d) {
    const uint64_t of_row = pitch_of(d) / Piece, rows_at_a_time = PrepassThreads / of_row;
    uint64_t sum = 0;
    for (int head = 0; head < t.heads; head++)
        for (int first = 0; first < t.rows; first += Block) {
            uint64_t base = ((uint64_t)head * t.rows + first) * d * 2;
            uint64_t rows = min(Block, t.rows - first);
            for (uint64_t r0 = 0; r0 < rows; r0 += rows_at_a_time) {
                uint64_t n = r0 * of_row, end = min(rows, r0 + rows_at_a_time) * of_row;
                for (; n < end; n += Lanes) {
                    uint64_t from = pieces_of_tensor(n, d);
                    uint64_t to = pieces_of_tensor(min(n + Lanes, end), d);
                    sum += sectors(base + from * 16, (to - from) * 16);
                }
            }
        }
    return sum;
}

// quantise_columns loads 64 columns of a row at a time.
inline uint64_t sectors_of_columns(const tensor &t, int d) {
    uint64_t sum = 0;
    for (uint64_t row = 0; row < (uint64_t)t.heads * t.rows; row++)
        sum += request_sectors(row * d * 2, d * 2, 64 * 2);
    return sum;
}

inline attn_traffic prepass_traffic(const attn_problem *p) {
    const tensors t = tensors_of(p, {});
    const grouping g = grouping_of(p, t);
    const uint64_t groups = groups_of(g), blocks = blocks_of(t), pitch = pitch_of(p->head_dim);
    uint64_t load = 2 * sectors_of_pieces(t.of[Q], t.d) + 2 * sectors_of_pieces(t.of[K], t.d) +
                    sectors_of_pieces(t.of[V], t.d) + sectors_of_columns(t.of[V], t.d);
    for (int x = Q; x <= V; x++)
        for (int n = 0; n < g.groups[x]; n++)
            load += request_sectors((groups + g.first[x] + (uint64_t)n * g.size[x]) * sizeof(float),
                                    g.size[x] * sizeof(float), Lanes * sizeof(float));
    load += blocks * (PrepassThreads / Lanes); // each warp the block's largest
    uint64_t rows = (uint64_t)t.of[Q].heads * p->seqlen_q + (uint64_t)t.of[K].heads * p->seqlen_k;
    uint64_t columns = (uint64_t)t.of[V].heads * t.d;
    return {.load = load * SECTOR,
            .store = (blocks + groups) * SECTOR + rows * pitch + columns * pitch_of(p->seqlen_k)};
}

} // namespace step06_fp8

#endif

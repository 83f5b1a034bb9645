// backward.h - the pieces of which both backwards are made (rungs 8 and 9): tiles that come and go,
// fragments, products, P and dS in registers, and the kernel before all others.
#ifndef STEP05_BACKWARD_H
#define STEP05_BACKWARD_H

#include "swizzle.h"

#include <limits.h>

namespace step05::backward {

constexpr float Log2e = 1.44269504f;
constexpr int Bytes = 2; // of an element

// P = exp(scale S - LSE) as a power of two, of Unit scale S - Unit LSE: with log2(e) as the unit at
// once. But then LSE log2(e) is rounded once more than LSE is, and where logits go into the ten
// thousands, fp16 has enough digits to show it. So for fp16 the factor log2(e) comes last, which is
// one instruction more.
//> probability
template <class T> constexpr float Unit = std::is_same_v<T, __half> ? 1 : Log2e;

// c = Unit scale.
template <class T> __device__ inline float probability(float S, float minus_LSE, float c) {
    return exp2_approx(Log2e / Unit<T> * (c * S + minus_LSE));
}
//< probability

// ---- tiles --------------------------------------------------------------------------------------

// Starts copying `rows` rows of d elements; zeros for the rest of the Rows x D. A thread has the
// same chunk of every row that it copies.
template <class T, int Rows, int D, int Threads>
__device__ inline void start_copy(uint32_t tile, const T *hbm, int rows, int d) {
    constexpr int Step = Threads / (D / Chunk);
    static_assert(Rows % Step == 0);
    int c = threadIdx.x % (D / Chunk) * Chunk, first = threadIdx.x / (D / Chunk);
    int left = c < d ? rows - first : 0;
    const T *from = hbm + (size_t)first * d + c;
#pragma unroll
    for (int r = 0; r < Rows; r += Step) {
        cp_async_16(smem + tile + Bytes * swizzled<D>(first + r, c), from, r < left);
        from += (size_t)Step * d;
    }
}

// The first `rows` rows of a tile to HBM, 16 bytes a lane.
template <class T, int Rows, int D, int Threads>
__device__ inline void store_tile(T *hbm, uint32_t tile, int rows, int d) {
    constexpr int Step = Threads / (D / Chunk);
    int c = threadIdx.x % (D / Chunk) * Chunk, first = threadIdx.x / (D / Chunk);
    int left = c < d ? rows - first : 0;
    T *to = hbm + (size_t)first * d + c;
#pragma unroll
    for (int r = 0; r < Rows; r += Step) {
        if (r < left)
            *(uint4 *)to = *(const uint4 *)(smem + tile + Bytes * swizzled<D>(first + r, c));
        to += (size_t)Step * d;
    }
}

// Their sectors, of rows that a warp stores (or loads into registers), as many at once as its lanes
// have chunks of.
template <int D> uint64_t tile_sectors(uint64_t first, uint64_t rows, uint64_t d) {
    return stored_sectors(first, rows, d, Lanes / (D / Chunk));
}

// ---- fragments ----------------------------------------------------------------------------------

//> lanes
// ldmatrix_x4 takes 16 x 16 elements of a tile, each lane the address of 8 of them in a row. There
// are two orders of the four 8 x 8 matrices, and each can be transposed on the way:
//
//     operand      the tile holds     lanes       ldmatrix
//     left, A      A                  straight    as it is
//     left, A      A^T                crossed     transposed
//     right, B     B^T                crossed     as it is
//     right, B     B                  straight    transposed
//
// The functions give the lane's address for the 16 x 16 at (r, c) of a tile of rows of W elements
// that begins `tile` bytes after smem. Such an address is a number of 32 bits, a pointer one of 64.

template <int W> __device__ inline uint32_t straight(uint32_t tile, int r, int c) {
    int lane = threadIdx.x % Lanes;
    return tile + Bytes * swizzled<W>(r + lane % 16, c + lane / 16 * 8);
}

template <int W> __device__ inline uint32_t crossed(uint32_t tile, int r, int c) {
    int lane = threadIdx.x % Lanes;
    return tile + Bytes * swizzled<W>(r + lane / 16 * 8 + lane % 8, c + lane / 8 % 2 * 8);
}
//< lanes

// Where a lane's part of (r, c) lies, when `at` is where its part of (0, 0) does; for multiples
// of 8. Rows that are 8 apart are swizzled alike, and columns flip bits: so an address is computed
// once for each tile, and the others differ from it by constants.
template <int W> __device__ inline uint32_t moved(uint32_t at, int r, int c) {
    return (at ^ c % 64 * Bytes) + (r * W + c / 64 * 64) * Bytes;
}

template <int W> __device__ inline fragment load(uint32_t at, int r, int c) {
    fragment f;
    ldmatrix_x4(f.x, smem + moved<W>(at, r, c));
    return f;
}

template <int W> __device__ inline fragment load_transposed(uint32_t at, int r, int c) {
    fragment f;
    ldmatrix_x4_trans(f.x, smem + moved<W>(at, r, c));
    return f;
}

//> multiply
// C += A B for a warp's part of C, 16 Blocks rows and 8 Tiles columns, and 16 Steps columns of A.
// left(r, k) is A's fragment at row r, column k; right(k, c) is B's at row k, column c.
template <class T, int Steps, int Blocks, int Tiles, class Left, class Right>
__device__ inline void multiply(float (&C)[Blocks][Tiles][4], Left left, Right right) {
#pragma unroll
    for (int k = 0; k < Steps; k++) {
        fragment a[Blocks];
#pragma unroll
        for (int b = 0; b < Blocks; b++) a[b] = left(16 * b, 16 * k);
#pragma unroll
        for (int n = 0; n < Tiles; n += 2) {
            fragment x = right(16 * k, 8 * n);
#pragma unroll
            for (int b = 0; b < Blocks; b++) {
                mma_m16n8k16<T>(C[b][n], a[b].x, x.x[0], x.x[1]);
                mma_m16n8k16<T>(C[b][n + 1], a[b].x, x.x[2], x.x[3]);
            }
        }
    }
}
//< multiply

// Where a lane's two elements of the 8 x 8 at (r, c) of a product go; and so do those of an
// operand.
template <int W> __device__ inline uint32_t own(uint32_t tile, int r, int c) {
    int lane = threadIdx.x % Lanes;
    return tile + Bytes * (swizzled<W>(r + lane / 4, c) + lane % 4 * 2);
}

// Operands in 16 bits go to a tile, from where other warps take them: with stmatrix a fragment at
// once, and to_put gives the address of a row, as for ldmatrix; without it, in four stores, and it
// gives that of the lane's own elements.
template <int W> __device__ inline uint32_t to_put(uint32_t tile, int r, int c) {
    return HasStmatrix ? straight<W>(tile, r, c) : own<W>(tile, r, c);
}

template <int W, int Blocks, int Steps>
__device__ inline void put(uint32_t at, const fragment (&x)[Blocks][Steps]) {
#pragma unroll
    for (int b = 0; b < Blocks; b++)
#pragma unroll
        for (int k = 0; k < Steps; k++)
            if constexpr (HasStmatrix) {
                stmatrix_x4(smem + moved<W>(at, 16 * b, 16 * k), x[b][k].x);
            } else {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    *(uint32_t *)(smem + moved<W>(at, 16 * b + e % 2 * 8, 16 * k + e / 2 * 8)) =
                        x[b][k].x[e];
            }
}

// The same with sums in fp32, times a factor.
template <class T, int W, int Blocks, int Tiles>
__device__ inline void put(uint32_t at, const float (&C)[Blocks][Tiles][4], float factor) {
#pragma unroll
    for (int b = 0; b < Blocks; b++)
#pragma unroll
        for (int n = 0; n < Tiles; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(uint32_t *)(smem + moved<W>(at, 16 * b + 8 * half, 8 * n)) =
                    pack<T>(C[b][n][2 * half] * factor, C[b][n][2 * half + 1] * factor);
}

// ---- the weights --------------------------------------------------------------------------------

// P and dS of a warp's queries and keys, rounded, as left operands. minus_LSE: of the lane's rows.
template <class T, int Blocks, int Tiles>
__device__ inline void
weights_of_rows(fragment (&P)[Blocks][Tiles / 2], fragment (&dS)[Blocks][Tiles / 2],
                const float (&S)[Blocks][Tiles][4], const float (&dP)[Blocks][Tiles][4],
                const float (&minus_LSE)[Blocks][2], float c) {
#pragma unroll
    for (int b = 0; b < Blocks; b++)
#pragma unroll
        for (int n = 0; n < Tiles; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float left = probability<T>(S[b][n][2 * half], minus_LSE[b][half], c);
                float right = probability<T>(S[b][n][2 * half + 1], minus_LSE[b][half], c);
                int x = n % 2 * 2 + half;
                P[b][n / 2].x[x] = pack<T>(left, right);
                dS[b][n / 2].x[x] =
                    pack<T>(left * dP[b][n][2 * half], right * dP[b][n][2 * half + 1]);
            }
}

// The sums of dP start from -D of their row, which so costs nothing.
template <int Blocks, int Tiles>
__device__ inline void start_from_rows(float (&dP)[Blocks][Tiles][4],
                                       const float (&minus_D)[Blocks][2]) {
#pragma unroll
    for (int b = 0; b < Blocks; b++)
#pragma unroll
        for (int n = 0; n < Tiles; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) dP[b][n][e] = minus_D[b][e / 2];
}

// ---- the mask -----------------------------------------------------------------------------------

// -infinity where a query does not see a key, or there is no such key: exp2 makes 0 of it, whatever
// the LSE. i, j: the first query and the first key of the warp's part of S, or of its transpose,
// whose rows are keys.
template <bool Transposed, int Blocks, int Tiles>
__device__ inline void mask(float (&S)[Blocks][Tiles][4], const shape &s, int i, int j) {
    const int Never = 1 << 30;
    int g = threadIdx.x % Lanes / 4, t = threadIdx.x % Lanes % 4;
    int key0 = Transposed ? g : 2 * t, query0 = Transposed ? 2 * t : g; // of the lane's first
    int diagonal = s.causal ? i + query0 + s.Nk - s.Nq - j - key0 : Never;
    int keys = s.Nk - j - key0;
#pragma unroll
    for (int b = 0; b < Blocks; b++)
#pragma unroll
        for (int n = 0; n < Tiles; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = 16 * b + e / 2 * 8, c = 8 * n + e % 2;
                int key = Transposed ? r : c, query = Transposed ? c : r;
                if (key - query > diagonal || key >= keys) S[b][n][e] = -INFINITY;
            }
}

// ---- before all others --------------------------------------------------------------------------

// The numbers that there is one of for each row lie in HBM with `pitch` rows a head, a multiple of
// all tiles: so a tile's numbers begin at a multiple of 16 bytes, and rows past the end have some,
// too. Of these P is to be 0, as it is of rows that see nothing. There are two, -LSE and -D, and
// they alternate by 32 rows, so that both of a tile are one copy.
constexpr int Rows = 128; // a multiple of all Br
constexpr int Apart = 32; // a row's two numbers
__host__ __device__ constexpr size_t first_number(size_t row) { return row + row / Apart * Apart; }
inline int head_pitch(const attn_problem *p) { return (int)round_up(p->seqlen_q, Rows); }
inline uint64_t padded_rows(const attn_problem *p) {
    return (uint64_t)p->batch * p->heads * head_pitch(p);
}

// The kernels number rows, and numbers, in 32 bits.
inline bool countable(const attn_problem *p, char *why, size_t why_size) {
    if (padded_rows(p) < 1u << 31) return true;
    snprintf(why, why_size,
             "batch x heads is %llu, and each has at least %d rows here: more than 2^31 rows; make "
             "one of them smaller",
             (unsigned long long)p->batch * p->heads, Rows);
    return false;
}

__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

//> prepare
// For each row -LSE in its unit, or -infinity where P is 0, and -D, D = rowsum(dO o O), from which
// dP can start. Clears also makes zeros of the sums for dQ, of as many rows as the block has.
// grid: padded rows / RowsOfBlock; D / 8 lanes a row
constexpr int PrepareThreads = 256;
template <class T, int D, bool Clears>
__global__ void __launch_bounds__(PrepareThreads)
    prepare(const T *O_hbm,       // [B, H, Nq, d]
            const T *dO_hbm,      // [B, H, Nq, d]
            const float *LSE_hbm, // [B, H, Nq]
            float *numbers,       // [B, H, pitch / 32, 2, 32]: -LSE in its unit, -D
            float *sums,          // [B, H, pitch, D]
            shape s, int pitch) {
    constexpr int LanesOfRow = D / Chunk;
    size_t row = blockIdx.x * (size_t)(PrepareThreads / LanesOfRow) + threadIdx.x / LanesOfRow;
    int c = threadIdx.x % LanesOfRow * Chunk, i = row % pitch;
    size_t row_hbm = row / pitch * s.Nq + i;
    __align__(16) T O[Chunk] = {}, dO[Chunk] = {};
    if (i < s.Nq && c < s.d) {
        *(uint4 *)O = *(const uint4 *)&O_hbm[row_hbm * s.d + c];
        *(uint4 *)dO = *(const uint4 *)&dO_hbm[row_hbm * s.d + c];
    }
    float sum = 0;
    for (int n = 0; n < Chunk; n++) sum += to_float(O[n]) * to_float(dO[n]);
    for (int bit = 1; bit < LanesOfRow; bit *= 2) sum += __shfl_xor_sync(~0u, sum, bit);
    if (c == 0) {
        float LSE = i < s.Nq ? LSE_hbm[row_hbm] : -INFINITY;
        numbers[first_number(row)] = LSE == -INFINITY ? -INFINITY : -Unit<T> * LSE;
        numbers[first_number(row) + Apart] = -sum;
    }
    if constexpr (Clears)
        for (int half = 0; half < 2; half++) {
            size_t n = (blockIdx.x * (size_t)2 + half) * PrepareThreads + threadIdx.x;
            *(float4 *)&sums[4 * n] = make_float4(0, 0, 0, 0);
        }
}
//< prepare

template <int D> attn_traffic prepare_traffic(const attn_problem *p, bool clears) {
    const uint64_t at_once = Lanes / (D / Chunk), requests = padded_rows(p) / at_once;
    uint64_t load = 0, store = 2 * requests; // a request is less than a sector
    for (uint64_t bh = 0; bh < (uint64_t)p->batch * p->heads; bh++) {
        uint64_t first = bh * p->seqlen_q;
        load += 2 * tile_sectors<D>(first, p->seqlen_q, p->head_dim);
        load += request_sectors(first * sizeof(float), p->seqlen_q * sizeof(float),
                                at_once * sizeof(float));
    }
    if (clears) store += padded_rows(p) * D * sizeof(float) / SECTOR;
    return {.load = load * SECTOR, .store = store * SECTOR};
}

template <class T, int D, bool Clears>
void launch_prepare(const attn_problem *p, const attn_tensors *t, float *numbers, float *sums) {
    unsigned grid = padded_rows(p) / (PrepareThreads / (D / Chunk));
    LAUNCH((prepare<T, D, Clears>), grid, PrepareThreads, 0, (const T *)t->O, (const T *)t->dO,
           t->LSE, numbers, sums, shape_of(p), head_pitch(p));
}

} // namespace step05::backward

#endif

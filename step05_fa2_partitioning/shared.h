// shared.h - what the rungs of this step share and none of them changes: the shapes that they take,
// the rows that lanes hold, the bytes that move.
//
// With mma.m16n8k16 (common/ptx.h) a warp multiplies tiles of 16 x 16 and 16 x 8. Of every 16 rows
// of S and O, lane l holds parts of two: row l / 4 and row l / 4 + 8. Four neighbouring lanes, a
// quad, hold a whole row together.
#ifndef STEP05_SHARED_H
#define STEP05_SHARED_H

#include "ptx.h"
#include "shape.h"

namespace step05 {

constexpr int Lanes = 32;
constexpr int Bc = 64; // keys of a tile, in rungs 2 to 6

// ---- rows --------------------------------------------------------------------------------------

__device__ inline float max_of_quad(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ inline float sum_of_quad(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// How many keys some query before `end` sees: 0 .. Nk. With a causal mask, those of the last one.
__host__ __device__ inline int keys_seen(const shape &s, int end) {
    if (!s.causal) return s.Nk;
    int last = end < s.Nq ? end : s.Nq, keys = last + s.Nk - s.Nq;
    return keys > 0 ? keys : 0;
}

// ---- the host's side ---------------------------------------------------------------------------

// The rungs on the way take the two head dimensions that are common, the last one takes all. Rows:
// of 16-bit elements that a block has in shared memory.
template <int Rows>
bool takes_64_and_128(const attn_problem *p, unsigned, char *why, size_t why_size) {
    if (p->head_dim == 64 || p->head_dim == 128)
        return fits(p, (size_t)Rows * p->head_dim * 2, why, why_size);
    snprintf(why, why_size, "d = %d: this rung takes 64 and 128; --kernel fa2 takes all",
             p->head_dim);
    return false;
}

// Calls launch<T, D>(p, t) for the problem's data type and head dimension.
#define STEP05_DISPATCH(launch, p, t)                                                              \
    do {                                                                                           \
        bool fp16 = (p)->dtype == ATTN_FP16, narrow = (p)->head_dim == 64;                         \
        (fp16     ? narrow ? launch<__half, 64> : launch<__half, 128>                              \
             : narrow ? launch<__nv_bfloat16, 64>                                                  \
                  : launch<__nv_bfloat16, 128>)(p, t);                                             \
    } while (0)

// Rows of d elements of 2 bytes are whole sectors only if d is a multiple of 16. So: the sectors of
// `rows` rows from row `first` of a tensor, copied by cp.async to rows of their own; and loaded or
// stored in requests of a warp, `at_once` rows each.
inline uint64_t copied_sectors(uint64_t first, uint64_t rows, uint64_t d) {
    uint64_t sum = 0;
    for (uint64_t r = first; r < first + rows; r++) sum += copy_sectors(r * d * 2, d * 2);
    return sum;
}
inline uint64_t stored_sectors(uint64_t first, uint64_t rows, uint64_t d, uint64_t at_once) {
    return request_sectors(first * d * 2, rows * d * 2, at_once * d * 2);
}

// What a forward with one block for each Br queries asks for. K and V are read by every block, as
// far as it sees. O leaves in pieces of O_piece bytes, LSE in requests of LSE_rows rows, or where
// LSE_rows is 0, each row by itself.
inline attn_traffic forward_traffic(const attn_problem *p, int Br, int Bc, uint64_t O_piece,
                                    uint64_t LSE_rows) {
    shape s = shape_of(p);
    uint64_t Nq = s.Nq, row = s.d * attn_dtype_bytes(p->dtype), keys = 0, LSE = 0;
    uint64_t heads = (uint64_t)p->batch * p->heads, request = LSE_rows * sizeof(float);
    for (int i0 = 0; i0 < s.Nq; i0 += Br) {
        uint64_t seen = round_up(keys_seen(s, i0 + Br), Bc);
        keys += seen < (uint64_t)s.Nk ? seen : s.Nk;
    }
    for (uint64_t bh = 0; bh < heads; bh++)
        for (int i0 = 0; i0 < s.Nq; i0 += Br) {
            uint64_t rows = Br < s.Nq - i0 ? Br : s.Nq - i0;
            LSE += request ? request_sectors((bh * Nq + i0) * sizeof(float), rows * sizeof(float),
                                             request)
                           : rows;
        }
    uint64_t O = Nq * row / O_piece * ceil_div(O_piece, SECTOR);
    return {.load = heads * (Nq + 2 * keys) * row, .store = (heads * O + LSE) * SECTOR};
}

} // namespace step05

#endif

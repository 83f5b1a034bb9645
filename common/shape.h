// shape.h - what a block needs, besides blockIdx, to find its head in the tensors and to mask its
// scores. Kernels take it by value, beside plain pointers.
#ifndef SHAPE_H
#define SHAPE_H

#include "kernel.h"

struct shape {
    int heads, kv_heads; // H, Hkv
    int Nq, Nk, d;
    bool causal;
    float scale;
    int pitch; // steps 00 to 02: elements from one row of S or P in HBM to the next
};

// S and P have rows of Nk elements, padded to whole 32-byte sectors. So every row starts a sector,
// a warp's 32 elements are 4 sectors whatever the row, and the traffic has a closed form.
inline int row_pitch(const attn_problem *p) {
    return (int)round_up(p->seqlen_k, SECTOR / sizeof(float));
}

inline shape shape_of(const attn_problem *p) {
    return {p->heads,    p->kv_heads, p->seqlen_q, p->seqlen_k,
            p->head_dim, p->causal,   p->scale,    row_pitch(p)};
}

// For `supports`: a block takes `bytes` of shared memory for this problem. Are they there?
inline bool fits(const attn_problem *p, size_t bytes, char *why, size_t why_size) {
    if (bytes <= p->smem) return true;
    snprintf(why, why_size,
             "%zu bytes of shared memory are too few: at d = %d a block takes %zu (--sram)",
             p->smem, p->head_dim, bytes);
    return false;
}

// Query heads that share one key/value head.
__device__ inline int group(const shape &s) { return s.heads / s.kv_heads; }

// The key/value head that query head `bh` of [B * H] reads: heads / kv_heads neighbours share one.
__device__ inline size_t kv_head(const shape &s, int bh) {
    int b = bh / s.heads, h = bh % s.heads;
    return (size_t)b * s.kv_heads + h / group(s);
}

// Does query i see key j? Keys beyond the last are seen by nobody. The mask is aligned
// bottom-right: the last query sees the last key.
__device__ inline bool visible(const shape &s, int i, int j) {
    return j < s.Nk && (!s.causal || j <= i + s.Nk - s.Nq);
}

#endif

// shape.h - what a block needs, besides blockIdx, to find its head in the tensors and to mask its
// scores. Kernels take it by value, beside plain pointers.
#ifndef SHAPE_H
#define SHAPE_H

#include "kernel.h"
#include "refuse.h"

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

// For `supports`: a block takes at least `bytes` of shared memory for this problem. Are they there?
// If not, that is --sram's fault, or the machine's.
inline bool fits(const attn_problem *p, size_t bytes, char *why, size_t why_size) {
    const char *format =
        "a block needs at least %zu bytes of shared memory at d = %d, and %s gives %zu; %s";
    if (bytes <= p->smem) return true;
    if (p->smem_given)
        return refuse(why, why_size, format, bytes, p->head_dim, "--sram", p->smem,
                      "give a larger --sram, or try a smaller -d");
    return refuse_memory(why, why_size, format, bytes, p->head_dim, "this machine", p->smem,
                         "try a smaller -d, or DEVICE=sim, which gives 227 KB");
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

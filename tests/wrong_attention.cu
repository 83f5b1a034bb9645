// wrong_attention.cu - one attention kernel, right or with one fault, to try the checks on.
//
// One thread per query and no workspace. Not registered: it is no step, and no program lists it.

#include "wrong_attention.h"
#include "kernel.h"

namespace wrong {

static fault planted;
static int runs;

__device__ inline float logit(const float *q, const float *k, int d, float scale) {
    float dot = 0;
    for (int c = 0; c < d; c++) dot += q[c] * k[c];
    return scale * dot;
}

// grid: one block of one thread per query of [B, H, Nq]
__global__ void attention(const float *Q, const float *K, const float *V, float *O, float *LSE,
                          attn_problem p, fault f, float nudge) {
    if (f == RETURNS_AT_ONCE) return;
    int row = blockIdx.x, i = row % p.seqlen_q, bh = row / p.seqlen_q, h = bh % p.heads,
        d = p.head_dim;
    int kv = f == IGNORES_KV_GROUPS ? h % p.kv_heads : h / (p.heads / p.kv_heads);
    const float *q = Q + (size_t)row * d;
    size_t head = ((size_t)(bh / p.heads) * p.kv_heads + kv) * p.seqlen_k * d;

    int seen = attn_visible_keys(&p, i) + (f == MASK_OFF_BY_ONE);
    if (seen > p.seqlen_k) seen = p.seqlen_k;
    if (f == SKIPS_THE_TAIL) seen = min(seen, p.seqlen_k / 32 * 32);
    float scale = f == WRONG_SCALE ? p.scale * p.scale : p.scale;

    float m = -INFINITY, l = 0;
    for (int j = 0; j < seen; j++) m = fmaxf(m, logit(q, K + head + (size_t)j * d, d, scale));
    for (int j = 0; j < seen; j++) l += expf(logit(q, K + head + (size_t)j * d, d, scale) - m);
    for (int c = 0; c < d; c++) {
        float o = 0;
        for (int j = 0; j < seen; j++)
            o += expf(logit(q, K + head + (size_t)j * d, d, scale) - m) *
                 V[head + (size_t)j * d + c];
        O[(size_t)row * d + c] = seen ? o / l * nudge : 0;
    }
    if (f == WRITES_NAN && row == 0) O[d - 1] = NAN;
    float lse = seen ? m + logf(l) : -INFINITY;
    LSE[row] = f == WRONG_LSE_BASE ? lse * 1.4426950f : lse;
}

__global__ void extra(const float *Q, float *LSE) {
    if (Q[0] == 12345) LSE[0] = 0;
}

static void forward(const attn_problem *p, const attn_tensors *t) {
    float nudge = planted == DEPENDS_ON_THE_RUN && runs++ % 2 ? 1.0000001f : 1;
    LAUNCH(attention, attn_rows(p), 1, 0, (const float *)t->Q, (const float *)t->K,
           (const float *)t->V, (float *)t->O, t->LSE, *p, planted, nudge);
    if (planted == TOO_MUCH_TRAFFIC) LAUNCH(extra, 1, 1, 0, (const float *)t->Q, t->LSE);
}

// One lane, so each load is a sector: for every visible pair, d + 2 dot products of 2 d loads, and
// d of V.
static attn_traffic model(const attn_problem *p, unsigned) {
    uint64_t d = p->head_dim, pairs = attn_visible_pairs(p);
    return {.load = pairs * ((d + 2) * 2 * d + d) * SECTOR,
            .store = attn_rows(p) * (d + 1) * SECTOR};
}

static const attn_kernel kernel = {
    .step = "wrong",
    .name = "wrong",
    .idea = "a fault",
    .formula = "",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .forward = forward,
    .model = model,
};

} // namespace wrong

const struct attn_kernel *wrong_attention(enum fault f) {
    wrong::planted = f;
    wrong::runs = 0;
    return &wrong::kernel;
}

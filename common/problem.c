// problem.c - the sizes that follow from a problem, and the problems that the harness defines.
//
// Every product here is 64-bit. attn_problem_check bounds B * H * max(Nq, Nk) by 2^31, and with
// N <= 2^24 and d <= 256 the largest number below, the visible pairs, stays under 2^55.
#include "attn.h"
#include "refuse.h"

#include <math.h>

enum {
    MAX_COUNT = 65535,     // batch and heads: the largest gridDim.y and gridDim.z
    MAX_SEQLEN = 16777216, // 2^24
    MAX_ROWS = 2147483647, // B * H * N: kernels may number rows and keys with an int
    MAX_HEAD_DIM = 256,
};

size_t attn_dtype_bytes(enum attn_dtype dtype) {
    return dtype == ATTN_FP32 ? 4 : 2; // FP8 too: its inputs and its output are 16-bit
}

const char *attn_dtype_name(enum attn_dtype dtype) {
    static const char *const names[ATTN_DTYPES] = {"fp32", "fp16", "bf16", "fp8"};
    return names[dtype];
}

const char *fp8_scale_name(enum fp8_scale scale) {
    static const char *const names[] = {"tensor", "head", "block"};
    return names[scale];
}

uint64_t attn_rows(const struct attn_problem *p) {
    return (uint64_t)p->batch * p->heads * p->seqlen_q;
}

uint64_t attn_q_elements(const struct attn_problem *p) { return attn_rows(p) * p->head_dim; }

uint64_t attn_kv_elements(const struct attn_problem *p) {
    return (uint64_t)p->batch * p->kv_heads * p->seqlen_k * p->head_dim;
}

// Under the causal mask the last n = min(Nq, Nk) queries see Nk-n+1, ..., Nk keys and the others,
// which exist when Nq > Nk, see none: n (Nk-n) + (1 + 2 + ... + n) pairs.
static uint64_t visible_pairs_of_a_head(const struct attn_problem *p) {
    uint64_t nq = p->seqlen_q, nk = p->seqlen_k;
    if (!p->causal) return nq * nk;
    uint64_t n = nq < nk ? nq : nk;
    return n * (nk - n) + n * (n + 1) / 2;
}

uint64_t attn_visible_pairs(const struct attn_problem *p) {
    return (uint64_t)p->batch * p->heads * visible_pairs_of_a_head(p);
}

// What any algorithm has to move, however large its cache: each input read once, each output
// written once. The forward reads Q, K, V and writes O, LSE; the backward reads Q, K, V, O, dO,
// LSE and writes dQ, dK, dV.
uint64_t attn_compulsory_bytes(const struct attn_problem *p, unsigned pass) {
    uint64_t q = attn_q_elements(p) * attn_dtype_bytes(p->dtype);   // also O, dO, dQ
    uint64_t kv = attn_kv_elements(p) * attn_dtype_bytes(p->dtype); // K or V, dK or dV
    uint64_t lse = attn_rows(p) * sizeof(float);
    uint64_t bytes = 0;
    if (pass & ATTN_FORWARD) bytes += 2 * q + 2 * kv + lse;
    if (pass & ATTN_BACKWARD) bytes += 4 * q + 4 * kv + lse;
    return bytes;
}

// Two matrix products of 2 d operations a pair in the forward (QK^T, PV), five in the backward
// (QK^T again, dO V^T, P^T dO, dS K, dS^T Q). Softmax is not counted, as in the papers.
double attn_flops(const struct attn_problem *p, unsigned pass) {
    double product = 2.0 * p->head_dim * (double)attn_visible_pairs(p);
    return (pass & ATTN_FORWARD ? 2 * product : 0) + (pass & ATTN_BACKWARD ? 5 * product : 0);
}

static bool check_range(const char *option, int value, int most, char *why, size_t why_size) {
    if (value >= 1 && value <= most) return true;
    return refuse(why, why_size, "--%s %d: must be 1 .. %d", option, value, most);
}

static bool check_shape(const struct attn_problem *p, char *why, size_t why_size) {
    return check_range("batch", p->batch, MAX_COUNT, why, why_size) &&
           check_range("heads", p->heads, MAX_COUNT, why, why_size) &&
           check_range("kv-heads", p->kv_heads, MAX_COUNT, why, why_size) &&
           check_range("seqlen-q", p->seqlen_q, MAX_SEQLEN, why, why_size) &&
           check_range("seqlen-k", p->seqlen_k, MAX_SEQLEN, why, why_size);
}

static bool check_head_dim(const struct attn_problem *p, char *why, size_t why_size) {
    if (p->head_dim >= 8 && p->head_dim <= MAX_HEAD_DIM && p->head_dim % 8 == 0) return true;
    return refuse(why, why_size, "--head-dim %d: must be a multiple of 8, 8 .. %d", p->head_dim,
                  MAX_HEAD_DIM);
}

static bool check_rotation(const struct attn_problem *p, char *why, size_t why_size) {
    if (!p->rotate || (p->head_dim & (p->head_dim - 1)) == 0) return true;
    return refuse(why, why_size,
                  "--head-dim %d: must be a power of two with --rotate, which has a fast transform",
                  p->head_dim);
}

static bool check_groups(const struct attn_problem *p, char *why, size_t why_size) {
    if (p->heads % p->kv_heads == 0) return true;
    return refuse(why, why_size, "--heads %d: must be a multiple of --kv-heads %d", p->heads,
                  p->kv_heads);
}

static bool check_rows(const struct attn_problem *p, char *why, size_t why_size) {
    int longest = p->seqlen_q > p->seqlen_k ? p->seqlen_q : p->seqlen_k;
    uint64_t rows = (uint64_t)p->batch * p->heads * longest;
    if (rows <= MAX_ROWS) return true;
    return refuse(
        why, why_size,
        "--batch x --heads x --seqlen: %llu rows, must be 1 .. %d; make one of them smaller",
        (unsigned long long)rows, MAX_ROWS);
}

static bool check_numbers(const struct attn_problem *p, char *why, size_t why_size) {
    if (!(isfinite(p->scale) && p->scale > 0)) {
        return refuse(why, why_size, "--scale %g: must be finite and above 0", p->scale);
    }
    if ((unsigned)p->dtype < ATTN_DTYPES) return true;
    return refuse(why, why_size, "dtype number %d is unknown: give 0 to %d", (int)p->dtype,
                  ATTN_DTYPES - 1);
}

int attn_problem_check(const struct attn_problem *p, char *why, size_t why_size) {
    bool ok = check_shape(p, why, why_size) && check_head_dim(p, why, why_size) &&
              check_rotation(p, why, why_size) && check_groups(p, why, why_size) &&
              check_rows(p, why, why_size) && check_numbers(p, why, why_size);
    return ok ? 0 : -1;
}

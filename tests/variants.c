// variants.c - kernels that the tests of the command line add to step00: what --kernel, --list and
// the columns of the report make of variants. They compute with the naive kernel, but for one of
// FP8.

#include "dtype.h"
#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Looked up when the program runs: before main(), it may not be registered yet.
static const struct attn_kernel *naive(void) {
    for (int i = 0; i < attn_kernel_count(); i++)
        if (!strcmp(attn_kernel_at(i)->name, "naive")) return attn_kernel_at(i);
    return NULL;
}

static void forward(const struct attn_problem *p, const struct attn_tensors *t) {
    naive()->forward(p, t);
}

static struct attn_traffic model(const struct attn_problem *p, unsigned pass) {
    return naive()->model(p, pass);
}

static int buffers(const struct attn_problem *p, struct attn_buffer out[ATTN_MAX_BUFFERS]) {
    return naive()->buffers(p, out);
}

// The same buffers, none of which is said to hold a matrix; but, faults for the tests, with 13
// queries the first, S, and with 1013 the second, P, to hold zeros afterwards.
static int plain_buffers(const struct attn_problem *p, struct attn_buffer out[ATTN_MAX_BUFFERS]) {
    int count = naive()->buffers(p, out);
    for (int i = 0; i < count; i++) out[i].matrix = false;
    out[0].zeroed = p->seqlen_q == 13;
    if (count > 1) out[1].zeroed = p->seqlen_q == 1013;
    return count;
}

static void describe(const struct attn_problem *p, unsigned pass, char *text, size_t size) {
    (void)pass;
    snprintf(text, size, "Br 8, \"Bc\" %d", p->seqlen_k);
}

static bool only_64(const struct attn_problem *p, unsigned pass, char *why, size_t why_size) {
    (void)pass;
    if (p->head_dim == 64) return true;
    snprintf(why, why_size, "takes d = 64 alone");
    return false;
}

// Faults for the tests, in a kernel whose outputs are right: with 13 queries it says that it asks
// for a sector more than it does.
static struct attn_traffic model_of_13(const struct attn_problem *p, unsigned pass) {
    struct attn_traffic t = model(p, pass);
    if (p->seqlen_q == 13) t.load += SECTOR;
    return t;
}

static const struct attn_kernel described = {
    .step = "step00_naive",
    .rung = 2,
    .name = "naive-described",
    .idea = "says how it cuts the problem up",
    .formula = "as naive",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .variant = true,
    .describe = describe,
    .buffers = buffers,
    .forward = forward,
    .model = model_of_13,
};

// Forgets the causal mask.
static void forward_unmasked(const struct attn_problem *p, const struct attn_tensors *t) {
    struct attn_problem unmasked = *p;
    unmasked.causal = false;
    forward(&unmasked, t);
}

static const struct attn_kernel unmasked = {
    .step = "step00_naive",
    .rung = 5,
    .name = "naive-unmasked",
    .idea = "forgets the mask",
    .formula = "as naive",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .variant = true,
    .buffers = buffers,
    .forward = forward_unmasked,
    .model = model,
};

static const struct attn_kernel choosy = {
    .step = "step00_naive",
    .rung = 3,
    .name = "naive-64",
    .idea = "takes one head dimension, and has no matrices",
    .formula = "as naive",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .variant = true,
    .supports = only_64,
    .buffers = plain_buffers,
    .forward = forward,
    .model = model,
};

// Of a machine that neither the simulator nor anybody has; on it, of one head dimension alone.
static const struct attn_kernel newer = {
    .step = "step00_naive",
    .rung = 6,
    .name = "naive-newer",
    .idea = "needs a newer machine",
    .formula = "as naive",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .variant = true,
    .least_sm = 200,
    .supports = only_64,
    .buffers = buffers,
    .forward = forward,
    .model = model,
};

// The FP8 baseline itself: device memory is the host's in the simulator. It launches nothing.
static void on_host(const struct attn_problem *p, const struct attn_tensors *t) {
    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p);
    struct inputs in = {malloc(4 * q), malloc(4 * kv), malloc(4 * kv), NULL};
    float *O = malloc(4 * q);
    if (!in.Q || !in.K || !in.V || !O) abort();
    dtype_unpack(p->dtype, t->Q, in.Q, q);
    dtype_unpack(p->dtype, t->K, in.K, kv);
    dtype_unpack(p->dtype, t->V, in.V, kv);
    baseline_forward(p, &in, O, t->LSE);
    if (p->seqlen_q == 13) O[8] = 100; // a fault for the tests
    dtype_pack(p->dtype, O, t->O, q);
    free(O);
    inputs_free(&in);
}

static struct attn_traffic no_traffic(const struct attn_problem *p, unsigned pass) {
    (void)p, (void)pass;
    return (struct attn_traffic){0};
}

static const struct attn_kernel fp8 = {
    .step = "step00_naive",
    .rung = 4,
    .name = "fp8-on-host",
    .idea = "FP8's baseline as a kernel",
    .formula = "none",
    .dtypes = 1u << ATTN_FP8,
    .passes = ATTN_FORWARD,
    .variant = true,
    .forward = on_host,
    .model = no_traffic,
};

__attribute__((constructor)) static void register_variants(void) {
    attn_register(&choosy);
    attn_register(&described);
    attn_register(&fp8);
    attn_register(&unmasked);
    attn_register(&newer);
}

// variants.c - kernels that the tests of the command line add to step00: what --kernel, --list and
// the columns of the report make of variants. All compute with the naive kernel.

#include "attn.h"

#include <stdio.h>
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

// The same buffers, none of which is said to hold a matrix.
static int plain_buffers(const struct attn_problem *p, struct attn_buffer out[ATTN_MAX_BUFFERS]) {
    int count = naive()->buffers(p, out);
    for (int i = 0; i < count; i++) out[i].matrix = false;
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

__attribute__((constructor)) static void register_variants(void) {
    attn_register(&choosy);
    attn_register(&described);
}

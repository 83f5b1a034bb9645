// peers.c - the kernels as a library, so that peers.py can time them in one process with PyTorch.
//
// A rung is opened for a shape and then run on PyTorch's own tensors, given as device pointers.
// Everything is launched on the default stream, which is PyTorch's as well. Results are not checked
// here, and nothing is measured: peers.py does both.
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What peers.py hands over, in this order (a ctypes.Structure there).
struct peers_shape {
    int batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim, causal, dtype;
    float scale;
};

struct peers_rung {
    const struct attn_kernel *kernel;
    struct attn_problem problem;
    struct attn_tensors tensors;
};

static const struct attn_kernel *find(const char *name) {
    for (int i = 0; i < attn_kernel_count(); i++)
        if (!strcmp(attn_kernel_at(i)->name, name)) return attn_kernel_at(i);
    return NULL;
}

bool peers_has(const char *name) { return find(name); }

void peers_close(struct peers_rung *rung) {
    for (int i = 0; i < ATTN_MAX_BUFFERS; i++)
        if (rung->tensors.buffer[i]) machine_free(rung->tensors.buffer[i]);
    free(rung);
}

// The rung with its workspace for these passes, full of NaN. NULL: not here, and `why` says why.
struct peers_rung *peers_open(const char *name, const struct peers_shape *s, unsigned passes,
                              char *why, size_t why_size) {
    static struct machine machine;
    const struct attn_kernel *kernel = find(name);
    if (!machine.sm && !machine_open(&(struct machine_options){0}, &machine, why, why_size))
        return NULL;
    if (!kernel) return snprintf(why, why_size, "no kernel is called %s", name), NULL;
    struct peers_rung *rung = calloc(1, sizeof *rung);
    if (!rung) return snprintf(why, why_size, "no memory"), NULL;
    rung->kernel = kernel;
    rung->problem = (struct attn_problem){
        .batch = s->batch,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .seqlen_q = s->seqlen_q,
        .seqlen_k = s->seqlen_k,
        .head_dim = s->head_dim,
        .causal = s->causal,
        .dtype = s->dtype,
        .scale = s->scale,
        .smem = machine.smem,
        .sm = machine.sm,
        .sm_count = machine.sm_count,
    };
    const struct attn_problem *p = &rung->problem;
    struct attn_buffer buffer[ATTN_MAX_BUFFERS];
    int buffers = 0;
    if (attn_problem_check(p, why, why_size)) goto fail;
    for (unsigned pass = ATTN_FORWARD; pass <= ATTN_BACKWARD; pass *= 2) {
        static struct result r; // large
        r.pass = pass;
        if (!(passes & pass) || can_run(kernel, p, &r)) continue;
        snprintf(why, why_size, "%s", r.why);
        goto fail;
    }
    if (kernel->buffers) buffers = kernel->buffers(p, buffer);
    for (int i = 0; i < buffers; i++) {
        if (!(buffer[i].passes & passes)) continue;
        rung->tensors.buffer[i] = machine_alloc(buffer[i].name, buffer[i].bytes);
        if (!rung->tensors.buffer[i]) {
            snprintf(why, why_size, "no %zu bytes for %s", buffer[i].bytes, buffer[i].name);
            goto fail;
        }
        machine_refill(rung->tensors.buffer[i], &buffer[i]);
    }
    return rung;
fail:
    peers_close(rung);
    return NULL;
}

// Launches one pass, or for `pass` 4 the forward without its pre-pass, if there is one, and
// returns. The pointers: Q, K, V, O, LSE, dO, dQ, dK, dV.
void peers_run(struct peers_rung *rung, unsigned pass, void *const pointer[9]) {
    struct attn_tensors t = rung->tensors; // with the workspace
    t.Q = pointer[0], t.K = pointer[1], t.V = pointer[2];
    t.O = pointer[3], t.LSE = pointer[4];
    t.dO = pointer[5], t.dQ = pointer[6], t.dK = pointer[7], t.dV = pointer[8];
    const struct attn_kernel *k = rung->kernel;
    (pass == ATTN_FORWARD    ? k->forward
     : pass == ATTN_BACKWARD ? k->backward
     : k->attention          ? k->attention
                             : k->forward)(&rung->problem, &t);
}

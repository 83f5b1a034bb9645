// prepare.c - one input on the host and on the device, with its right answer.

#include "prepare.h"

#include "dtype.h"
#include "machine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void *upload(const struct attn_problem *p, const char *name, const float *host, uint64_t elements) {
    size_t bytes = elements * attn_dtype_bytes(p->dtype);
    void *device = machine_alloc(name, bytes), *packed = malloc(bytes);
    if (device && packed) {
        dtype_pack(p->dtype, host, packed, elements);
        machine_write(device, packed, bytes);
    }
    free(packed);
    return device;
}

enum outcome out_of_memory(const struct attn_problem *p, const char *what, uint64_t bytes,
                           char *why, size_t why_size) {
    snprintf(
        why, why_size,
        "no memory for %s (%.3g GB) at B %d, H %d, Nq %d, Nk %d, d %d; make the problem smaller",
        what, (double)bytes / 1e9, p->batch, p->heads, p->seqlen_q, p->seqlen_k, p->head_dim);
    return NOT_POSSIBLE;
}

// What the host will hold besides the device's copies: inputs, reference, outputs.
static uint64_t host_bytes(const struct attn_problem *p, unsigned passes) {
    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p);
    uint64_t forward = 4 * (q + 2 * kv) + (8 + 4 + 4 + 4) * q;
    return passes & ATTN_BACKWARD ? forward + 4 * q + (8 + 4 + 4 + 4) * (q + 2 * kv) : forward;
}

static uint64_t host_memory(void) {
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static enum outcome refused(void) { return errno == ENOMEM ? NOT_POSSIBLE : NOT_SUPPORTED; }

static enum outcome upload_all(struct prepared *out, char *why, size_t why_size) {
    const struct attn_problem *p = &out->problem;
    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p);
    bool backward = out->passes & ATTN_BACKWARD;
    out->Q = upload(p, "Q", out->in.Q, q);
    out->K = upload(p, "K", out->in.K, kv);
    out->V = upload(p, "V", out->in.V, kv);
    if (backward) out->dO = upload(p, "dO", out->in.dO, q);
    if (out->Q && out->K && out->V && (out->dO || !backward)) return RAN_RIGHT;
    return out_of_memory(p, "the inputs", (q + 2 * kv + backward * q) * attn_dtype_bytes(p->dtype),
                         why, why_size);
}

enum outcome prepare(const struct attn_problem *problem, unsigned passes, const struct source *s,
                     struct prepared *out, char *why, size_t why_size) {
    static int number;
    *out = (struct prepared){.number = ++number,
                             .problem = *problem,
                             .passes = passes,
                             .name = s->load ? s->load : data_family_name(s->family)};
    struct attn_problem *p = &out->problem;
    bool backward = passes & ATTN_BACKWARD;
    char what[200];
    if (s->load && !inputs_load(s->load, backward, p, &out->in, why, why_size)) return refused();
    if (p->scale == 0) p->scale = (float)(1 / sqrt(p->head_dim));
    if (attn_problem_check(p, what, sizeof what)) {
        snprintf(why, why_size, "%s%.200s%s%s", s->load ? "--load " : "", s->load ? s->load : "",
                 s->load ? ": " : "", what);
        return NOT_SUPPORTED;
    }
    uint64_t bytes = host_bytes(p, passes);
    if (bytes > host_memory() / 10 * 9)
        return out_of_memory(p, "the host's tensors", bytes, why, why_size);
    if (!s->load && !inputs_make(p, s->family, s->seed, backward, &out->in, why, why_size))
        return refused();
    return upload_all(out, why, why_size);
}

void prepared_free(struct prepared *in) {
    machine_free(in->Q);
    machine_free(in->K);
    machine_free(in->V);
    machine_free(in->dO);
    reference_free(&in->reference);
    inputs_free(&in->in);
}

enum outcome prepared_answer(struct prepared *in, unsigned pass, char *why, size_t why_size) {
    const struct attn_problem *p = &in->problem;
    if (!in->reference.O && !reference_make(p, &in->in, &in->reference, why, why_size))
        return errno == ENOMEM ? NOT_POSSIBLE : REFUSED;
    if (pass == ATTN_FORWARD || in->has_gradients) return RAN_RIGHT;
    if (!reference_add_backward(p, &in->in, &in->reference, why, why_size))
        return errno == ENOMEM ? NOT_POSSIBLE : REFUSED;
    in->has_gradients = true;
    return RAN_RIGHT;
}

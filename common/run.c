// run.c - one kernel on one problem: allocate, poison, run, check, measure.

#include "run.h"

#include "dtype.h"
#include "npy.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- the input -----------------------------------------------------------------------------------

// Copies host fp32 values to a new device tensor of p's data type. NULL: no memory.
static void *upload(const struct attn_problem *p, const char *name, const float *host, uint64_t elements) {
    size_t bytes = elements * attn_dtype_bytes(p->dtype);
    void *device = machine_alloc(name, bytes), *packed = malloc(bytes);
    if (device && packed) {
        dtype_pack(p->dtype, host, packed, elements);
        machine_write(device, packed, bytes);
    }
    free(packed);
    return device;
}

static enum outcome out_of_memory(const struct attn_problem *p, const char *what, uint64_t bytes, char *why,
                                  size_t why_size) {
    snprintf(why, why_size, "no memory for %s (%.3g GB) at B %d, H %d, Nq %d, Nk %d, d %d; make the problem smaller",
             what, (double)bytes / 1e9, p->batch, p->heads, p->seqlen_q, p->seqlen_k, p->head_dim);
    return NOT_POSSIBLE;
}

// What the host will hold besides the device's copies: inputs, reference, outputs.
static uint64_t host_bytes(const struct attn_problem *p) {
    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p);
    return 4 * (q + 2 * kv) + (8 + 4 + 4 + 4) * q;
}

static uint64_t host_memory(void) { return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE); }

static enum outcome refused(void) { return errno == ENOMEM ? NOT_POSSIBLE : NOT_SUPPORTED; }

enum outcome prepare(const struct attn_problem *problem, const struct source *s, struct prepared *out, char *why,
                     size_t why_size) {
    static int number;
    *out = (struct prepared){.number = ++number, .problem = *problem, .name = s->load ? s->load : data_family_name(s->family)};
    struct attn_problem *p = &out->problem;
    if (s->load && !inputs_load(s->load, false, p, &out->in, why, why_size)) return refused();
    if (p->scale == 0) p->scale = (float)(1 / sqrt(p->head_dim));
    if (attn_problem_check(p, why, why_size)) return NOT_SUPPORTED;
    if (host_bytes(p) > host_memory() / 10 * 9) return out_of_memory(p, "the host's tensors", host_bytes(p), why, why_size);
    if (!s->load && !inputs_make(p, s->family, s->seed, false, &out->in, why, why_size)) return refused();

    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p);
    out->Q = upload(p, "Q", out->in.Q, q);
    out->K = upload(p, "K", out->in.K, kv);
    out->V = upload(p, "V", out->in.V, kv);
    if (out->Q && out->K && out->V) return RAN_RIGHT;
    return out_of_memory(p, "Q, K and V", (q + 2 * kv) * attn_dtype_bytes(p->dtype), why, why_size);
}

void prepared_free(struct prepared *in) {
    machine_free(in->Q);
    machine_free(in->K);
    machine_free(in->V);
    reference_free(&in->reference);
    inputs_free(&in->in);
}

// ---- the output ----------------------------------------------------------------------------------

// Everything that a run allocates, so that one function can free it.
struct allocated {
    struct attn_tensors device;
    struct attn_buffer buffer[ATTN_MAX_BUFFERS];
    int buffers;
    void *O_packed;                 // host: what the device holds, in its data type
    float *O, *LSE;                 // host
};

static void release(struct allocated *a) {
    machine_free(a->device.O);
    machine_free(a->device.LSE);
    for (int i = 0; i < a->buffers; i++) machine_free(a->device.buffer[i]);
    free(a->O_packed);
    free(a->O);
    free(a->LSE);
}

static size_t O_bytes(const struct attn_problem *p) { return attn_q_elements(p) * attn_dtype_bytes(p->dtype); }
static size_t LSE_bytes(const struct attn_problem *p) { return attn_rows(p) * sizeof(float); }

static bool allocate(const struct attn_kernel *k, const struct prepared *in, struct allocated *a,
                     struct result *out) {
    const struct attn_problem *p = &in->problem;
    a->device = (struct attn_tensors){.Q = in->Q, .K = in->K, .V = in->V};
    a->device.O = machine_alloc("O", O_bytes(p));
    a->device.LSE = machine_alloc("LSE", LSE_bytes(p));
    a->O_packed = malloc(O_bytes(p));
    a->O = malloc(attn_q_elements(p) * sizeof(float));
    a->LSE = malloc(LSE_bytes(p));
    bool ok = a->device.O && a->device.LSE && a->O_packed && a->O && a->LSE;
    a->buffers = k->buffers ? k->buffers(p, a->buffer) : 0;
    for (int i = 0; i < a->buffers; i++) {
        if (!(a->buffer[i].passes & ATTN_FORWARD)) continue;
        out->workspace += a->buffer[i].bytes;
        a->device.buffer[i] = ok ? machine_alloc(a->buffer[i].name, a->buffer[i].bytes) : NULL;
        ok = ok && a->device.buffer[i];
    }
    if (!ok) out->outcome = out_of_memory(p, "the output and the workspace", O_bytes(p) + out->workspace, out->why,
                                          sizeof out->why);
    return ok;
}

// Everything that the kernel must write holds NaN before it runs: what it forgets, shows.
static void poison(const struct attn_problem *p, const struct allocated *a) {
    machine_poison(a->device.O, O_bytes(p));
    machine_poison(a->device.LSE, LSE_bytes(p));
    for (int i = 0; i < a->buffers; i++)
        if (a->device.buffer[i]) machine_poison(a->device.buffer[i], a->buffer[i].bytes);
}

static void fetch(const struct attn_problem *p, const struct allocated *a) {
    machine_read(a->O_packed, a->device.O, O_bytes(p));
    dtype_unpack(p->dtype, a->O_packed, a->O, attn_q_elements(p));
    machine_read(a->LSE, a->device.LSE, LSE_bytes(p));
}

// ---- checking ------------------------------------------------------------------------------------

static bool same_traffic(const struct attn_traffic *a, const struct attn_traffic *b) {
    return a->load == b->load && a->store == b->store && a->atomic == b->atomic && a->tma_load == b->tma_load &&
           a->tma_store == b->tma_store;
}

// Index of an element as [b, h, i] or [b, h, i, c].
static void describe_index(const struct attn_problem *p, const struct check *c, char *out, size_t size) {
    bool row = !strcmp(c->tensor, "LSE");
    uint64_t d = row ? 1 : (uint64_t)p->head_dim, i = c->worst / d, n = (uint64_t)p->seqlen_q, h = (uint64_t)p->heads;
    int used = snprintf(out, size, "[%d, %d, %d", (int)(i / n / h), (int)(i / n % h), (int)(i % n));
    if (row) snprintf(out + used, size - (size_t)used, "]");
    else snprintf(out + used, size - (size_t)used, ", %d]", (int)(c->worst % d));
}

static void describe_failure(struct result *r, const struct check *c) {
    char index[64];
    unsigned long long bad = c->bad;
    describe_index(&r->prepared->problem, c, index, sizeof index);
    if (isnan(c->got))
        snprintf(r->why, sizeof r->why, "%s%s is NaN, never written or computed so, and should be %g (%llu elements are wrong)",
                 c->tensor, index, c->want, bad);
    else
        snprintf(r->why, sizeof r->why, "%s%s is %g and should be %g, off by %.3g times what the bar allows (%llu elements are wrong)",
                 c->tensor, index, c->got, c->want, c->of_bar, bad);
}

static void describe_traffic(struct result *r) {
    const struct attn_traffic *a = &r->measured.asked, *m = &r->model;
    snprintf(r->why, sizeof r->why,
             "asked for %llu + %llu + %llu bytes (load, store, atomic), the model says %llu + %llu + %llu",
             (unsigned long long)a->load, (unsigned long long)a->store, (unsigned long long)a->atomic,
             (unsigned long long)m->load, (unsigned long long)m->store, (unsigned long long)m->atomic);
}

// Sets the outcome from what was found. `exact`: the machine's counts are, so that they must equal the
// model; a GPU's counters can pick up other work, so there a difference is shown and not judged.
static void judge(struct result *r, bool exact) {
    r->outcome = RAN_WRONG;
    for (int i = 0; i < r->checks; i++)
        if (!r->check[i].ok) return describe_failure(r, &r->check[i]);
    if (r->measured.repeats_differ)
        snprintf(r->why, sizeof r->why, "two runs on the same input gave different bits");
    else if (exact && r->measured.has_asked && !r->asked_is_model) describe_traffic(r);
    else r->outcome = RAN_RIGHT;
}

static bool run_once(const struct machine_work *work, const struct allocated *a, struct result *r) {
    machine_run(work, &r->measured);
    fetch(work->problem, a);
    if (!r->measured.error[0]) {
        // Before anything else runs. After a fault there is none: it would count a part of the pass.
        r->profile_lines = machine_profile(&r->profile);
        return true;
    }
    r->outcome = RAN_WRONG;
    snprintf(r->why, sizeof r->why, "%s", r->measured.error);
    return false;
}

// Runs again from poisoned outputs and compares bits.
static bool repeats_agree(const struct machine_work *work, const struct allocated *a, int repeat) {
    const struct attn_problem *p = work->problem;
    size_t o_bytes = O_bytes(p), lse_bytes = LSE_bytes(p);
    char *first = malloc(o_bytes + lse_bytes);
    if (!first) return true;
    memcpy(first, a->O_packed, o_bytes);
    memcpy(first + o_bytes, a->LSE, lse_bytes);
    bool same = true;
    for (int i = 1; i < repeat && same; i++) {
        struct measurement m;
        poison(p, a);
        machine_run(work, &m);
        fetch(p, a);
        same = !m.error[0] && !memcmp(first, a->O_packed, o_bytes) && !memcmp(first + o_bytes, a->LSE, lse_bytes);
    }
    free(first);
    return same;
}

// ---- .npy files ------------------------------------------------------------------------------------

static bool dump_tensor(const char *dir, const char *name, int dims, const uint64_t *shape, const float *data,
                        char *why, size_t why_size) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s.npy", dir, name);
    return npy_write(path, dims, shape, data, why, why_size);
}

static bool dump_forward(const char *dir, const struct prepared *in, const struct allocated *a, char *why,
                         size_t why_size) {
    const struct attn_problem *p = &in->problem;
    uint64_t q[] = {(uint64_t)p->batch, (uint64_t)p->heads, (uint64_t)p->seqlen_q, (uint64_t)p->head_dim};
    uint64_t kv[] = {(uint64_t)p->batch, (uint64_t)p->kv_heads, (uint64_t)p->seqlen_k, (uint64_t)p->head_dim};
    return dump_tensor(dir, "Q", 4, q, in->in.Q, why, why_size) && dump_tensor(dir, "K", 4, kv, in->in.K, why, why_size) &&
           dump_tensor(dir, "V", 4, kv, in->in.V, why, why_size) && dump_tensor(dir, "O", 4, q, a->O, why, why_size) &&
           dump_tensor(dir, "LSE", 3, q, a->LSE, why, why_size);
}

// ---- the whole run ---------------------------------------------------------------------------------

// Fills in why not, when this kernel cannot run this problem on this machine.
static bool can_run(const struct attn_kernel *k, const struct attn_problem *p, struct result *r) {
    r->outcome = NOT_SUPPORTED;
    if (!(k->passes & r->pass)) {
        snprintf(r->why, sizeof r->why, "has no %s pass", r->pass == ATTN_FORWARD ? "forward" : "backward");
        return false;
    }
    if (!(k->dtypes >> p->dtype & 1)) {
        snprintf(r->why, sizeof r->why, "does not compute in %s; --list shows the types", attn_dtype_name(p->dtype));
        return false;
    }
    if (k->supports && !k->supports(p, r->why, sizeof r->why)) return false;
    r->outcome = NOT_POSSIBLE;
    if (p->sm < k->least_sm || (k->exact_sm && p->sm != k->exact_sm)) {
        snprintf(r->why, sizeof r->why, "needs compute capability %d.%d%s, this GPU has %d.%d; DEVICE=sim runs it",
                 (k->exact_sm ? k->exact_sm : k->least_sm) / 10, (k->exact_sm ? k->exact_sm : k->least_sm) % 10,
                 k->exact_sm ? "" : " or newer", p->sm / 10, p->sm % 10);
        return false;
    }
    return true;
}

// What follows a run without errors: the checks, the files, the repeats and the measurements.
static void examine(const struct prepared *in, const struct machine_work *work, const struct allocated *a, int repeat,
                    const char *dump, struct result *r) {
    const struct attn_problem *p = &in->problem;
    bool exact = r->measured.has_distinct;    // counted by the simulator
    r->check[r->checks++] = check_O(p, &in->reference, a->O);
    r->check[r->checks++] = check_LSE(p, &in->reference, a->LSE);
    if (dump && !dump_forward(dump, in, a, r->why, sizeof r->why)) {
        r->outcome = REFUSED;
        return;
    }
    r->measured.repeats_differ = !repeats_agree(work, a, repeat);
    if (r->check[0].ok && r->check[1].ok) machine_measure(work, repeat, &r->measured);
    r->asked_is_model = r->measured.has_asked && same_traffic(&r->measured.asked, &r->model);
    judge(r, exact);
}

static bool need_reference(struct prepared *in, struct result *r) {
    if (in->reference.O) return true;
    if (reference_make(&in->problem, &in->in, &in->reference, r->why, sizeof r->why)) return true;
    r->outcome = errno == ENOMEM ? NOT_POSSIBLE : REFUSED;
    return false;
}

void run_pass(const struct attn_kernel *kernel, struct prepared *in, unsigned pass, int repeat, const char *dump,
              struct result *out) {
    const struct attn_problem *p = &in->problem;
    *out = (struct result){.kernel = kernel, .prepared = in, .pass = pass};
    out->compulsory = attn_compulsory_bytes(p, pass);
    if (!can_run(kernel, p, out)) return;
    out->model = kernel->model(p, pass);

    struct allocated a = {0};
    if (allocate(kernel, in, &a, out) && need_reference(in, out)) {
        struct machine_work work = {kernel->forward, p, &a.device};
        poison(p, &a);
        if (run_once(&work, &a, out)) examine(in, &work, &a, repeat, dump, out);
    }
    release(&a);
}

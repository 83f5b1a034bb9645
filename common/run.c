// run.c - one kernel on one input: allocate, poison, run, check, measure.

#include "run.h"

#include "dtype.h"
#include "npy.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- what a kernel writes -----------------------------------------------------------------------

// A tensor that a pass computes: where it is, its right answer, its file.
struct output {
    const char *name;
    unsigned pass;
    enum attn_dtype dtype;
    uint64_t elements;
    int dims;
    uint64_t shape[4];
    void *device;
    void *packed;  // host, as the device holds it
    float *values; // host
    struct check (*check)(const struct attn_problem *, const struct reference *, const float *);
};
enum { OUT_O, OUT_LSE, OUT_DQ, OUT_DK, OUT_DV, OUTPUTS };

// Everything that a run allocates, so that one function can free it.
struct run {
    const struct attn_kernel *kernel;
    struct prepared *in;
    unsigned passes;
    int repeat;
    const char *dump;
    struct output output[OUTPUTS];
    struct attn_buffer buffer[ATTN_MAX_BUFFERS];
    int buffers;
    struct attn_tensors device;
};

static void describe_outputs(struct run *run) {
    const struct attn_problem *p = &run->in->problem;
    uint64_t B = (uint64_t)p->batch, H = (uint64_t)p->heads, Hkv = (uint64_t)p->kv_heads,
             d = (uint64_t)p->head_dim;
    uint64_t Nq = (uint64_t)p->seqlen_q, Nk = (uint64_t)p->seqlen_k, q = attn_q_elements(p),
             kv = attn_kv_elements(p);
    const struct output all[OUTPUTS] = {
        {"O", ATTN_FORWARD, p->dtype, q, 4, {B, H, Nq, d}, NULL, NULL, NULL, check_O},
        {"LSE", ATTN_FORWARD, ATTN_FP32, attn_rows(p), 3, {B, H, Nq}, NULL, NULL, NULL, check_LSE},
        {"dQ", ATTN_BACKWARD, p->dtype, q, 4, {B, H, Nq, d}, NULL, NULL, NULL, check_dQ},
        {"dK", ATTN_BACKWARD, p->dtype, kv, 4, {B, Hkv, Nk, d}, NULL, NULL, NULL, check_dK},
        {"dV", ATTN_BACKWARD, p->dtype, kv, 4, {B, Hkv, Nk, d}, NULL, NULL, NULL, check_dV},
    };
    memcpy(run->output, all, sizeof all);
}

static size_t bytes_of(const struct output *o) { return o->elements * attn_dtype_bytes(o->dtype); }

// Does the backward read something that the forward leaves in a buffer?
static bool keeps(const struct run *run) {
    for (int i = 0; i < run->buffers; i++)
        if (run->buffer[i].kept && (run->passes & ATTN_BACKWARD)) return true;
    return false;
}

static bool allocate_outputs(struct run *run, uint64_t *bytes) {
    bool ok = true;
    for (struct output *o = run->output; o < run->output + OUTPUTS; o++) {
        bool read = o->pass == ATTN_FORWARD && (run->passes & ATTN_BACKWARD); // O and LSE
        if (!(o->pass & run->passes) && !read) continue;
        *bytes += bytes_of(o);
        o->device = machine_alloc(o->name, bytes_of(o));
        o->packed = malloc(bytes_of(o));
        o->values = malloc(o->elements * sizeof(float));
        ok = ok && o->device && o->packed && o->values;
    }
    return ok;
}

static bool allocate_buffers(struct run *run, uint64_t *bytes) {
    bool ok = true;
    unsigned passes = keeps(run) ? run->passes | ATTN_FORWARD : run->passes;
    for (int i = 0; i < run->buffers; i++) {
        if (!(run->buffer[i].passes & passes)) continue;
        *bytes += run->buffer[i].bytes;
        run->device.buffer[i] =
            ok ? machine_alloc(run->buffer[i].name, run->buffer[i].bytes) : NULL;
        ok = ok && run->device.buffer[i];
    }
    return ok;
}

static void point_to_tensors(struct run *run) {
    struct attn_tensors *t = &run->device;
    t->Q = run->in->Q, t->K = run->in->K, t->V = run->in->V, t->dO = run->in->dO;
    t->O = run->output[OUT_O].device, t->LSE = run->output[OUT_LSE].device;
    t->dQ = run->output[OUT_DQ].device, t->dK = run->output[OUT_DK].device,
    t->dV = run->output[OUT_DV].device;
}

static void release(struct run *run) {
    for (struct output *o = run->output; o < run->output + OUTPUTS; o++) {
        machine_free(o->device);
        free(o->packed);
        free(o->values);
    }
    for (int i = 0; i < run->buffers; i++) machine_free(run->device.buffer[i]);
}

// ---- running ------------------------------------------------------------------------------------

// Everything that the pass must write holds NaN before it runs: what it forgets, shows. But for
// what it may expect to be zeros.
static void poison(struct run *run, unsigned pass) {
    for (struct output *o = run->output; o < run->output + OUTPUTS; o++)
        if (o->pass == pass) machine_poison(o->device, bytes_of(o));
    for (int i = 0; i < run->buffers; i++) {
        bool kept_for_it = pass == ATTN_BACKWARD && run->buffer[i].kept;
        if ((run->buffer[i].passes & pass) && !kept_for_it)
            machine_refill(run->device.buffer[i], &run->buffer[i]);
    }
}

static void fetch(struct run *run, unsigned pass) {
    for (struct output *o = run->output; o < run->output + OUTPUTS; o++) {
        if (o->pass != pass) continue;
        machine_read(o->packed, o->device, bytes_of(o));
        dtype_unpack(o->dtype, o->packed, o->values, o->elements);
    }
}

// How often N x N elements went through HBM: what was asked of each buffer that holds such a
// matrix, in units of its size. step00 at d = 64: S is loaded 3 times and stored once, P 16 times
// and once.
static double matrix_passes(const struct run *run, const struct measurement *m) {
    double passes = 0;
    for (int i = 0; i < run->buffers; i++) {
        for (int k = 0; run->buffer[i].matrix && k < m->buffers; k++) {
            const struct machine_buffer *b = &m->buffer[k];
            if (strncmp(b->name, run->buffer[i].name, sizeof b->name - 1)) continue;
            uint64_t asked = b->load_sectors + b->store_sectors + b->atomic_sectors;
            passes += (double)SECTOR * (double)asked / (double)run->buffer[i].bytes;
        }
    }
    return passes;
}

static struct machine_work work_of(const struct run *run, unsigned pass) {
    const struct attn_kernel *k = run->kernel;
    return (struct machine_work){pass == ATTN_FORWARD ? k->forward : k->backward, &run->in->problem,
                                 &run->device};
}

// Part by part, so that it needs no memory that could be lacking.
static bool are_zeros(const char *device, size_t bytes) {
    char part[4096], any = 0;
    for (size_t at = 0; at < bytes; at += sizeof part) {
        size_t here = bytes - at < sizeof part ? bytes - at : sizeof part;
        machine_read(part, device + at, here);
        for (size_t i = 0; i < here; i++) any |= part[i];
    }
    return !any;
}

// Has the pass left zeros where it has found them? Else the next one would go wrong.
static bool left_zeros(const struct run *run, unsigned pass, struct measurement *m) {
    for (int i = 0; i < run->buffers; i++) {
        const struct attn_buffer *b = &run->buffer[i];
        if (!(b->passes & pass) || !b->zeroed || are_zeros(run->device.buffer[i], b->bytes))
            continue;
        snprintf(m->error, sizeof m->error, "%s: the pass has not left zeros there", b->name);
        return false;
    }
    return true;
}

static bool run_once(struct run *run, unsigned pass, struct measurement *m) {
    struct machine_work work = work_of(run, pass);
    poison(run, pass);
    machine_run(&work, m);
    fetch(run, pass);
    return !m->error[0] && left_zeros(run, pass, m);
}

// A mark of all bits that the pass has written: FNV-1a, but of 8 bytes at a time. (Every tensor is
// a multiple of 8 bytes or ends in one float of LSE.)
static uint64_t fingerprint(const struct run *run, unsigned pass) {
    uint64_t hash = 0xcbf29ce484222325;
    for (const struct output *o = run->output; o < run->output + OUTPUTS; o++)
        for (size_t i = 0; o->pass == pass && i < bytes_of(o); i += 8) {
            uint64_t word = 0;
            memcpy(&word, (const char *)o->packed + i, bytes_of(o) - i < 8 ? bytes_of(o) - i : 8);
            hash = (hash ^ word) * 0x100000001b3;
            hash ^= hash >> 32; // multiplication alone never carries a high bit down
        }
    return hash;
}

static bool repeats_agree(struct run *run, unsigned pass) {
    uint64_t first = fingerprint(run, pass);
    for (int i = 1; i < run->repeat; i++) {
        struct measurement m;
        if (!run_once(run, pass, &m)) return false;
        if (fingerprint(run, pass) != first && !(run->kernel->any_order & pass)) return false;
    }
    return true;
}

// Before a backward alone: what the forward keeps comes from a forward that is not looked at, and O
// and LSE from the reference, so that a wrong forward cannot spoil the verdict on the backward.
static bool set_up_backward(struct run *run, struct result *r) {
    if (keeps(run) && !run_once(run, ATTN_FORWARD, &r->measured)) return false;
    const struct reference *reference = &run->in->reference;
    for (int which = OUT_O; which <= OUT_LSE; which++) {
        struct output *o = &run->output[which];
        const double *right = which == OUT_O ? reference->O : reference->LSE;
        for (uint64_t i = 0; i < o->elements; i++) o->values[i] = (float)right[i];
        dtype_pack(o->dtype, o->values, o->packed, o->elements);
        machine_write(o->device, o->packed, bytes_of(o));
    }
    return true;
}

// ---- checking -----------------------------------------------------------------------------------

static bool same_traffic(const struct attn_traffic *a, const struct attn_traffic *b) {
    return a->load == b->load && a->store == b->store && a->atomic == b->atomic &&
           a->tma_load == b->tma_load && a->tma_store == b->tma_store;
}

static bool at_least(const struct attn_traffic *a, const struct attn_traffic *b) {
    return a->load >= b->load && a->store >= b->store && a->atomic >= b->atomic &&
           a->tma_load >= b->tma_load && a->tma_store >= b->tma_store;
}

static const struct output *output_named(const struct run *run, const char *name) {
    const struct output *o = run->output;
    while (strcmp(o->name, name)) o++;
    return o;
}

// The flat index as "[b, h, i, c]".
static void describe_index(const struct output *o, uint64_t flat, char *out, size_t size) {
    uint64_t index[4];
    for (int k = o->dims - 1; k >= 0; k--) {
        index[k] = flat % o->shape[k];
        flat /= o->shape[k];
    }
    int used = 0;
    for (int k = 0; k < o->dims; k++)
        used += snprintf(out + used, size - (size_t)used, "%s%llu", k ? ", " : "[",
                         (unsigned long long)index[k]);
    snprintf(out + used, size - (size_t)used, "]");
}

static void describe_failure(const struct run *run, struct result *r, const struct check *c) {
    char index[96];
    unsigned long long bad = c->bad;
    const char *what = run->in->problem.dtype == ATTN_FP8 ? bad == 1 ? "row is" : "rows are"
                       : bad == 1                         ? "element is"
                                                          : "elements are";
    describe_index(output_named(run, c->tensor), c->worst, index, sizeof index);
    if (isnan(c->got))
        snprintf(r->why, sizeof r->why,
                 "%s%s is NaN: either never written, or computed as NaN; it should be %g (%llu %s "
                 "wrong)",
                 c->tensor, index, c->want, bad, what);
    else if (run->in->problem.dtype == ATTN_FP8)
        snprintf(r->why, sizeof r->why,
                 "the RMSE of %s is %.3g, the FP8 baseline's %.3g: %.3g times what the bar allows, "
                 "of all or of a row (%llu %s wrong); %s%s is %g and should be %g",
                 c->tensor, c->rmse, c->base_rmse, c->of_bar, bad, what, c->tensor, index, c->got,
                 c->want);
    else
        snprintf(r->why, sizeof r->why,
                 "%s%s is %g and should be %g, off by %.3g times what the bar allows (%llu %s "
                 "wrong)",
                 c->tensor, index, c->got, c->want, c->of_bar, bad, what);
}

static void describe_traffic(struct result *r) {
    const struct attn_traffic *a = &r->measured.asked, *m = &r->model;
    snprintf(r->why, sizeof r->why,
             "the outputs are right, but it asked for %llu + %llu + %llu bytes (load, store, "
             "atomic), and the model says %llu + %llu + %llu",
             (unsigned long long)(a->load + a->tma_load),
             (unsigned long long)(a->store + a->tma_store), (unsigned long long)a->atomic,
             (unsigned long long)(m->load + m->tma_load),
             (unsigned long long)(m->store + m->tma_store), (unsigned long long)m->atomic);
}

// Sets the outcome from what was found. `exact`: the machine's counts are, so that they must equal
// the model; a GPU's counters can pick up other work, so there a difference is shown and not
// judged.
static void judge(const struct run *run, struct result *r, bool exact) {
    r->outcome = RAN_WRONG;
    for (int i = 0; i < r->checks; i++)
        if (!r->check[i].ok) {
            describe_failure(run, r, &r->check[i]);
            return;
        }
    if (r->measured.repeats_differ) {
        snprintf(r->why, sizeof r->why, "two runs on the same input gave different bits");
    } else if (exact && r->measured.has_asked && !r->asked_is_model && !r->asked_is_more) {
        r->outcome = RAN_UNMODELLED;
        describe_traffic(r);
    } else {
        r->outcome = RAN_RIGHT;
    }
}

static bool check_outputs(const struct run *run, struct result *r) {
    bool right = true;
    for (const struct output *o = run->output; o < run->output + OUTPUTS; o++) {
        if (o->pass != r->pass) continue;
        struct check *c = &r->check[r->checks++];
        *c = o->check(&run->in->problem, &run->in->reference, o->values);
        right = right && c->ok;
    }
    return right;
}

// ---- .npy files ---------------------------------------------------------------------------------

static bool dump_tensor(const struct run *run, const char *name, const struct output *shape,
                        const float *values, struct result *r) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s.npy", run->dump, name);
    return npy_write(path, shape->dims, shape->shape, values, r->why, sizeof r->why);
}

static bool dump_all(const struct run *run, struct result *r) {
    const struct inputs *in = &run->in->in;
    const struct output *q = &run->output[OUT_DQ], *kv = &run->output[OUT_DK]; // of the same shapes
    bool ok = dump_tensor(run, "Q", q, in->Q, r) && dump_tensor(run, "K", kv, in->K, r) &&
              dump_tensor(run, "V", kv, in->V, r);
    if (r->pass == ATTN_BACKWARD) ok = ok && dump_tensor(run, "dO", q, in->dO, r);
    for (const struct output *o = run->output; o < run->output + OUTPUTS; o++)
        if (o->pass == r->pass) ok = ok && dump_tensor(run, o->name, o, o->values, r);
    return ok;
}

// ---- one pass, and both -------------------------------------------------------------------------

bool can_run(const struct attn_kernel *k, const struct attn_problem *p, struct result *r) {
    r->outcome = NOT_SUPPORTED;
    if (!(k->passes & r->pass)) {
        snprintf(r->why, sizeof r->why, "has no %s pass",
                 r->pass == ATTN_FORWARD ? "forward" : "backward");
        return false;
    }
    if (!(k->dtypes >> p->dtype & 1)) {
        snprintf(r->why, sizeof r->why, "does not compute in %s; --list shows the types",
                 attn_dtype_name(p->dtype));
        return false;
    }
    if (p->dtype != ATTN_FP8 && (p->rotate || p->fp8_scale != FP8_SCALE_TENSOR)) {
        snprintf(r->why, sizeof r->why, "computes in %s; --%s is for FP8 kernels",
                 attn_dtype_name(p->dtype), p->rotate ? "rotate" : "fp8-scale");
        return false;
    }
    // Before the kernel is asked for a shape: what helps then need not help on this card.
    if (p->sm < k->least_sm || (k->exact_sm && p->sm != k->exact_sm)) {
        int sm = k->exact_sm ? k->exact_sm : k->least_sm;
        r->outcome = NOT_POSSIBLE;
        snprintf(r->why, sizeof r->why,
                 "needs compute capability %d.%d%s, this GPU has %d.%d; DEVICE=sim runs it",
                 sm / 10, sm % 10, k->exact_sm ? "" : " or newer", p->sm / 10, p->sm % 10);
        return false;
    }
    errno = 0;
    if (!k->supports || k->supports(p, r->pass, r->why, sizeof r->why)) return true;
    if (errno == ENOMEM) r->outcome = NOT_POSSIBLE; // refuse.h
    return false;
}

static void run_pass(struct run *run, struct result *r) {
    struct measurement *m = &r->measured;
    r->outcome = RAN_WRONG;
    if ((r->pass == ATTN_BACKWARD && run->passes == ATTN_BACKWARD && !set_up_backward(run, r)) ||
        !run_once(run, r->pass, m)) {
        snprintf(r->why, sizeof r->why, "%s", m->error);
        return;
    }
    r->has_matrix_passes = m->has_distinct;
    r->matrix_passes = matrix_passes(run, m);
    // Before anything else runs. After a fault there is none: it would count a part of the pass.
    r->profile_lines = machine_profile(&r->profile);
    bool exact = m->has_distinct,
         right = check_outputs(run, r); // has_distinct: counted by the simulator
    if (run->dump && !dump_all(run, r)) {
        r->outcome = REFUSED;
        return;
    }
    m->repeats_differ = !repeats_agree(run, r->pass);
    struct machine_work work = work_of(run, r->pass);
    if (right) machine_measure(&work, run->repeat, m);
    r->asked_is_model = m->has_asked && same_traffic(&m->asked, &r->model);
    r->asked_is_more =
        m->has_asked && run->kernel->redoes && !r->asked_is_model && at_least(&m->asked, &r->model);
    judge(run, r, exact);
}

static void start_result(const struct run *run, unsigned pass, struct result *r) {
    const struct attn_problem *p = &run->in->problem;
    *r = (struct result){.kernel = run->kernel, .prepared = run->in, .pass = pass};
    r->compulsory = attn_compulsory_bytes(p, pass);
    if (!can_run(run->kernel, p, r)) return;
    r->outcome = RAN_RIGHT; // so far
    r->model = run->kernel->model(p, pass);
    if (run->kernel->describe) run->kernel->describe(p, pass, r->tiles, sizeof r->tiles);
    for (int i = 0; i < run->buffers; i++)
        if (run->buffer[i].passes & pass) r->workspace += run->buffer[i].bytes;
}

static bool allocate(struct run *run, uint64_t *bytes) {
    bool ok = allocate_outputs(run, bytes);
    ok = allocate_buffers(run, bytes) && ok;
    point_to_tensors(run);
    return ok;
}

int run_kernel(const struct attn_kernel *kernel, struct prepared *in, unsigned passes, int repeat,
               const char *dump, struct result out[2]) {
    struct run run = {.kernel = kernel, .in = in, .repeat = repeat, .dump = dump};
    describe_outputs(&run);
    run.buffers = kernel->buffers ? kernel->buffers(&in->problem, run.buffer) : 0;
    int results = 0;
    for (unsigned pass = ATTN_FORWARD; pass <= ATTN_BACKWARD; pass <<= 1) {
        if (!(passes & pass)) continue;
        start_result(&run, pass, &out[results]);
        if (out[results++].outcome == RAN_RIGHT) run.passes |= pass;
    }
    uint64_t bytes = 0;
    bool allocated = !run.passes || allocate(&run, &bytes);
    for (struct result *r = out; r < out + results; r++) {
        if (r->outcome != RAN_RIGHT) continue;
        if (!allocated)
            r->outcome =
                out_of_memory(&in->problem, "outputs and workspace", bytes, r->why, sizeof r->why);
        else
            r->outcome = prepared_answer(in, r->pass, r->why, sizeof r->why);
        if (r->outcome == RAN_RIGHT) run_pass(&run, r);
        if (r->outcome != RAN_RIGHT && r->outcome != RAN_UNMODELLED)
            results = (int)(r - out) + 1; // a backward on a wrong forward tells nothing
    }
    release(&run);
    return results;
}

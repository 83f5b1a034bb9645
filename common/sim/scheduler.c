// scheduler.c - runs a grid: blocks on OS threads, the threads of a block as fibers of one.
//
// A CUDA thread runs until it must wait: at __syncthreads, or in a warp collective whose other
// lanes have not come yet. Then the next ready thread of its block runs. Nothing preempts it, so
// the order is the same in every run; and when nobody is ready, the block is deadlocked and the
// simulator can say who waits where.

#include "internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STACK_BYTES = 256 << 10, MAX_WORKERS = 64, MAX_BLOCK = 1024, MAX_ATTRIBUTES = 256 };

_Thread_local struct worker *sim_worker;
const struct sim_launch *sim_now;

static struct sim_options options;
static struct sim_counts counts;             // all but the buffers, which memory.c keeps
static char first_error[640];

// The launch in progress, shared by the workers.
static struct {
    pthread_mutex_t lock;
    uint64_t next_block, blocks;
    bool failed;
} grid = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct sim_dim3 sim_thread_idx(void) { return sim_worker->self->idx; }
struct sim_dim3 sim_block_idx(void) { return sim_worker->block_idx; }
struct sim_dim3 sim_block_dim(void) { return sim_now->block; }
struct sim_dim3 sim_grid_dim(void) { return sim_now->grid; }
int sim_lane(void) { return sim_worker->self->lane; }

// ---- errors --------------------------------------------------------------------------------

// "(flash<64, 64>)" as LAUNCH was given it -> "flash<64, 64>".
static void kernel_name(const char *text, char *out, size_t size) {
    size_t n = strlen(text);
    bool wrapped = n > 2 && text[0] == '(' && text[n - 1] == ')';
    snprintf(out, size, "%.*s", (int)(wrapped ? n - 2 : n), text + wrapped);
}

static void keep_error(const char *message) {
    pthread_mutex_lock(&grid.lock);
    if (!grid.failed && !first_error[0]) {
        char kernel[48];
        kernel_name(sim_now->kernel, kernel, sizeof kernel);
        snprintf(first_error, sizeof first_error, "%s: %s", kernel, message);
    }
    grid.failed = true;
    pthread_mutex_unlock(&grid.lock);
}

void sim_fail(const char *format, ...) {
    struct worker *w = sim_worker;
    char what[480], message[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    struct sim_dim3 t = w->self->idx, b = w->block_idx;
    snprintf(message, sizeof message, "%s, thread (%u,%u,%u) of block (%u,%u,%u)", what, t.x, t.y, t.z,
             b.x, b.y, b.z);
    keep_error(message);
    fiber_switch_to(&w->self->fiber, &w->home);   // abandons this fiber and all of the block
    abort();
}

const char *sim_error(void) { return first_error; }

// ---- who runs next ---------------------------------------------------------------------------

static void push(struct queue *q, struct thread *t) {
    t->next = NULL;
    if (q->last) q->last->next = t;
    else q->first = t;
    q->last = t;
}

static struct thread *pop(struct queue *q) {
    struct thread *t = q->first;
    if (t) q->first = t->next;
    if (!q->first) q->last = NULL;
    return t;
}

static void make_ready(struct thread *t) {
    t->waits_for = NULL;
    t->warp->running++;
    push(&sim_worker->ready, t);
}

// "100 threads wait in __syncthreads() at f.cu:7, 28 have exited", grouped by place.
static void describe_waiting(struct worker *w, char *out, size_t size) {
    size_t used = 0;
    int exited = 0;
    out[0] = 0;
    for (int i = 0; i < w->threads; i++) {
        struct thread *t = &w->thread[i];
        exited += t->exited;
        if (!t->waits_for) continue;
        int same = 0, earlier = 0;
        for (int k = 0; k < w->threads; k++) {
            struct thread *u = &w->thread[k];
            bool here = u->waits_for == t->waits_for && u->where.line == t->where.line;
            same += here;
            earlier += here && k < i;
        }
        if (earlier || used >= size) continue;
        used += (size_t)snprintf(out + used, size - used, "%s%d wait%s in %s at %s:%d", used ? ", " : "",
                                 same, same == 1 ? "s" : "", t->waits_for, t->where.file, t->where.line);
    }
    if (exited && used < size) snprintf(out + used, size - used, ", %d have exited", exited);
}

static _Noreturn void fail_deadlock(struct worker *w) {
    char who[400];
    describe_waiting(w, who, sizeof who);
    struct barrier *b = &w->barrier;
    if (b->arrived)
        sim_fail("divergent barrier: not all %d threads of the block reach %s at %s:%d (%s)", w->threads,
                 b->what, b->where.file, b->where.line, who);
    sim_fail("deadlock: no thread of the block can go on (%s)", who);
}

// Gives the CPU to the next ready thread. Returns when this one is ready and its turn has come.
static void run_others(struct worker *w) {
    struct thread *me = w->self, *next = pop(&w->ready);
    if (!next) fail_deadlock(w);
    if (next == me) return;
    w->self = next;
    fiber_switch_to(&me->fiber, &next->fiber);
}

// One lane comes to rest. When it was the last of its warp, the warp's accesses are complete up
// to a common point and can be put together.
static void come_to_rest(struct worker *w, struct thread *t) {
    if (--t->warp->running == 0) meter_warp(w, t->warp);
}

static void wait_for(struct worker *w, const char *what, struct sim_place where) {
    struct thread *me = w->self;
    me->waits_for = what;
    me->where = where;
    come_to_rest(w, me);
    run_others(w);
}

// ---- barriers and collectives ----------------------------------------------------------------

int sim_block_barrier(int predicate, const char *what, struct sim_place where) {
    struct worker *w = sim_worker;
    struct barrier *b = &w->barrier;
    if (b->arrived++ == 0) {
        b->what = what;
        b->where = where;
    } else if (b->where.line != where.line || strcmp(b->what, what)) {
        sim_fail("divergent barrier: one part of the block waits in %s at %s:%d, another comes to %s at %s:%d",
                 b->what, b->where.file, b->where.line, what, where.file, where.line);
    }
    b->votes += predicate != 0;
    if (b->arrived < w->threads) {
        push(&b->waiting, w->self);
        wait_for(w, what, where);
        return b->result;    // nobody can complete the next barrier before this thread joins it
    }
    come_to_rest(w, w->self);
    w->self->warp->running++;
    b->result = b->votes;
    b->arrived = b->votes = 0;
    for (struct thread *t; (t = pop(&b->waiting));) make_ready(t);
    return b->result;
}

static struct meeting *find_meeting(struct warp *warp, uint32_t mask) {
    struct meeting *free = NULL;
    for (int i = 0; i < 32; i++) {
        struct meeting *m = &warp->meeting[i];
        if (m->arrived && m->mask == mask) return m;
        if (m->arrived && (m->mask & mask))
            sim_fail("lanes of one warp disagree on the mask: 0x%08x in %s at %s:%d, 0x%08x here", m->mask,
                     m->what, m->where.file, m->where.line, mask);
        if (!m->arrived && !free) free = m;
    }
    return free;
}

// The operation is compiled with the kernel's hooks; what it does is the hardware's work, not this
// lane's, so the hooks are shown no worker.
static void run_collective(struct worker *w, struct warp *warp, const struct meeting *m) {
    void *arguments[32] = {NULL};
    for (int i = 0; i < warp->size; i++)
        if (m->mask >> i & 1) arguments[i] = warp->lane[i]->argument;
    sim_worker = NULL;
    if (m->op) m->op(arguments, m->mask);
    sim_worker = w;
}

void sim_warp_collective(uint32_t mask, sim_warp_op op, void *mine, const char *what,
                         struct sim_place where) {
    struct worker *w = sim_worker;
    struct thread *me = w->self;
    struct warp *warp = me->warp;
    if (warp->size < 32) mask &= (1u << warp->size) - 1;   // a block's last warp may be short
    if (!(mask >> me->lane & 1))
        sim_fail("lane %d calls %s at %s:%d with mask 0x%08x, which leaves it out", me->lane, what,
                 where.file, where.line, mask);
    struct meeting *m = find_meeting(warp, mask);
    if (!m->arrived) *m = (struct meeting){.mask = mask, .op = op, .what = what, .where = where};
    else if (m->op != op || strcmp(m->what, what))
        sim_fail("lanes of one warp meet in two different collectives: %s at %s:%d and %s at %s:%d",
                 m->what, m->where.file, m->where.line, what, where.file, where.line);
    me->argument = mine;
    m->arrived |= 1u << me->lane;
    if (m->arrived != mask) {
        wait_for(w, what, where);
        return;
    }
    come_to_rest(w, me);
    warp->running++;
    run_collective(w, warp, m);
    m->arrived = 0;
    for (int i = 0; i < warp->size; i++)
        if ((mask >> i & 1) && warp->lane[i] != me) make_ready(warp->lane[i]);
}

// ---- one block ---------------------------------------------------------------------------------

static void thread_main(void) {
    struct worker *w = sim_worker;
    sim_now->body(sim_now->arguments);
    struct thread *me = w->self;
    me->exited = true;
    come_to_rest(w, me);
    if (--w->live == 0) fiber_switch_to(&me->fiber, &w->home);
    run_others(w);
    abort();    // an exited thread is never made ready again
}

static void run_block(struct worker *w, uint64_t number) {
    struct sim_dim3 g = sim_now->grid;
    w->block_idx = (struct sim_dim3){(unsigned)(number % g.x), (unsigned)(number / g.x % g.y),
                                     (unsigned)(number / g.x / g.y)};
    w->live = w->threads;
    w->ready = (struct queue){0};
    w->barrier = (struct barrier){0};
    for (int i = 0; i < w->warps; i++) {
        w->warp[i].running = 0;
        memset(w->warp[i].meeting, 0, sizeof w->warp[i].meeting);
    }
    for (int i = 0; i < w->threads; i++) {
        struct thread *t = &w->thread[i];
        fiber_start(&t->fiber, thread_main);
        t->exited = false;
        t->log_next = t->log;
        t->last_block = 0;
        make_ready(t);
    }
    w->self = pop(&w->ready);
    fiber_switch_to(&w->home, &w->self->fiber);
    w->self = NULL;
}

// ---- one worker: an OS thread with the fibers of one block -----------------------------------

static void free_threads(struct worker *w) {
    for (int i = 0; i < w->threads; i++) {
        fiber_destroy(&w->thread[i].fiber);
        free(w->thread[i].log);
    }
    free(w->thread);
    free(w->warp);
    w->thread = NULL;
    w->warp = NULL;
    w->threads = w->warps = 0;
}

// Fibers are kept from launch to launch, since mapping a stack costs far more than using it.
static bool make_threads(struct worker *w, struct sim_dim3 block) {
    int n = (int)(block.x * block.y * block.z);
    if (n != w->threads) {
        free_threads(w);
        w->thread = calloc((size_t)n, sizeof *w->thread);
        w->warps = (n + 31) / 32;
        w->warp = calloc((size_t)w->warps, sizeof *w->warp);
        for (; w->threads < n; w->threads++)
            if (!fiber_create(&w->thread[w->threads].fiber, STACK_BYTES, w->threads)) return false;
    }
    for (int i = 0; i < w->warps; i++) w->warp[i].size = 0;
    for (int i = 0; i < n; i++) {
        struct thread *t = &w->thread[i];
        unsigned u = (unsigned)i;
        t->idx = (struct sim_dim3){u % block.x, u / block.x % block.y, u / block.x / block.y};
        t->id = i;
        t->lane = i % 32;
        t->warp = &w->warp[i / 32];
        t->warp->lane[t->warp->size++] = t;
    }
    return true;
}

static bool take_block(uint64_t *number) {
    pthread_mutex_lock(&grid.lock);
    bool more = !grid.failed && grid.next_block < grid.blocks;
    *number = grid.next_block;
    grid.next_block += more;
    pthread_mutex_unlock(&grid.lock);
    return more;
}

static void add_tally(struct tally *t) {
    pthread_mutex_lock(&grid.lock);
    for (int b = 1; b < sim_buffers; b++)
        for (int k = 0; k < SIM_KINDS; k++) {
            sim_buffer[b].total.bytes[k] += t->buffer[b].bytes[k];
            sim_buffer[b].total.sectors[k] += t->buffer[b].sectors[k];
        }
    for (int k = 0; k < SIM_KINDS; k++) counts.shared_bytes[k] += t->shared_bytes[k];
    counts.accesses += t->accesses;
    counts.wavefronts += t->wavefronts;
    counts.ideal_wavefronts += t->ideal_wavefronts;
    pthread_mutex_unlock(&grid.lock);
    memset(t, 0, sizeof *t);
}

static void run_worker(struct worker *w, const uint8_t *shared_owner) {
    w->fast = options.fast;
    w->shared_owner = shared_owner;
    uint64_t block;
    if (!make_threads(w, sim_now->block)) keep_error("no memory for the stacks of a block's threads");
    while (take_block(&block)) run_block(w, block);
    if (grid.failed) free_threads(w);    // the fibers hold abandoned frames
    add_tally(&w->tally);
}

// ---- the pool of OS threads --------------------------------------------------------------------

static struct {
    pthread_mutex_t lock;
    pthread_cond_t go, done;
    int threads, wanted, busy;
    uint64_t round;
    const uint8_t *shared_owner;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .go = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static void *pool_thread(void *number) {
    int me = (int)(intptr_t)number;
    struct worker *w = sim_worker = calloc(1, sizeof *w);
    symbols_own_segments(w);
    uint64_t seen = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.round == seen) pthread_cond_wait(&pool.go, &pool.lock);
        seen = pool.round;
        if (me >= pool.wanted) continue;
        pthread_mutex_unlock(&pool.lock);
        run_worker(w, pool.shared_owner);
        pthread_mutex_lock(&pool.lock);
        if (--pool.busy == 0) pthread_cond_signal(&pool.done);
    }
    return NULL;
}

static void pool_run(int wanted, const uint8_t *shared_owner) {
    pthread_mutex_lock(&pool.lock);
    for (; pool.threads < wanted; pool.threads++) {
        pthread_t t;
        if (pthread_create(&t, NULL, pool_thread, (void *)(intptr_t)pool.threads)) break;
        pthread_detach(t);
    }
    pool.wanted = pool.busy = wanted < pool.threads ? wanted : pool.threads;
    pool.shared_owner = shared_owner;
    pool.round++;
    pthread_cond_broadcast(&pool.go);
    while (pool.busy) pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

static int worker_count(uint64_t blocks) {
    long n = options.workers ? options.workers : sysconf(_SC_NPROCESSORS_ONLN);
    if (n > MAX_WORKERS) n = MAX_WORKERS;
    if ((uint64_t)n > blocks) n = (long)blocks;
    return n < 1 ? 1 : (int)n;
}

// ---- launching ---------------------------------------------------------------------------------

// cudaFuncSetAttribute's memory: how much dynamic shared memory each kernel asked to be allowed.
static struct {
    const void *function;
    size_t bytes;
} attribute[MAX_ATTRIBUTES];
static int attributes;

static size_t smem_limit(void) { return options.smem_limit ? options.smem_limit : SIM_SMEM_MAX; }

int sim_allow_dynamic_smem(const void *function, int bytes) {
    if (bytes < 0 || (size_t)bytes + symbols_static_smem(function) > smem_limit()) return 1;
    int i = 0;
    while (i < attributes && attribute[i].function != function) i++;
    if (i == MAX_ATTRIBUTES) return 1;
    attribute[i].function = function;
    attribute[i].bytes = (size_t)bytes;
    if (i == attributes) attributes++;
    return 0;
}

static size_t allowed_dynamic(const void *function, size_t fixed) {
    for (int i = 0; i < attributes; i++)
        if (attribute[i].function == function) return attribute[i].bytes;
    return fixed < SIM_SMEM_STATIC_MAX ? SIM_SMEM_STATIC_MAX - fixed : 0;
}

// Writes why the launch is impossible on a GPU, or leaves `why` empty.
static void check_launch(const struct sim_launch *l, size_t fixed, char *why, size_t size) {
    struct sim_dim3 b = l->block, g = l->grid;
    uint64_t threads = (uint64_t)b.x * b.y * b.z;
    if (!threads || !g.x || !g.y || !g.z)
        snprintf(why, size, "an empty launch: grid (%u,%u,%u), block (%u,%u,%u)", g.x, g.y, g.z, b.x, b.y, b.z);
    else if (threads > MAX_BLOCK || b.x > 1024 || b.y > 1024 || b.z > 64)
        snprintf(why, size, "block (%u,%u,%u) has %llu threads; a block has at most 1024, and at most 64 along z",
                 b.x, b.y, b.z, (unsigned long long)threads);
    else if (g.x > 2147483647u || g.y > 65535 || g.z > 65535)
        snprintf(why, size, "grid (%u,%u,%u); the limits are 2147483647, 65535 and 65535", g.x, g.y, g.z);
    else if (fixed > SIM_SMEM_STATIC_MAX)
        snprintf(why, size, "%zu bytes of __shared__ arrays; the limit is %d (48 KB), use dynamic shared memory",
                 fixed, SIM_SMEM_STATIC_MAX);
    else if (fixed + l->dynamic_smem > smem_limit())
        snprintf(why, size, "%zu bytes of shared memory (%zu of them dynamic); a block may use %zu",
                 fixed + l->dynamic_smem, l->dynamic_smem, smem_limit());
    else if (l->dynamic_smem > allowed_dynamic(l->function, fixed))
        snprintf(why, size,
                 "%zu bytes of dynamic shared memory, %zu allowed; call cudaFuncSetAttribute(kernel, "
                 "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) first",
                 l->dynamic_smem, allowed_dynamic(l->function, fixed));
}

static void count_launch(const struct sim_launch *l, size_t fixed) {
    if (counts.launch_names < 64)
        kernel_name(l->kernel, counts.launch_name[counts.launch_names++], sizeof counts.launch_name[0]);
    counts.launches++;
    if (fixed + l->dynamic_smem > counts.smem_per_block) counts.smem_per_block = fixed + l->dynamic_smem;
}

void sim_launch(const struct sim_launch *l) {
    if (first_error[0]) return;    // as on a GPU: the error stays until somebody asks for it
    sim_now = l;
    grid.failed = false;
    size_t fixed = symbols_static_smem(l->function);
    char why[400] = "";
    check_launch(l, fixed, why, sizeof why);
    if (why[0]) {
        char message[520];
        snprintf(message, sizeof message, "cannot launch at %s:%d: %s", l->place.file, l->place.line, why);
        keep_error(message);
    } else {
        count_launch(l, fixed);
        grid.next_block = 0;
        grid.blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
        memory_launch_begin();
        pool_run(worker_count(grid.blocks), symbols_shared_map(l->function, l->dynamic_smem));
        memory_launch_end();
    }
    sim_now = NULL;
}

// ---- for the host ------------------------------------------------------------------------------

void sim_reset(const struct sim_options *o) {
    options = *o;
    first_error[0] = 0;
    attributes = 0;
    memset(&counts, 0, sizeof counts);
    for (int b = 1; b < sim_buffers; b++) {
        memset(&sim_buffer[b].total, 0, sizeof sim_buffer[b].total);
        memset(sim_buffer[b].distinct, 0, sizeof sim_buffer[b].distinct);
    }
}

void sim_counts(struct sim_counts *out) {
    *out = counts;
    for (int b = 1; b < sim_buffers; b++) {
        if (!sim_buffer[b].live) continue;
        struct sim_buffer_counts *c = &out->buffer[out->buffers++];
        snprintf(c->name, sizeof c->name, "%s", sim_buffer[b].name);
        c->size = sim_buffer[b].size;
        memcpy(c->bytes, sim_buffer[b].total.bytes, sizeof c->bytes);
        memcpy(c->sectors, sim_buffer[b].total.sectors, sizeof c->sectors);
        memcpy(c->distinct, sim_buffer[b].distinct, sizeof c->distinct);
    }
}

// launch.c - grids: what may be launched, the OS threads that run the blocks, and what the host
// learns afterwards.

#include "internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STACK_BYTES = 256 << 10, MAX_WORKERS = 16, MAX_BLOCK = 1024, MAX_ATTRIBUTES = 256 };

const struct sim_launch *sim_now;

static struct sim_options options;
static struct sim_counts counts; // all but the buffers, which memory.c keeps
static char first_error[1200], first_warning[440];

// The launch in progress, shared by the workers.
static struct {
    pthread_mutex_t lock;
    uint64_t next_block, blocks, done;
    bool failed;
    char suspicion[900]; // of detect.c
    uint8_t *fenced;     // a bit per block that called __threadfence(); NULL: none did
} grid = {.lock = PTHREAD_MUTEX_INITIALIZER};

// ---- errors --------------------------------------------------------------------------------

void sim_kernel_name(const char *text, char *out, size_t size) {
    size_t n = strlen(text);
    bool wrapped = n > 2 && text[0] == '(' && text[n - 1] == ')';
    snprintf(out, size, "%.*s", (int)(wrapped ? n - 2 : n), text + wrapped);
}

static void keep_error(const char *message) {
    pthread_mutex_lock(&grid.lock);
    if (!grid.failed && !first_error[0]) {
        char kernel[48];
        sim_kernel_name(sim_now->kernel, kernel, sizeof kernel);
        snprintf(first_error, sizeof first_error, "%s: %s", kernel, message);
    }
    grid.failed = true;
    pthread_mutex_unlock(&grid.lock);
}

void sim_blame(const struct thread *t, const char *what, char *out, size_t size) {
    struct sim_dim3 i = t->idx, b = sim_worker->block_idx;
    snprintf(out, size, "%s, thread (%u,%u,%u) of block (%u,%u,%u)", what, i.x, i.y, i.z, b.x, b.y,
             b.z);
}

_Noreturn void sim_fail_at(const struct thread *t, const char *format, ...) {
    struct worker *w = sim_worker;
    char what[1000], message[1100];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    sim_blame(t, what, message, sizeof message);
    keep_error(w->suspicion[0] ? w->suspicion
                               : message); // a value out of nowhere may well be the cause
    w->suspicion[0] = 0;
    fiber_end(&w->self->fiber, &w->home); // and all of the block's other fibers stay where they are
}

// Says once for each place that something is allowed but unwise.
void sim_warn(const char *format, ...) {
    char what[380];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&grid.lock);
    if (!first_warning[0]) {
        char kernel[48];
        sim_kernel_name(sim_now->kernel, kernel, sizeof kernel);
        snprintf(first_warning, sizeof first_warning, "%s: %s", kernel, what);
    }
    pthread_mutex_unlock(&grid.lock);
}

bool sim_fast(void) { return options.fast; }

const char *sim_warning(void) { return first_warning; }

void sim_thread_fence(void) {
    uint32_t block = sim_worker->block;
    pthread_mutex_lock(&grid.lock);
    if (!grid.fenced) grid.fenced = sim_memory(calloc(grid.blocks / 8 + 1, 1));
    grid.fenced[block / 8] |= (uint8_t)(1 << block % 8);
    pthread_mutex_unlock(&grid.lock);
}

bool sim_block_fenced(uint32_t block) {
    return grid.fenced && (grid.fenced[block / 8] >> block % 8 & 1);
}

const char *sim_error(void) { return first_error; }

// ---- one worker: an OS thread with the fibers of one block -----------------------------------

static bool make_thread(struct thread *t, int number) {
    t->log = malloc((LOG_ENTRIES + 2) * sizeof *t->log);
    t->log_end = t->log + LOG_ENTRIES;
    return fiber_create(&t->fiber, STACK_BYTES, number) && t->log;
}

// Fibers are kept from launch to launch, also those that a smaller block has no use for, since
// mapping a stack costs far more than using it.
static bool make_threads(struct worker *w, struct sim_dim3 block) {
    int n = (int)(block.x * block.y * block.z);
    if (!w->thread) w->thread = calloc(MAX_BLOCK, sizeof *w->thread);
    if (!w->warp) w->warp = calloc(MAX_BLOCK / 32, sizeof *w->warp);
    if (!w->thread || !w->warp) return false;
    for (; w->made < n; w->made++)
        if (!make_thread(&w->thread[w->made], w->made)) return false;
    w->threads = n;
    w->warps = (n + 31) / 32;
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

static void add_tally(struct worker *w) {
    struct tally *t = &w->tally;
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
    profile_add(&w->profile);
    pthread_mutex_unlock(&grid.lock);
    memset(t, 0, sizeof *t);
}

// Blocks on other workers may still turn it into a race, so it waits for the end of the launch.
static void keep_suspicion(struct worker *w) {
    pthread_mutex_lock(&grid.lock);
    if (w->suspicion[0] && !grid.suspicion[0])
        memcpy(grid.suspicion, w->suspicion, sizeof grid.suspicion);
    pthread_mutex_unlock(&grid.lock);
    w->suspicion[0] = 0;
}

static void run_worker(struct worker *w, const uint8_t *shared_owner) {
    w->fast = options.fast;
    w->profiling = options.profile;
    w->fp8_14_bits = options.fp8_14_bits;
    w->shared_owner = shared_owner;
    uint64_t block;
    if (!make_threads(w, sim_now->block))
        keep_error("no memory for the stacks of a block's threads");
    while (take_block(&block)) {
        scheduler_run_block(w, block);
        __atomic_fetch_add(&grid.done, 1, __ATOMIC_RELAXED);
    }
    keep_suspicion(w);
    add_tally(w);
}

// ---- the pool of OS threads --------------------------------------------------------------------

static struct {
    pthread_mutex_t lock;
    pthread_cond_t go, done;
    int threads, wanted, busy;
    uint64_t round;
    const uint8_t *shared_owner;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .go = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static void *pool_thread(void *number) {
    int me = (int)(intptr_t)number;
    struct worker *w = sim_worker = sim_memory(calloc(1, sizeof *w));
    symbols_own_segments(w);
    w->home.stack = (char *)w->stack_base;
    w->home.mapped = w->stack_bytes;
    w->shared_cell = sim_memory(detect_new_cells(w->shared_bytes));
    faults_catch();
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

// Seconds after which a launch says that it still runs, which says what a program is doing whose
// kernel has a loop without end. SIM_PATIENCE in the environment sets them, to 0.01 at the least.
static double patience(void) {
    const char *text = getenv("SIM_PATIENCE");
    double seconds = text ? atof(text) : 0;
    return seconds >= 0.01 && seconds < 1e9 ? seconds : 10;
}

static void say_where_it_is(double seconds) {
    char kernel[48];
    sim_kernel_name(sim_now->kernel, kernel, sizeof kernel);
    // On a terminal the harness has a line there that has not ended.
    fprintf(stderr, "%sstill in kernel %s after %.0f s: %llu of %llu blocks done\n",
            isatty(STDERR_FILENO) ? "\r\033[K" : "", kernel, seconds,
            (unsigned long long)__atomic_load_n(&grid.done, __ATOMIC_RELAXED),
            (unsigned long long)grid.blocks);
}

// The host's thread has nothing else to do than to wait, so looking at the clock costs the kernel
// nothing. Says where the launch is after some seconds, and then six times as rarely.
static void wait_for_workers(void) {
    double seconds = patience(), next = seconds;
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (pool.busy) {
        struct timespec until = start;
        until.tv_sec += (time_t)next;
        until.tv_nsec += (long)((next - (double)(time_t)next) * 1e9);
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        int how = pthread_cond_clockwait(&pool.done, &pool.lock, CLOCK_MONOTONIC, &until);
        if (how != ETIMEDOUT || !pool.busy) continue;
        say_where_it_is(next);
        next += 6 * seconds;
    }
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
    wait_for_workers();
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
        snprintf(why, size, "an empty launch: grid (%u,%u,%u), block (%u,%u,%u)", g.x, g.y, g.z,
                 b.x, b.y, b.z);
    else if (threads > MAX_BLOCK || b.x > 1024 || b.y > 1024 || b.z > 64)
        snprintf(
            why, size,
            "block (%u,%u,%u) has %llu threads; a block has at most 1024, and at most 64 along z",
            b.x, b.y, b.z, (unsigned long long)threads);
    else if (g.x > 2147483647u || g.y > 65535 || g.z > 65535)
        snprintf(why, size, "grid (%u,%u,%u); the limits are 2147483647, 65535 and 65535", g.x, g.y,
                 g.z);
    else if (fixed > SIM_SMEM_STATIC_MAX)
        snprintf(
            why, size,
            "%zu bytes of __shared__ arrays; the limit is %d (48 KB), use dynamic shared memory",
            fixed, SIM_SMEM_STATIC_MAX);
    else if (fixed + l->dynamic_smem > smem_limit())
        snprintf(why, size, "%zu bytes of shared memory (%zu of them dynamic); a block may use %zu",
                 fixed + l->dynamic_smem, l->dynamic_smem, smem_limit());
    else if (l->dynamic_smem > allowed_dynamic(l->function, fixed))
        snprintf(
            why, size,
            "%zu bytes of dynamic shared memory, %zu allowed; call cudaFuncSetAttribute(kernel, "
            "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) first",
            l->dynamic_smem, allowed_dynamic(l->function, fixed));
}

static void count_launch(const struct sim_launch *l, size_t fixed) {
    if (counts.launch_names < 64)
        sim_kernel_name(l->kernel, counts.launch_name[counts.launch_names++],
                        sizeof counts.launch_name[0]);
    counts.launches++;
    if (fixed + l->dynamic_smem > counts.smem_per_block)
        counts.smem_per_block = fixed + l->dynamic_smem;
}

void sim_launch(const struct sim_launch *l) {
    if (first_error[0]) return; // as on a GPU: the error stays until somebody asks for it
    sim_now = l;
    grid.failed = false;
    grid.suspicion[0] = 0;
    size_t fixed = symbols_static_smem(l->function);
    char why[400] = "";
    check_launch(l, fixed, why, sizeof why);
    if (why[0]) {
        char message[520];
        snprintf(message, sizeof message, "cannot launch at %s:%d: %s", l->place.file,
                 l->place.line, why);
        keep_error(message);
    } else {
        count_launch(l, fixed);
        timeline_launch();
        grid.next_block = grid.done = 0;
        grid.blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
        memory_launch_begin();
        pool_run(worker_count(grid.blocks), symbols_shared_map(l->function, l->dynamic_smem));
        memory_launch_end();
        if (grid.suspicion[0]) keep_error(grid.suspicion);
        free(grid.fenced);
        grid.fenced = NULL;
    }
    sim_now = NULL;
}

// ---- for the host ------------------------------------------------------------------------------

void sim_reset(const struct sim_options *o) {
    options = *o;
    first_error[0] = first_warning[0] = 0;
    attributes = 0;
    memset(&counts, 0, sizeof counts);
    profile_reset();
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

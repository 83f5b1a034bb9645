// memory.c - HBM as a range of addresses, and the hooks through which every access is seen.
//
// A kernel file is compiled with the compiler's ThreadSanitizer instrumentation, which puts a call
// such as __tsan_read4(address) before each load and store, but linked without ThreadSanitizer's
// runtime: the functions are ours. An address inside the HBM range is a global access, one inside
// the OS thread's TLS segment (where __shared__ arrays live, as thread_local) is a shared one, and
// anything else is a register or a local variable of the kernel and does not count.

#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// HBM is handed out in granules of 64 KB, with at least one unused granule after every buffer, so
// that running off the end of one does not land in the next.
#define HBM_MOST ((size_t)1 << 38) // of addresses; pages are real only once touched
enum { GRANULE = 64 << 10, NULL_PAGE = 64 << 10 };

static uintptr_t hbm; // where the range starts; 0: not mapped yet
static size_t hbm_bytes;
static uint8_t granule_owner[HBM_MOST / GRANULE]; // number of the buffer, 0 for none
struct buffer sim_buffer[SIM_MAX_BUFFERS];
int sim_buffers = 1;

// ---- buffers -----------------------------------------------------------------------------------

static uint8_t *owner_of(uintptr_t address) { return &granule_owner[(address - hbm) / GRANULE]; }

// Addresses cost nothing, but a limit on them may be set (ulimit -v): then take what there is.
static bool map_hbm(void) {
    for (size_t bytes = HBM_MOST; !hbm && bytes >= GRANULE; bytes /= 2) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) continue;
        hbm = (uintptr_t)p;
        hbm_bytes = bytes;
    }
    return hbm != 0;
}

// First gap that is large enough. There are few buffers, so looking at each granule is fine.
static uintptr_t find_gap(size_t granules) {
    size_t all = hbm_bytes / GRANULE, run = 0;
    for (size_t g = 1; g < all; g++) {
        run = granule_owner[g] ? 0 : run + 1;
        if (run == granules + 2) return hbm + (g - granules) * GRANULE;
    }
    return 0;
}

static int free_number(void) {
    for (int b = 1; b < sim_buffers; b++)
        if (!sim_buffer[b].live) return b;
    return sim_buffers < SIM_MAX_BUFFERS ? sim_buffers++ : 0;
}

// What a buffer takes in the end, with all that is kept about it.
static size_t real_size(size_t bytes, bool cells) {
    return bytes + bytes / 32 + bytes / 4 + (cells ? detect_cell_bytes(bytes) : 0);
}

static bool enough_memory(size_t bytes, bool cells) {
    size_t used = 0, all = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    for (int b = 1; b < sim_buffers; b++)
        if (sim_buffer[b].live) used += real_size(sim_buffer[b].size, sim_buffer[b].cell != NULL);
    return bytes <= all &&
           used + real_size(bytes, cells) <= all / 10 * 9; // never drive the machine into swapping
}

void *sim_memory(void *given) {
    if (given) return given;
    fputs("the simulator has no memory left for its notes; try a smaller shape\n", stderr);
    exit(3);
}

void *sim_alloc(const char *name, size_t bytes) {
    size_t granules = bytes / GRANULE + 1;
    bool cells = !sim_fast();
    if (!enough_memory(bytes, cells) || !map_hbm()) return NULL;
    uintptr_t start = find_gap(granules);
    int number = start ? free_number() : 0;
    if (!number) return NULL;
    struct buffer *b = &sim_buffer[number];
    *b = (struct buffer){.start = start, .size = bytes, .live = true};
    b->touched = calloc(bytes / 32 + 1, 1);
    b->written = calloc(bytes / 4 + 1, 1);
    b->cell = cells ? detect_new_cells(bytes) : NULL;
    snprintf(b->name, sizeof b->name, "%s", name);
    memset(owner_of(start), number, granules);
    if (b->touched && b->written && (b->cell || !cells)) {
        sim_poison((void *)start);
        return (void *)start;
    }
    sim_free((void *)start);
    return NULL;
}

void sim_poison(void *p) {
    struct buffer *b = &sim_buffer[sim_buffer_at((uintptr_t)p)];
    memset((void *)b->start, 0xff, b->size); // NaN in every type that we use
    memset(b->written, 0, b->size / 4 + 1);
}

void sim_set_written(void *p, bool input) {
    struct buffer *b = &sim_buffer[sim_buffer_at((uintptr_t)p)];
    memset(b->written, 0xf, b->size / 4 + 1);
    b->input = input;
    if (!input) return;
    detect_free_cells(b->cell, b->size); // what nobody writes, nobody races on
    b->cell = NULL;
}

void sim_free(void *p) {
    int number = sim_buffer_at((uintptr_t)p);
    if (!number) return;
    struct buffer *b = &sim_buffer[number];
    size_t granules = b->size / GRANULE + 1;
    memset(owner_of(b->start), 0, granules);
    madvise((void *)b->start, granules * GRANULE, MADV_DONTNEED);
    free(b->touched);
    free(b->written);
    detect_free_cells(b->cell, b->size);
    *b = (struct buffer){0};
}

int sim_buffer_at(uintptr_t address) {
    return hbm && address - hbm < hbm_bytes ? *owner_of(address) : 0;
}

void memory_launch_begin(void) {
    for (int b = 1; b < sim_buffers; b++)
        if (sim_buffer[b].live) {
            memset(sim_buffer[b].touched, 0, sim_buffer[b].size / 32 + 1);
            detect_forget(sim_buffer[b].cell, sim_buffer[b].size);
        }
}

void memory_launch_end(void) {
    for (int b = 1; b < sim_buffers; b++)
        for (size_t s = 0; sim_buffer[b].live && s <= sim_buffer[b].size / 32; s++)
            for (int k = 0; k < SIM_KINDS; k++)
                sim_buffer[b].distinct[k] += sim_buffer[b].touched[s] >> k & 1;
}

// ---- what can be wrong with an address -------------------------------------------------------

const char *memory_verb(int kind) {
    static const char *const verb[SIM_KINDS] = {"load", "store", "atomic", "tma_load", "tma_store"};
    return verb[kind];
}

static struct buffer *nearest_buffer(uintptr_t a) {
    struct buffer *best = NULL;
    size_t distance = SIZE_MAX;
    for (int i = 1; i < sim_buffers; i++) {
        struct buffer *b = &sim_buffer[i];
        size_t d = a < b->start             ? b->start - a
                   : a - b->start < b->size ? 0
                                            : a - b->start - b->size;
        if (b->live && d < distance) best = b, distance = d;
    }
    return best;
}

static _Noreturn void fail_global(uintptr_t a, unsigned size, int kind, uint32_t pc) {
    struct buffer *b = nearest_buffer(a);
    if (!b)
        sim_fail("out of bounds: %s of %u bytes where no buffer is, at %s", memory_verb(kind), size,
                 symbols_place(pc));
    if (a < b->start)
        sim_fail("out of bounds: %s of %u bytes, %zu bytes before the start of %s, at %s",
                 memory_verb(kind), size, (size_t)(b->start - a), b->name, symbols_place(pc));
    sim_fail("out of bounds: %s of %u bytes, %zu bytes after the start of %s, which has %zu, at %s",
             memory_verb(kind), size, (size_t)(a - b->start), b->name, b->size, symbols_place(pc));
}

static bool is_mapped(uintptr_t a) {
    unsigned char in_core;
    return mincore((void *)(a / 4096 * 4096), 1, &in_core) == 0;
}

static _Noreturn void fail_shared(struct worker *w, uintptr_t a, unsigned size, int kind,
                                  uint32_t pc) {
    size_t start, bytes, offset = a - w->shared_base;
    const char *name = symbols_shared_name(offset, &start, &bytes);
    if (!name[0])
        sim_fail("out of bounds: %s of %u bytes of shared memory, and this kernel has none, at %s "
                 "(a __shared__ array "
                 "must be declared in the kernel itself)",
                 memory_verb(kind), size, symbols_place(pc));
    bool before = (intptr_t)offset < (intptr_t)start;
    sim_fail("out of bounds: %s of %u bytes of shared memory, %zu bytes %s the start of %s, which "
             "has %zu, at %s",
             memory_verb(kind), size, before ? start - offset : offset - start,
             before ? "before" : "after", name, bytes, symbols_place(pc));
}

// What is neither HBM nor shared memory should be the thread's own stack, a constant of the
// program, or the kernel's arguments. Anything else is the host's, and no GPU could reach it.
static void check_private(struct worker *w, uintptr_t a, unsigned size, int kind, uint32_t pc) {
    const struct fiber *f = &w->self->fiber;
    if (a - (uintptr_t)f->stack < f->mapped) {
        if (w->self->registers) wgmma_touch(w->self, a, size, kind, pc);
        return;
    }
    if (a - (uintptr_t)sim_now->arguments < sim_now->argument_bytes ||
        (kind == SIM_LOAD && symbols_is_constant(a)))
        return;
    if (a < NULL_PAGE)
        sim_fail("null pointer: %s of %u bytes at address %zu, at %s", memory_verb(kind), size,
                 (size_t)a, symbols_place(pc));
    if (a - w->stack_base < w->stack_bytes) fail_shared(w, a, size, kind, pc);
    if (is_mapped(a))
        sim_fail("host memory: %s of %u bytes at %s; a kernel can only reach buffers of the "
                 "device, and its own arguments",
                 memory_verb(kind), size, symbols_place(pc));
} // not mapped: the access itself will fault, see faults.c

static _Noreturn void fail_misaligned(uintptr_t a, unsigned size, int kind, uint32_t pc) {
    sim_fail("misaligned: %s of %u bytes at an address that is %u modulo %u, at %s",
             memory_verb(kind), size, (unsigned)(a % size), size, symbols_place(pc));
}

// ---- the hooks ---------------------------------------------------------------------------------

#define ALWAYS_INLINE static inline __attribute__((always_inline))

static __attribute__((noinline)) void log_to_full(struct access a) {
    struct thread *t = sim_worker->self;
    bool beside_its_load = t->log_next[-1].flags & COPY; // a place is kept for it
    if (!beside_its_load) scheduler_catch_up(sim_worker);
    *t->log_next++ = a;
}

ALWAYS_INLINE void log_access(struct thread *t, struct access a) {
    if (t->log_next >= t->log_end)
        log_to_full(a);
    else
        *t->log_next++ = a;
}

// The heart of it: called for each access of each CUDA thread, so every instruction here counts.
ALWAYS_INLINE void see_at(struct worker *w, uintptr_t a, unsigned size, int kind, unsigned flags,
                          uint32_t pc) {
    enum space space;
    if (a - hbm < hbm_bytes) {
        int b = *owner_of(a);
        if (a + size - sim_buffer[b].start > sim_buffer[b].size) fail_global(a, size, kind, pc);
        w->tally.buffer[b].bytes[kind] += size;
        space = GLOBAL;
    } else if (a - w->shared_base < w->shared_bytes) {
        const uint8_t *owner = w->shared_owner + (a - w->shared_base);
        if (!owner[0] || !owner[size - 1]) fail_shared(w, a, size, kind, pc);
        w->tally.shared_bytes[kind] += size;
        space = SHARED;
    } else {
        check_private(w, a, size, kind, pc);
        return;
    }
    if (a & (size - 1)) fail_misaligned(a, size, kind, pc);
    if (!w->fast)
        log_access(w->self, (struct access){a, pc, (uint8_t)size, (uint8_t)kind, (uint8_t)space,
                                            (uint8_t)(flags | w->self->part_syncs)});
}

ALWAYS_INLINE void see(uintptr_t a, unsigned size, int kind, const void *return_address) {
    struct worker *w = sim_worker;
    if (w) see_at(w, a, size, kind, 0, symbols_pc(return_address)); // NULL: the host's code
}

// A copy of a whole struct. The GPU would move it in pieces of at most 16 bytes, too.
static void see_range(uintptr_t a, size_t bytes, int kind, const void *return_address) {
    while (bytes) {
        unsigned size = 16;
        while (size > bytes || (a & (size - 1))) size /= 2;
        see(a, size, kind, return_address);
        a += size;
        bytes -= size;
    }
}

#define HERE __builtin_return_address(0)
#define ADDRESS (uintptr_t) p
#define HOOKS(n)                                                                                   \
    void __tsan_read##n(void *p) { see(ADDRESS, n, SIM_LOAD, HERE); }                              \
    void __tsan_write##n(void *p) { see(ADDRESS, n, SIM_STORE, HERE); }                            \
    void __tsan_unaligned_read##n(void *p) { see(ADDRESS, n, SIM_LOAD, HERE); }                    \
    void __tsan_unaligned_write##n(void *p) { see(ADDRESS, n, SIM_STORE, HERE); }                  \
    void __tsan_volatile_read##n(void *p) { see(ADDRESS, n, SIM_LOAD, HERE); }                     \
    void __tsan_volatile_write##n(void *p) { see(ADDRESS, n, SIM_STORE, HERE); }                   \
    void __tsan_read_write##n(void *p) {                                                           \
        see(ADDRESS, n, SIM_LOAD, HERE), see(ADDRESS, n, SIM_STORE, HERE);                         \
    }

// The compilers' names; nobody declares them for us.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void *p, size_t n) { see_range(ADDRESS, n, SIM_LOAD, HERE); }
void __tsan_write_range(void *p, size_t n) { see_range(ADDRESS, n, SIM_STORE, HERE); }
void *__tsan_memcpy(void *to, const void *from, size_t n) {
    see_range((uintptr_t)from, n, SIM_LOAD, HERE);
    see_range((uintptr_t)to, n, SIM_STORE, HERE);
    return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n) {
    see_range((uintptr_t)from, n, SIM_LOAD, HERE);
    see_range((uintptr_t)to, n, SIM_STORE, HERE);
    return memmove(to, from, n);
}
void *__tsan_memset(void *p, int c, size_t n) {
    see_range(ADDRESS, n, SIM_STORE, HERE);
    return memset(p, c, n);
}
void __tsan_init(void) {}
void __tsan_func_entry(void *p) { (void)p; }
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **p, void *v) { (void)p, (void)v; }
void __tsan_vptr_read(void **p) { (void)p; }

// At the start of every basic block (-fsanitize-coverage=trace-pc). A step backwards in the code is
// the end of a loop's iteration: the mark left there keeps lanes whose iterations differ in their
// accesses in step with each other (meter.c).
void __sanitizer_cov_trace_pc(void) {
    struct worker *w = sim_worker;
    if (!w || w->fast) return;
    struct thread *t = w->self;
    uint32_t pc = symbols_pc(HERE);
    uint32_t last = t->last_block;
    t->last_block = pc;
    if (pc <= last) log_access(t, (struct access){.pc = last, .space = MARK});
}
#pragma GCC diagnostic pop

// ---- for the instructions of ptx.h --------------------------------------------------------------

void memory_access(const void *p, unsigned size, int kind, unsigned flags, uint32_t pc) {
    see_at(sim_worker, ADDRESS, size, kind, flags, pc);
}

void memory_note(const void *p, unsigned size, int kind, unsigned flags, uint32_t pc) {
    struct worker *w = sim_worker;
    uint8_t space = memory_is_shared(p) ? SHARED : GLOBAL;
    if (!w->fast)
        log_access(w->self, (struct access){ADDRESS, pc, (uint8_t)size, (uint8_t)kind, space,
                                            (uint8_t)(flags | w->self->part_syncs)});
}

void memory_log(enum space space, const void *p, uint32_t pc) {
    struct worker *w = sim_worker;
    if (!w->fast)
        log_access(w->self, (struct access){.address = ADDRESS, .pc = pc, .space = (uint8_t)space});
}

bool memory_owns(const void *p, size_t bytes) {
    const struct worker *w = sim_worker;
    size_t offset = ADDRESS - w->shared_base;
    return offset < w->shared_bytes && bytes <= w->shared_bytes - offset &&
           !memchr(w->shared_owner + offset, 0, bytes);
}

// Takes long: for messages only.
const char *memory_name(const void *p) {
    char *out = sim_worker->name;
    size_t start, bytes, offset = ADDRESS - sim_worker->shared_base, size = sizeof sim_worker->name;
    int b = sim_buffer_at(ADDRESS);
    if (b)
        snprintf(out, size, "%s + %zu", sim_buffer[b].name, ADDRESS - sim_buffer[b].start);
    else if (memory_is_shared(p)) {
        const char *name = symbols_shared_name(offset, &start, &bytes);
        snprintf(out, size, "%.60s + %zu", name, offset - start);
    } else
        snprintf(out, size, "address 0x%zx", (size_t)ADDRESS);
    return out;
}

bool memory_is_shared(const void *p) {
    return ADDRESS - sim_worker->shared_base < sim_worker->shared_bytes;
}

bool memory_is_global(const void *p) { return hbm && ADDRESS - hbm < hbm_bytes; }

// ---- atomics -----------------------------------------------------------------------------------

// Blocks run on several OS threads, so these are real atomics; for floats by compare-and-swap.
#define ATOMIC_ADD(name, type, bits_type)                                                          \
    static type add_##bits_type##_##type(type *p, type value) {                                    \
        bits_type *word = (bits_type *)p, old = __atomic_load_n(word, __ATOMIC_RELAXED), new_bits; \
        type sum, before;                                                                          \
        do {                                                                                       \
            memcpy(&before, &old, sizeof before);                                                  \
            sum = before + value;                                                                  \
            memcpy(&new_bits, &sum, sizeof sum);                                                   \
        } while (!__atomic_compare_exchange_n(word, &old, new_bits, true, __ATOMIC_RELAXED,        \
                                              __ATOMIC_RELAXED));                                  \
        return before;                                                                             \
    }                                                                                              \
    type name(type *p, type value) {                                                               \
        see(ADDRESS, sizeof(type), SIM_ATOMIC, HERE);                                              \
        return add_##bits_type##_##type(p, value);                                                 \
    }
ATOMIC_ADD(sim_atomic_add_f32, float, uint32_t)
ATOMIC_ADD(sim_atomic_add_f64, double, uint64_t)
ATOMIC_ADD(sim_atomic_add_u32, uint32_t, uint32_t)
ATOMIC_ADD(sim_atomic_add_u64, uint64_t, uint64_t)

// Counts from 0 up to `last`, and then from 0 again.
uint32_t sim_atomic_inc_u32(uint32_t *p, uint32_t last) {
    see(ADDRESS, sizeof *p, SIM_ATOMIC, HERE);
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED), next;
    do next = old >= last ? 0 : old + 1;
    while (!__atomic_compare_exchange_n(p, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

// Four neighbours in one request; each is an atomic operation of its own.
void sim_red_add_f32x4(float *p, const float value[4]) {
    if (sim_worker && !memory_is_global(p))
        sim_fail("red_add_f32x4(): the address is not in global memory, at %s",
                 symbols_place(symbols_pc(HERE)));
    see(ADDRESS, 16, SIM_ATOMIC, HERE);
    for (int i = 0; i < 4; i++) add_uint32_t_float(p + i, value[i]);
}

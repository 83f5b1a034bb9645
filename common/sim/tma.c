// tma.c - copies of whole boxes of a tensor, which one thread starts.
//
// PTX ISA, "cp.async.bulk.tensor". A load lands when somebody waits for its mbarrier and nothing
// else can happen; until then its destination is NaN, and detect.c knows it as under way. A store
// reads shared memory in the wait that asks for it (or the one for all), and writes HBM in the wait
// for all, or at the end of the block. What it should have copied is kept, so that a source which
// has changed by then is noticed.

#include "sm90.h"

#include "refuse.h"
#include "tensor_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HERE __builtin_return_address(0)

// ---- the map ------------------------------------------------------------------------------------

// What the simulator keeps in a CUtensorMap's 128 bytes.
struct map {
    uint64_t magic;
    struct tensor_box tensor; // above its rank with one element, and 0 bytes to the next
};
_Static_assert(sizeof(struct map) <= 128, "the size of a CUtensorMap");
static const uint64_t magic = 0x70616d726f736e65; // "ensormap"

bool tensor_map_encode(const struct tensor_box *t, void *out, char *why, size_t why_size) {
    if (!tensor_box_check(t, why, why_size)) return false;
    struct map map = {.magic = magic, .tensor = *t};
    struct tensor_box *m = &map.tensor;
    m->stride[0] = (uint64_t)t->element_bytes;
    for (int i = t->rank; i < TENSOR_MAX_RANK; i++) m->size[i] = m->box[i] = 1, m->stride[i] = 0;
    uint64_t extent = (uint64_t)t->element_bytes;
    for (int i = 0; i < t->rank; i++) extent += (m->size[i] - 1) * m->stride[i];
    const struct buffer *b = &sim_buffer[sim_buffer_at((uintptr_t)t->base)];
    uint64_t offset = (uintptr_t)t->base - b->start;
    if (!b->live || offset + extent > b->size)
        return refuse(
            why, why_size,
            "tensor map: the tensor takes %llu bytes from its base, and the device's buffer "
            "has %llu from there",
            (unsigned long long)extent, (unsigned long long)(b->live ? b->size - offset : 0));
    memcpy(out, &map, sizeof map);
    return true;
}

// ---- one copy -----------------------------------------------------------------------------------

struct box {
    struct box *next;      // in the block's list, oldest first
    struct tensor_box map; // a copy: the thread that started it may have exited
    int at[TENSOR_MAX_RANK];
    unsigned char *smem;
    size_t bytes;
    struct thread *thread;
    struct sim_place place;
    uint32_t pc, step;        // where and when it was started
    struct mbarrier *barrier; // of a load; NULL: this is a store
    uint32_t group;           // of a store
    bool read;                // its source has been
    unsigned char *data;      // the source, as it was when the store was started
};

// The part of one row of the box that lies in the tensor.
struct part {
    char *global;
    size_t offset, bytes; // in the box, before swizzling
};

// Calls `f` for each row of the box that is at least partly in the tensor.
static void each_part(const struct box *b, void (*f)(const struct box *, struct part)) {
    const struct tensor_box *m = &b->map;
    int64_t row = 0, i[TENSOR_MAX_RANK];
    int64_t first = b->at[0] < 0 ? -(int64_t)b->at[0] : 0; // in the row
    int64_t end = (int64_t)m->size[0] - b->at[0];
    if (end > m->box[0]) end = m->box[0];
    for (i[3] = 0; i[3] < m->box[3]; i[3]++)
        for (i[2] = 0; i[2] < m->box[2]; i[2]++)
            for (i[1] = 0; i[1] < m->box[1]; i[1]++, row++) {
                char *global = (char *)m->base + (b->at[0] + first) * m->element_bytes;
                bool inside = end > first;
                for (int k = 1; k < TENSOR_MAX_RANK; k++) {
                    int64_t x = b->at[k] + i[k];
                    inside &= x >= 0 && x < (int64_t)m->size[k];
                    global += x * (int64_t)m->stride[k];
                }
                if (!inside) continue;
                size_t offset = (size_t)((row * m->box[0] + first) * m->element_bytes);
                f(b, (struct part){global, offset, (size_t)((end - first) * m->element_bytes)});
            }
}

// Where byte `offset` of the box lies, within `base`, a place for all of it that is as aligned as
// shared memory is. Swizzling exchanges 16-byte pieces: bits 4-6 of the address xor 7-9 within 128
// bytes, bits 4 and 5 xor 7 and 8 within 64, bit 4 xor 7 within 32.
static unsigned char *place_of(const struct box *b, unsigned char *base, size_t offset) {
    if (b->map.swizzle != SWIZZLE_NONE) offset ^= offset >> 3 & (b->map.swizzle - 16u);
    return base + offset;
}

// Copies a part piece by piece, where a piece does not cross a multiple of 16 bytes.
static void move(const struct box *b, unsigned char *base, struct part p, bool load) {
    for (size_t done = 0, n; done < p.bytes; done += n) {
        size_t offset = p.offset + done;
        n = 16 - offset % 16 < p.bytes - done ? 16 - offset % 16 : p.bytes - done;
        unsigned char *shared = place_of(b, base, offset);
        memcpy(load ? (char *)shared : p.global + done, load ? p.global + done : (char *)shared, n);
    }
}

static void load_part(const struct box *b, struct part p) { move(b, b->smem, p, true); }
static void store_part(const struct box *b, struct part p) { move(b, b->data, p, false); }

// ---- starting one -------------------------------------------------------------------------------

static size_t bytes_inside(const struct box *b) {
    int64_t bytes = b->map.element_bytes;
    for (int i = 0; i < b->map.rank; i++) {
        int64_t first = b->at[i], end = first + b->map.box[i], size = (int64_t)b->map.size[i];
        if (first < 0) first = 0;
        if (end > size) end = size;
        bytes *= end > first ? end - first : 0;
    }
    return (size_t)bytes;
}

static void count_part(const struct box *b, struct part p) {
    int kind = b->barrier ? SIM_TMA_LOAD : SIM_TMA_STORE;
    uintptr_t from = (uintptr_t)p.global;
    struct buffer *buffer = &sim_buffer[sim_buffer_at(from)];
    for (uintptr_t s = from / 32; s <= (from + p.bytes - 1) / 32; s++)
        __atomic_fetch_or(&buffer->touched[s - buffer->start / 32], (uint8_t)(1 << kind),
                          __ATOMIC_RELAXED);
}

// What is outside of the tensor is loaded, too (as zeros), and not stored.
static void count(const struct box *b) {
    struct worker *w = sim_worker;
    int kind = b->barrier ? SIM_TMA_LOAD : SIM_TMA_STORE;
    size_t bytes = b->barrier ? b->bytes : bytes_inside(b);
    uint64_t moved = b->barrier ? tma_load_bytes(&b->map, b->at) : tma_store_bytes(&b->map, b->at);
    struct traffic *t = &w->tally.buffer[sim_buffer_at((uintptr_t)b->map.base)];
    t->bytes[kind] += bytes;
    t->sectors[kind] += moved / 32;
    each_part(b, count_part);
    if (w->profiling) profile_box(w, b->map.base, bytes, moved / 32, kind, b->pc);
}

static struct tensor_box map_of(const void *map, int rank, const char *what,
                                struct sim_place place) {
    struct map m;
    memcpy(&m, map, sizeof m);
    if (m.magic != magic)
        sim_fail(
            "%s at %s:%d: not a tensor map; tensor_map_encode() makes one, and the kernel takes "
            "it as `const __grid_constant__ CUtensorMap`",
            what, place.file, place.line);
    if (rank && m.tensor.rank != rank)
        sim_fail("%s at %s:%d: the tensor map has %d dimensions, not %d", what, place.file,
                 place.line, m.tensor.rank, rank);
    return m.tensor;
}

// What an H200 takes for an illegal instruction: a column that is not a multiple of 16 bytes, and a
// store to a negative one.
static void check_column(const struct box *b, const char *what) {
    if (!b->barrier && b->at[0] < 0)
        sim_fail("%s at %s:%d stores a box from column %d; TMA stores from column 0 or later", what,
                 b->place.file, b->place.line, b->at[0]);
    if (b->at[0] * b->map.element_bytes % 16)
        sim_fail("misaligned: %s at %s:%d copies a box from column %d, and TMA needs a multiple of "
                 "%d: of 16 bytes",
                 what, b->place.file, b->place.line, b->at[0], 16 / b->map.element_bytes);
}

static void check_place(const struct box *b, const char *what) {
    unsigned width = b->map.swizzle, alignment = width ? 8 * width : 128;
    char needing[20] = "shared memory";
    if (width) snprintf(needing, sizeof needing, "SWIZZLE_%uB", width);
    if (!memory_owns(b->smem, b->bytes))
        sim_fail(
            "out of bounds: %s at %s:%d copies a box of %zu bytes at %s, which is not all shared "
            "memory of this launch",
            what, b->place.file, b->place.line, b->bytes, memory_name(b->smem));
    if ((uintptr_t)b->smem % alignment)
        sim_fail("misaligned: %s at %s:%d copies a box at %s, and %s needs a multiple of %u", what,
                 b->place.file, b->place.line, memory_name(b->smem), needing, alignment);
}

static struct box *start(struct box b, const char *what, const int at[]) {
    struct sm90 *s = sm90_use();
    for (int i = 0; i < b.map.rank; i++) b.at[i] = at[i];
    b.bytes = tensor_box_bytes(&b.map);
    b.thread = sim_worker->self;
    b.step = sim_worker->step;
    check_place(&b, what);
    check_column(&b, what);
    struct box *new = sim_memory(malloc(sizeof *new));
    *new = b;
    *(s->last_box ? &s->last_box->next : &s->first_box) = new;
    s->last_box = new;
    return new;
}

void sim_prefetch_tensormap(const void *map, struct sim_place place) {
    map_of(map, 0, "prefetch_tensormap()", place);
}

void sim_tma_load(void *smem, const void *map, void *bar, int rank, const int at[],
                  struct sim_place place) {
    char what[] = "tma_load_0d()";
    what[9] = (char)('0' + rank);
    struct mbarrier *m = mbarrier_find(bar, what, place);
    if (!m->fenced)
        sim_fail(
            "fence missing: %s at %s:%d is given an mbarrier that TMA may not see yet; the thread "
            "that initialised it (at %s:%d) must execute mbarrier_fence_init() after that",
            what, place.file, place.line, m->place.file, m->place.line);
    struct box *b = start(
        (struct box){
            .map = map_of(map, rank, what, place), .smem = smem, .barrier = m, .place = place},
        what, at);
    b->pc = symbols_pc(HERE);
    count(b);
    memory_log(BOX, b, b->pc);
    memset(smem, 0xff, b->bytes);
}

void sim_tma_store(const void *map, const void *smem, int rank, const int at[],
                   struct sim_place place) {
    char what[] = "tma_store_0d()";
    what[10] = (char)('0' + rank);
    struct box *b = start((struct box){.map = map_of(map, rank, what, place),
                                       .smem = (unsigned char *)smem,
                                       .group = sim_worker->self->store_groups,
                                       .place = place},
                          what, at);
    const struct buffer *to = &sim_buffer[sim_buffer_at((uintptr_t)b->map.base)];
    if (to->input)
        sim_fail("writes its input: %s at %s:%d to %s; inputs are const", what, place.file,
                 place.line, to->name);
    b->data = sim_memory(malloc(b->bytes));
    memcpy(b->data, smem, b->bytes);
    b->pc = symbols_pc(HERE);
    count(b);
    memory_log(BOX, b, b->pc);
}

// ---- what the detectors make of it --------------------------------------------------------------

static void replay_load(const struct box *b, struct part p) {
    detect_range(b->thread, (unsigned)b->thread->id, p.global, p.bytes, SIM_LOAD, 0, b->pc);
}
static void replay_store(const struct box *b, struct part p) {
    detect_range(b->thread, (unsigned)b->thread->id, p.global, p.bytes, SIM_STORE, 0, b->pc);
}

void tma_replay(const struct thread *t, const struct box *b) {
    bool load = b->barrier != NULL;
    detect_range(t, (unsigned)t->id, b->smem, b->bytes, load ? SIM_STORE : SIM_LOAD,
                 load ? IN_FLIGHT | ASYNC : ASYNC, b->pc);
    each_part(b, load ? replay_load : replay_store);
}

// ---- landing ------------------------------------------------------------------------------------

static void tell(const struct box *b) {
    char what[160];
    if (!timeline_wanted()) return;
    snprintf(what, sizeof what, "%s %s, %zu bytes", b->barrier ? "load to" : "store from",
             memory_name(b->smem), b->bytes);
    timeline_add("tma", 0, "copy", b->step, what, b->place);
}

static void forget(struct sm90 *s, struct box *b) {
    struct box **link = &s->first_box, *before = NULL;
    while (*link != b) before = *link, link = &(*link)->next;
    *link = b->next;
    if (s->last_box == b) s->last_box = before;
    free(b->data);
    free(b);
}

void tma_forget(struct sm90 *s) {
    while (s->first_box) forget(s, s->first_box);
}

static void land(struct worker *w, struct box *b) {
    memset(b->smem, 0, b->bytes);
    each_part(b, load_part);
    if (!w->fast)
        detect_range(b->thread, MBARRIER_AGENT + (unsigned)mbarrier_number(b->barrier), b->smem,
                     b->bytes, SIM_STORE, LANDED, 0);
    mbarrier_bytes_came(b->barrier, b->bytes);
    tell(b);
    forget(w->sm90, b);
}

static bool somebody_awaits(const struct worker *w, const struct mbarrier *m) {
    for (int i = 0; i < w->threads; i++)
        if (w->thread[i].awaits == &m->phases) return true;
    return false;
}

// The oldest load that somebody waits for. What nobody waits for stays under way.
bool tma_land(struct worker *w) {
    for (struct box *b = w->sm90->first_box; b; b = b->next)
        if (b->barrier && somebody_awaits(w, b->barrier)) {
            land(w, b);
            return true;
        }
    return false;
}

// ---- the groups of stores -----------------------------------------------------------------------

static void read_source(struct box *b) {
    if (!b->read && memcmp(b->data, b->smem, b->bytes)) {
        size_t i = 0;
        while (b->data[i] == b->smem[i]) i++;
        sim_fail_at(
            b->thread,
            "source changed: %s was overwritten while the TMA store that was started at %s:%d "
            "could still read it; tma_store_wait_read() must come first, and then a barrier "
            "where other threads write",
            memory_name(b->smem + i / 4 * 4), b->place.file, b->place.line);
    }
    b->read = true;
}

static void write_out(struct sm90 *s, struct box *b) {
    each_part(b, store_part);
    tell(b);
    forget(s, b);
}

static bool is_store_before(const struct box *b, const struct thread *t, uint32_t end) {
    return !b->barrier && b->thread == t && b->group < end;
}

static void finish_stores(struct worker *w, struct thread *t, uint32_t end, bool read_only) {
    for (struct box *b = w->sm90->first_box, *next; b; b = next) {
        next = b->next;
        if (!is_store_before(b, t, end)) continue;
        read_source(b);
        if (!read_only) write_out(w->sm90, b);
    }
}

void sim_tma_store_commit(void) { sim_worker->self->store_groups++; }

void sim_tma_store_wait(int pending, bool read, struct sim_place place) {
    struct thread *me = sim_worker->self;
    uint32_t groups = me->store_groups;
    me->store_end = groups > (uint32_t)pending ? groups - (uint32_t)pending : 0;
    me->store_read = read;
    if (me->store_end) scheduler_wait(read ? "tma_store_wait_read()" : "tma_store_wait()", place);
}

// One thread's wait for its stores ends.
bool tma_finish_waits(struct worker *w) {
    for (int i = 0; i < w->threads; i++) {
        struct thread *t = &w->thread[i];
        if (!t->store_end) continue;
        finish_stores(w, t, t->store_end, t->store_read);
        t->store_end = 0;
        scheduler_wake(t);
        return true;
    }
    return false;
}

void tma_thread_exits(struct thread *t) {
    for (const struct box *b = sim_worker->sm90->first_box; b; b = b->next)
        if (is_store_before(b, t, UINT32_MAX) && !b->read)
            sim_fail(
                "TMA store not waited for: the thread that started it at %s:%d exits, and then "
                "the block's shared memory may be gone before it has been read; it must commit "
                "the store and call tma_store_wait_read<0>()",
                b->place.file, b->place.line);
}

void tma_block_ends(struct worker *w) {
    for (struct box *b = w->sm90->first_box, *next; b; b = next) {
        next = b->next;
        if (!b->barrier) write_out(w->sm90, b);
    }
    tma_forget(w->sm90); // loads that nobody has waited for
}

// detect.c - races, reads of what nobody wrote, writes to inputs, loops that a warp leaves raggedly.
//
// Two accesses to the same bytes by different threads are a race when one of them is a store and
// nothing orders them. What orders threads of one block is a barrier, and lanes of one warp also
// __syncwarp(); what orders blocks is only the end of the launch. So each 4-byte word remembers its
// last store and its last load in a cell, with the time, and the next access is compared with them.
// Time is the worker's clock, which goes on at every barrier and __syncwarp() (scheduler.c): an
// access from before my last barrier is over, one since then may be happening right now.
//
// The detector sees races that this run could have had, not only those that it did have: it does
// not matter in which order the fibers happened to run.

#include "internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct stamp {
    uint32_t clock;              // 0: never
    uint32_t pc, block;
    uint16_t thread;             // within the block
    uint8_t part_syncs;
    uint8_t bytes;               // which of the word's four, a bit each
};

// Who has loaded the word since the last barrier (MANY_BLOCKS: in this launch). One stamp is enough to
// remember them all: a store must come after every reader, so what counts is how far they spread.
enum readers { ONE_READER, ONE_WARP, ONE_BLOCK, MANY_BLOCKS };

struct cell {
    struct stamp store, load;
    uint8_t written;             // shared memory: which bytes hold a value of this block
    uint8_t readers;
    bool atomic;                 // the store was an atomic
};

size_t detect_cell_bytes(size_t bytes) { return (bytes / 4 + 1) * sizeof(struct cell); }

// Cells come from the system as zeros, and only those that are touched take memory.
struct cell *detect_new_cells(size_t bytes) {
    void *p = mmap(NULL, detect_cell_bytes(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void detect_free_cells(struct cell *cells, size_t bytes) {
    if (cells) munmap(cells, detect_cell_bytes(bytes));
}

void detect_forget(struct cell *cells, size_t bytes) {
    if (cells) madvise(cells, detect_cell_bytes(bytes), MADV_DONTNEED);
}

// ---- one access against the cell of its word ---------------------------------------------------

// An access on its way through the checks.
struct event {
    struct worker *worker;
    const struct thread *thread;
    const struct access *access;
    struct stamp stamp;
    const struct buffer *buffer; // NULL: shared memory
};

// Shared memory is new with each block; what a cell holds of earlier blocks is nothing.
static bool is_void(const struct event *now, const struct stamp *before) {
    return before->clock == 0 || (!now->buffer && before->clock < now->worker->block_clock);
}

// Is `before`, an earlier access to this word, certain to be over when `now` happens?
static bool ordered(const struct event *now, const struct stamp *before) {
    const struct worker *w = now->worker;
    const struct thread *t = now->thread;
    if (is_void(now, before)) return true;
    if (before->block != now->stamp.block) return false;
    if (before->thread == t->id || before->clock < w->barrier_clock) return true;
    if (before->thread / 32 != t->id / 32) return false;
    // Same warp. Lanes that met in a part of it are taken to be ordered, whichever they were: this
    // can miss a race, and never invents one.
    return before->clock < t->warp->sync_clock || before->part_syncs != now->stamp.part_syncs;
}

static void describe_word(const struct event *e, char *out, size_t size) {
    size_t start, bytes;
    uintptr_t a = e->access->address;
    if (e->buffer) {
        snprintf(out, size, "%s + %zu", e->buffer->name, (size_t)(a - e->buffer->start));
        return;
    }
    const char *name = symbols_shared_name(a - e->worker->shared_base, &start, &bytes);
    snprintf(out, size, "%s + %zu", name, (size_t)(a - e->worker->shared_base - start));
}

static const char *cause(const struct event *e, const struct stamp *other, int other_kind) {
    if (other->block != e->stamp.block)
        return "blocks run in any order: give each its own part, or use an atomic or a launch of its own";
    if (other->thread / 32 == e->thread->id / 32) return "a __syncwarp() is missing between them";
    if (other_kind == SIM_LOAD)
        return "a __syncthreads() is missing before the store, so that all have read what it overwrites";
    return "a __syncthreads() is missing between them";
}

static void describe_other(const struct event *e, const struct stamp *other, char *out, size_t size) {
    if (other->block != e->stamp.block) snprintf(out, size, "thread %d of block %u", other->thread, other->block);
    else if (other->thread == e->thread->id) snprintf(out, size, "other threads");    // it was one of several
    else snprintf(out, size, "thread %d", other->thread);
}

static _Noreturn void fail_race(const struct event *e, const struct stamp *other, int other_kind) {
    char word[60], here[200], there[200], who[60];
    describe_word(e, word, sizeof word);
    describe_other(e, other, who, sizeof who);
    snprintf(here, sizeof here, "%s", symbols_place(e->access->pc));
    snprintf(there, sizeof there, "%s", symbols_place(other->pc));
    sim_fail_at(e->thread, "race in %s memory on %s: %s at %s, %s by %s at %s, and nothing orders them; %s",
                e->buffer ? "global" : "shared", word, memory_verb(e->access->kind), here, memory_verb(other_kind), who,
                there, cause(e, other, other_kind));
}

static void check_against_store(const struct event *e, const struct cell *c) {
    bool both_atomic = c->atomic && e->access->kind == SIM_ATOMIC;
    if ((c->store.bytes & e->stamp.bytes) && !both_atomic && !ordered(e, &c->store))
        fail_race(e, &c->store, c->atomic ? SIM_ATOMIC : SIM_STORE);
}

// Is every load of this word over when the store `now` happens?
static bool loads_ordered(const struct event *now, const struct cell *c) {
    const struct stamp *load = &c->load;
    const struct worker *w = now->worker;
    if (is_void(now, load) || c->readers == ONE_READER) return ordered(now, load);
    if (c->readers == MANY_BLOCKS) return false;
    if (load->block != now->stamp.block) return false;
    if (load->clock < w->barrier_clock) return true;
    if (c->readers == ONE_BLOCK || load->thread / 32 != now->thread->id / 32) return false;
    return load->clock < now->thread->warp->sync_clock || load->part_syncs != now->stamp.part_syncs;
}

static void remember_load(const struct event *e, struct cell *c) {
    const struct stamp *last = &c->load;
    if (is_void(e, last)) c->readers = ONE_READER;
    else if (last->block != e->stamp.block) c->readers = MANY_BLOCKS;
    else if (c->readers != MANY_BLOCKS) {
        bool same_warp = last->thread / 32 == e->stamp.thread / 32;
        if (last->clock < e->worker->barrier_clock) c->readers = ONE_READER;
        else if (!same_warp) c->readers = ONE_BLOCK;
        else if (c->readers != ONE_BLOCK && last->thread != e->stamp.thread) c->readers = ONE_WARP;
    }
    c->load = e->stamp;
}

static void check_load(const struct event *e, struct cell *c) {
    check_against_store(e, c);
    remember_load(e, c);
}

static void check_store(const struct event *e, struct cell *c) {
    check_against_store(e, c);
    bool both_atomic = c->atomic && e->access->kind == SIM_ATOMIC;
    if ((c->load.bytes & e->stamp.bytes) && !both_atomic && !loads_ordered(e, c)) fail_race(e, &c->load, SIM_LOAD);
    if (!e->buffer && is_void(e, &c->store)) c->written = 0;
    c->store = e->stamp;
    c->atomic = e->access->kind == SIM_ATOMIC;
    c->written |= e->stamp.bytes;
}

// ---- reads of what nobody wrote ------------------------------------------------------------------

static void check_written(const struct event *e, const struct cell *c, size_t word) {
    uint8_t written = e->buffer ? e->buffer->written[word] : is_void(e, &c->store) ? 0 : c->written;
    if (!(e->stamp.bytes & ~written)) return;
    char name[60];
    describe_word(e, name, sizeof name);
    sim_fail_at(e->thread, "uninitialised: %s of %s (%s memory), which nobody has written, at %s; on a GPU it holds anything",
                memory_verb(e->access->kind), name, e->buffer ? "global" : "shared", symbols_place(e->access->pc));
}

// Two threads may write halves of a word at the same time, on different OS threads.
static void note_written(const struct event *e, size_t word) {
    if (e->stamp.bytes == 0xf) e->buffer->written[word] = 0xf;
    else __atomic_fetch_or(&e->buffer->written[word], e->stamp.bytes, __ATOMIC_RELAXED);
}

// ---- one request -----------------------------------------------------------------------------------

// Which of a word's four bytes lie in [from, to).
static uint8_t bytes_in_word(uint64_t word, uint64_t from, uint64_t to) {
    unsigned first = word * 4 < from ? (unsigned)(from - word * 4) : 0, end = to < word * 4 + 4 ? (unsigned)(to - word * 4) : 4;
    return (uint8_t)((1u << end) - (1u << first));
}

static void check_access(struct event *e, struct cell *cells, uint64_t offset) {
    int kind = e->access->kind;
    for (uint64_t word = offset / 4; word * 4 < offset + e->access->size; word++) {
        struct cell *c = &cells[word];
        e->stamp.bytes = bytes_in_word(word, offset, offset + e->access->size);
        if (kind != SIM_STORE) check_written(e, c, word);
        if (kind != SIM_STORE) check_load(e, c);
        if (kind != SIM_LOAD) check_store(e, c);
        if (kind != SIM_LOAD && e->buffer) note_written(e, word);
    }
}

static void check_input(const struct request *r, int i, const struct buffer *b) {
    if (r->lane[i]->kind == SIM_LOAD) return;
    sim_fail_at(r->warp->lane[r->number[i]], "writes its input: %s to %s at %s; inputs are const",
                memory_verb(r->lane[i]->kind), b->name, symbols_place(r->lane[i]->pc));
}

// In a broadcast all lanes load one word. Two of them tell the cell that a whole warp reads it.
static bool same_as_two_before(const struct request *r, int i) {
    return i >= 2 && r->lane[i]->kind == SIM_LOAD && r->lane[i]->address == r->lane[i - 1]->address &&
           r->lane[i]->address == r->lane[i - 2]->address;
}

void detect_request(struct worker *w, const struct request *r) {
    struct event e = {.worker = w, .stamp = {.clock = w->clock, .pc = r->lane[0]->pc, .block = w->block}};
    for (int i = 0; i < r->lanes; i++) {
        const struct access *a = e.access = r->lane[i];
        if (same_as_two_before(r, i)) continue;
        e.thread = r->warp->lane[r->number[i]];
        e.stamp.thread = (uint16_t)e.thread->id;
        e.stamp.part_syncs = a->part_syncs;
        struct buffer *b = a->space == GLOBAL ? &sim_buffer[sim_buffer_at(a->address)] : NULL;
        e.buffer = b;
        if (!b) check_access(&e, w->shared_cell, a->address - w->shared_base);
        else if (b->input) check_input(r, i, b);
        else if (b->cell) check_access(&e, b->cell, a->address - b->start);
    }
}

// ---- loops that the lanes of a warp leave in different turns ------------------------------------------

// Inner loops end at smaller pcs than the loops around them, so the open loops form a stack: what is
// below the present loop's end has been left for good.
void detect_turn(struct worker *w, struct warp *warp, const struct request *r) {
    uint32_t lanes = 0, pc = r->lane[0]->pc;
    for (int i = 0; i < r->lanes; i++) lanes |= 1u << r->number[i];
    while (warp->loops && warp->loop[warp->loops - 1].pc < pc) warp->loops--;
    struct loop *top = &warp->loop[warp->loops - 1];
    if (warp->loops && top->pc == pc) {
        bool some_left = lanes != top->lanes && (lanes & ~top->lanes) == 0;
        if (some_left && w->global_requests > top->global_requests)
            sim_warn("lanes of one warp leave the loop at %s in different turns; nvcc may unroll it so that one "
                     "request becomes two: let the loop count tiles, and test inside",
                     symbols_place(pc));
    } else if (warp->loops < MAX_LOOPS) {
        top = &warp->loop[warp->loops++];
    } else return;
    *top = (struct loop){pc, lanes, w->global_requests};
}

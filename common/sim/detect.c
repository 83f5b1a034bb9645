// detect.c - races, reads of what nobody wrote, writes to inputs, loops that a warp leaves
// raggedly.
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

#include "sm90.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct stamp {
    uint32_t clock; // 0: never
    uint32_t pc, block;
    uint32_t thread : 11;    // within the block; from 1024 on an agent of sm90.h
    uint32_t bytes : 4;      // which of the word's four, a bit each
    uint32_t part_syncs : 1; // had there been a __syncwarp() of a part of the warp since the last
                             // full one?
    // The cell's own, here so that it takes 32 bytes, half a cache line:
    uint32_t written : 4;   // in `store`, shared memory: which bytes hold a value of this block
    uint32_t atomic : 1;    // it was an atomic's
    uint32_t readers : 2;   // in `load`: enum readers
    uint32_t in_flight : 1; // in `store`: a copy in the background that has not landed
    uint32_t tma : 1;       // by TMA
};

// Who has loaded the word since the last barrier (MANY_BLOCKS: in this launch). One stamp is enough
// to remember them all: a store must come after every reader, so what counts is how far they
// spread.
enum readers { ONE_READER, ONE_WARP, ONE_BLOCK, MANY_BLOCKS };

struct cell {
    struct stamp store, load; // the last of each
};

size_t detect_cell_bytes(size_t bytes) { return (bytes / 4 + 1) * sizeof(struct cell); }

// Cells come from the system as zeros. Of a large array only those that are touched take memory. Of
// a small one all do, at once: a page fault in each launch would cost more than the launch itself.
enum { SMALL = 32 << 20 }; // bytes

struct cell *detect_new_cells(size_t bytes) {
    int at_once = detect_cell_bytes(bytes) <= SMALL ? MAP_POPULATE : MAP_NORESERVE;
    void *p = mmap(NULL, detect_cell_bytes(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | at_once, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void detect_free_cells(struct cell *cells, size_t bytes) {
    if (cells) munmap(cells, detect_cell_bytes(bytes));
}

void detect_forget(struct cell *cells, size_t bytes) {
    size_t all = detect_cell_bytes(bytes);
    if (cells && all <= SMALL)
        memset(cells, 0, all);
    else if (cells)
        madvise(cells, all, MADV_DONTNEED);
}

// ---- one access against the cell of its word ---------------------------------------------------

// Blocks run on several OS threads, so a cell of global memory is looked at by one at a time. A
// lock serves many words; the holder never waits for anything else.
enum { LOCKS = 1 << 12 };
static bool locks[LOCKS];

static bool *lock_word(uint64_t word) {
    bool *lock = &locks[word % LOCKS];
    while (__atomic_exchange_n(lock, true, __ATOMIC_ACQUIRE)) continue;
    return lock;
}

static void unlock(bool *lock) {
    if (lock) __atomic_store_n(lock, false, __ATOMIC_RELEASE);
}

// An access on its way through the checks.
struct event {
    struct worker *worker;
    const struct thread *thread;
    const struct access *access;
    struct stamp stamp;
    const struct buffer *buffer; // NULL: shared memory
    bool *lock;                  // held; NULL: none is needed
};

// Shared memory is new with each block; what a cell holds of earlier blocks is nothing.
static bool is_void(const struct event *now, const struct stamp *before) {
    return before->clock == 0 || (!now->buffer && before->clock < now->worker->block_clock);
}

// A block that has called __threadfence() has published what it wrote, and one that has made an
// atomic operation may know of it: whether the two orders this access cannot be told from here.
static bool may_have_told(const struct event *now, const struct stamp *before) {
    return now->worker->made_atomic && sim_block_fenced(before->block);
}

// Have lanes of one warp met in a __syncwarp() between `before` and `now`? Where only parts of the
// warp have met since its last full meeting, that is taken for granted: this can miss a race, and
// never invents one.
static bool warp_has_met(const struct event *now, const struct stamp *before) {
    return before->clock < now->thread->warp->sync_clock || before->part_syncs ||
           now->stamp.part_syncs;
}

// Is `before`, an earlier access to this word, certain to be over when `now` happens?
static bool ordered(const struct event *now, const struct stamp *before) {
    if (is_void(now, before)) return true;
    if (before->block != now->stamp.block) return may_have_told(now, before);
    if (before->thread == now->stamp.thread || before->clock < now->worker->barrier_clock)
        return true;
    if (now->worker->uses_sm90 && order_knows(now->thread, before->thread, before->clock))
        return true;
    return before->thread / 32 == now->stamp.thread / 32 && warp_has_met(now, before);
}

static void describe_word(const struct event *e, char *out, size_t size) {
    size_t start, bytes;
    uintptr_t a = e->access->address;
    if (e->buffer) {
        snprintf(out, size, "%s + %zu", e->buffer->name, (size_t)(a - e->buffer->start));
        return;
    }
    const char *name = symbols_shared_name(a - e->worker->shared_base, &start, &bytes);
    snprintf(out, size, "%s + %zu", name, (size_t)(a - e->worker->shared_base) - start);
}

static bool is_agent(const struct stamp *s) { return s->thread >= MBARRIER_AGENT; }

// Is `other`, too, an access of this warp alone? Not a load that other warps have made as well.
static bool same_warp(const struct event *e, const struct stamp *other) {
    return !is_agent(other) && other->block == e->stamp.block &&
           other->thread / 32 == e->stamp.thread / 32 && other->readers != ONE_BLOCK;
}

static bool same_instruction(const struct event *e, const struct stamp *other) {
    return other->pc == e->access->pc && other->clock == e->stamp.clock && same_warp(e, other);
}

static const char *cause(const struct event *e, const struct stamp *other) {
    if (is_agent(other) && other->thread < WGMMA_AGENT)
        return "the copy arrived at an mbarrier, and this thread has not waited for that phase of "
               "it";
    if (is_agent(other))
        return "a wgmma_wait() for it must come first, and then a barrier where other threads "
               "write";
    if (same_instruction(e, other))
        return "lanes store to one place in one instruction, and which of them wins is undefined: "
               "let one lane do it";
    if (other->block != e->stamp.block)
        return "blocks run in any order: give each its own part, or use an atomic or a launch of "
               "its own";
    if (same_warp(e, other))
        return e->worker->warps == 1 ? "a __syncwarp() is missing between them"
                                     : "a __syncwarp() is missing between them, or a "
                                       "__syncthreads() if other warps take part";
    if (e->worker->uses_sm90)
        return "a barrier is missing between them (a phase of an mbarrier, a named barrier, or "
               "__syncthreads())";
    return "a __syncthreads() is missing between them: after the store, or, if the store is of a "
           "loop's next turn, "
           "after the load";
}

static void describe_other(const struct event *e, const struct stamp *other, char *out,
                           size_t size) {
    bool one_of_several = other->thread == e->stamp.thread || other->readers == ONE_BLOCK;
    if (is_agent(other))
        snprintf(out, size, other->thread < WGMMA_AGENT ? "a TMA copy" : "wgmma");
    else if (other->block != e->stamp.block)
        snprintf(out, size, "thread %d of block %u", other->thread, other->block);
    else if (one_of_several)
        snprintf(out, size, "other threads");
    else
        snprintf(out, size, "thread %d", other->thread);
}

static void describe_race(const struct event *e, const struct stamp *other, int other_kind,
                          char *out, size_t size) {
    char word[60], who[60], here[300];
    describe_word(e, word, sizeof word);
    describe_other(e, other, who, sizeof who);
    snprintf(here, sizeof here, "%s", symbols_place(e->access->pc));
    snprintf(out, size,
             "race in %s memory on %s: %s at %s, %s by %s at %s, and nothing orders them; %s",
             e->buffer ? "global" : "shared", word, memory_verb(e->access->kind), here,
             memory_verb(other_kind), who, symbols_place(other->pc), cause(e, other));
}

// Two lanes of a warp, in a block of several: the next warp, which has not run yet, may do the same
// as the other one, and then the barrier that is missing is the block's. So this is a suspicion
// until the block meets; a race of two warps explains it better.
static void suspect_race(const struct event *e, const struct stamp *other, int other_kind) {
    struct worker *w = e->worker;
    char what[sizeof w->suspicion];
    if (w->suspicion[0] && !w->suspicion_address) return; // the first one
    describe_race(e, other, other_kind, what, sizeof what);
    sim_blame(e->thread, what, w->suspicion, sizeof w->suspicion);
    w->suspicion_is_global = false;
    w->suspicion_address = 0;
}

// Returns if it is a suspicion.
static void find_race(const struct event *e, const struct stamp *other, int other_kind) {
    char what[sizeof e->worker->suspicion];
    bool by_lane = !(e->access->flags & ASYNC);
    if (by_lane && same_warp(e, other) && e->worker->warps > 1 && !same_instruction(e, other)) {
        suspect_race(e, other, other_kind);
        return;
    }
    describe_race(e, other, other_kind, what, sizeof what);
    e->worker->suspicion[0] = 0; // the race explains it
    unlock(e->lock);
    sim_fail_at(e->thread, "%s", what);
}

// A read of what nobody has written is explained by what was found now; a race is not.
static void forget_unwritten(struct worker *w) {
    if (w->suspicion_address) w->suspicion[0] = 0;
}

// The word is the destination of a copy that has begun and that nobody has waited for.
static bool in_flight(const struct event *e, const struct cell *c) {
    return c->store.in_flight && !is_void(e, &c->store);
}

static _Noreturn void fail_in_flight(const struct event *e, const struct cell *c) {
    char word[60], here[300];
    describe_word(e, word, sizeof word);
    snprintf(here, sizeof here, "%s", symbols_place(e->access->pc));
    forget_unwritten(e->worker);
    if (c->store.tma)
        sim_fail_at(
            e->thread,
            "too early: %s of %s (shared memory) at %s, where the TMA copy that thread %d "
            "started at %s may still be under way; it is complete when a wait for the phase "
            "of its mbarrier passes: an mbarrier_wait() is missing, or waits for another "
            "barrier or parity",
            memory_verb(e->access->kind), word, here, c->store.thread, symbols_place(c->store.pc));
    sim_fail_at(e->thread,
                "too early: %s of %s (shared memory) at %s, where the copy that thread %d started "
                "at %s may still be under way; it is complete after a wait of that thread which "
                "covers its group, and for other threads after a barrier behind that wait: a wait "
                "is missing, leaves one group too many pending, or the copy was never committed",
                memory_verb(e->access->kind), word, here, c->store.thread,
                symbols_place(c->store.pc));
}

// A suspicion (below) about this word was wrong: another thread has stored to it after all, and in
// order.
static void settle_word(const struct event *e) {
    struct worker *w = e->worker;
    bool same_word = w->suspicion_address / 4 == e->access->address / 4;
    bool first_value =
        e->access->kind == SIM_STORE && w->suspect != e->thread; // an atomic reads as well
    if (w->suspicion[0] && same_word && first_value) w->suspicion[0] = 0;
}

// True if it races with the word's last store, and that is a suspicion only.
static bool check_against_store(const struct event *e, const struct cell *c) {
    // Before TMA has delivered, no barrier helps: say so, rather than that one is missing.
    if (in_flight(e, c) && c->store.tma) fail_in_flight(e, c);
    bool both_atomic = c->store.atomic && e->access->kind == SIM_ATOMIC;
    if (!(c->store.bytes & e->stamp.bytes) || both_atomic || ordered(e, &c->store)) return false;
    find_race(e, &c->store, c->store.atomic ? SIM_ATOMIC : SIM_STORE);
    return true;
}

// Are all of a block's threads that have read this word, the last of them at `load`, known to have
// done so before `now`, by mbarriers or named barriers? Of several, which they were is forgotten.
// If this thread knows of anything later, it has met somebody since, and that it has met all of
// them is taken for granted.
static bool has_met_readers(const struct event *now, const struct stamp *load) {
    if (!now->worker->uses_sm90) return false;
    return load->readers == ONE_READER ? order_knows(now->thread, load->thread, load->clock)
                                       : order_latest(now->thread) > load->clock;
}

// Is every load of this word over when the store `now` happens?
static bool loads_ordered(const struct event *now, const struct cell *c) {
    const struct stamp *load = &c->load;
    if (is_void(now, load) || load->readers == ONE_READER) return ordered(now, load);
    if (load->readers == MANY_BLOCKS || load->block != now->stamp.block)
        return may_have_told(now, load);
    if (load->clock < now->worker->barrier_clock || has_met_readers(now, load)) return true;
    return load->readers == ONE_WARP && load->thread / 32 == now->stamp.thread / 32 &&
           warp_has_met(now, load);
}

// How far the readers spread, now that `now` is one of them. `last` no longer matters when it is
// certain to be over for the whole block, or for the warp that alone has read; nor when it read
// other bytes of the word: there is room for one part's history only.
static enum readers readers_with(const struct event *now, const struct stamp *last) {
    if (is_void(now, last) || last->bytes != now->stamp.bytes) return ONE_READER;
    if (last->block != now->stamp.block || last->readers == MANY_BLOCKS) return MANY_BLOCKS;
    if (last->clock < now->worker->barrier_clock || has_met_readers(now, last)) return ONE_READER;
    if (last->readers == ONE_BLOCK || last->thread / 32 != now->stamp.thread / 32) return ONE_BLOCK;
    if (warp_has_met(now, last)) return ONE_READER;
    return last->thread == now->stamp.thread ? (enum readers)last->readers : ONE_WARP;
}

// What threads have stored the async proxy sees only behind their fence.
static void check_proxy(const struct event *e, const struct cell *c) {
    if (is_void(e, &c->store) || is_agent(&c->store) || e->buffer) return;
    if (e->worker->thread[c->store.thread].fenced > c->store.clock) return;
    char word[60], here[300];
    describe_word(e, word, sizeof word);
    snprintf(here, sizeof here, "%s", symbols_place(e->access->pc));
    forget_unwritten(e->worker);
    sim_fail_at(
        e->thread,
        "proxy fence missing: %s (shared memory) is read by TMA or wgmma at %s; thread %d "
        "stored it at %s and must execute fence_proxy_async() after that, before the barrier",
        word, here, c->store.thread, symbols_place(c->store.pc));
}

static void check_load(const struct event *e, struct cell *c) {
    check_against_store(e, c);
    if (in_flight(e, c)) fail_in_flight(e, c);
    if (e->access->flags & ASYNC) check_proxy(e, c);
    enum readers readers = readers_with(e, &c->load);
    c->load = e->stamp;
    c->load.readers = readers & 3;
    c->load.atomic = e->access->kind == SIM_ATOMIC;
}

static void check_store(const struct event *e, struct cell *c) {
    bool raced = check_against_store(e, c);
    bool atomic = e->access->kind == SIM_ATOMIC, old = is_void(e, &c->store);
    bool both_atomic = c->load.atomic && atomic;
    if ((c->load.bytes & e->stamp.bytes) && !both_atomic && !loads_ordered(e, c))
        find_race(e, &c->load, c->load.atomic ? SIM_ATOMIC : SIM_LOAD);
    if (in_flight(e, c)) fail_in_flight(e, c);
    // A thread's plain store and then its own atomic: the store is what others must not race with.
    // So it is with an mbarrier, whose only plain store is mbarrier_init's, whoever uses it first;
    // and with a store that other warps may race with as well.
    bool own = c->store.thread == e->stamp.thread || e->access->flags & UNCOUNTED || raced;
    bool stricter = !old && !c->store.atomic && atomic && own && c->store.block == e->stamp.block &&
                    c->store.clock >= e->worker->barrier_clock;
    if (stricter) return;
    unsigned written = old ? 0 : c->store.written;
    c->store = e->stamp;
    c->store.atomic = atomic;
    c->store.in_flight = (e->access->flags & IN_FLIGHT) != 0;
    c->store.tma = (e->access->flags & ASYNC) != 0;
    c->store.written = (written | e->stamp.bytes) & 0xf;
    settle_word(e);
}

// The copy is complete for the thread that started it, from now on: others need a barrier after its
// wait, so it counts as a store that happens here.
static void check_landing(const struct event *e, struct cell *c) {
    c->store.in_flight = false;
    c->store.clock = e->stamp.clock;
    c->store.thread = e->stamp.thread;
    c->store.part_syncs = e->stamp.part_syncs;
}

// ---- reads of what nobody wrote -----------------------------------------------------------------

// When a barrier is missing, the reader may simply have come before the writer. So this is a
// suspicion at first: if the store comes before the next barrier (in global memory: before the
// launch ends), the two are a race, and that is the better explanation.
static void check_written(const struct event *e, const struct cell *c, size_t word) {
    struct worker *w = e->worker;
    unsigned written = e->buffer               ? e->buffer->written[word]
                       : is_void(e, &c->store) ? 0
                                               : c->store.written;
    if (!(e->stamp.bytes & ~written) || w->suspicion[0]) return;
    char name[60], what[sizeof w->suspicion];
    describe_word(e, name, sizeof name);
    snprintf(what, sizeof what,
             "uninitialised: %s of %s (%s memory), which nobody has written, at %s; on a GPU it "
             "holds anything",
             memory_verb(e->access->kind), name, e->buffer ? "global" : "shared",
             symbols_place(e->access->pc));
    sim_blame(e->thread, what, w->suspicion, sizeof w->suspicion);
    w->suspicion_is_global = e->buffer != NULL;
    w->suspicion_address = e->access->address;
    w->suspect = e->thread;
}

void detect_settle(struct worker *w) {
    if (w->suspicion[0] && !w->suspicion_is_global) sim_fail("%s", ""); // says the suspicion
}

// ---- one request --------------------------------------------------------------------------------

// Which of a word's four bytes lie in [from, to). Accesses of 4 bytes and more are aligned: all.
static unsigned bytes_in_word(uint64_t word, uint64_t from, uint64_t to) {
    unsigned first = word * 4 < from ? (unsigned)(from - word * 4) : 0,
             end = to < word * 4 + 4 ? (unsigned)(to - word * 4) : 4;
    return (1u << end) - (1u << first);
}

// Most loads tell the cell nothing: the word was stored before the last barrier, and that several
// warps have read it since is known.
static inline bool is_routine(const struct event *e, const struct cell *c) {
    uint32_t since = e->worker->barrier_clock;
    return e->access->kind == SIM_LOAD && !(e->access->flags & ASYNC) && !e->buffer &&
           c->load.readers == ONE_BLOCK && c->load.clock >= since && c->store.clock < since &&
           !c->store.in_flight && c->store.clock >= e->worker->block_clock &&
           c->store.written == 0xf;
}

static void check_access(struct event *e, struct cell *cells, uint64_t offset) {
    int kind = e->access->kind, size = e->access->size;
    for (uint64_t word = offset / 4; word * 4 < offset + (unsigned)size; word++) {
        struct cell *c = &cells[word];
        if (is_routine(e, c)) continue;
        if (e->access->flags & LANDED) {
            check_landing(e, c);
            continue;
        }
        e->stamp.bytes =
            (size >= 4 ? 0xf : bytes_in_word(word, offset, offset + (unsigned)size)) & 0xf;
        e->lock = e->buffer ? lock_word(word) : NULL;
        if (kind != SIM_STORE) check_written(e, c, word);
        if (kind != SIM_LOAD) check_store(e, c); // an atomic's store first: it meets others' loads
        if (kind != SIM_STORE) check_load(e, c);
        if (kind != SIM_LOAD && e->buffer) e->buffer->written[word] |= e->stamp.bytes;
        unlock(e->lock);
    }
}

static void check_input(const struct request *r, int i, const struct buffer *b) {
    if (r->lane[i]->kind == SIM_LOAD) return;
    sim_fail_at(r->warp->lane[r->number[i]], "writes its input: %s to %s at %s; inputs are const",
                memory_verb(r->lane[i]->kind), b->name, symbols_place(r->lane[i]->pc));
}

// In a broadcast all lanes load one word. Two of them tell the cell that a whole warp reads it.
static bool same_as_two_before(const struct request *r, int i) {
    return i >= 2 && r->lane[i]->kind == SIM_LOAD &&
           r->lane[i]->address == r->lane[i - 1]->address &&
           r->lane[i]->address == r->lane[i - 2]->address;
}

static void check_lane(struct event *e, const struct request *r, int i, const struct thread *t) {
    const struct access *a = e->access = r->lane[i];
    struct buffer *b = a->space == GLOBAL ? &sim_buffer[sim_buffer_at(a->address)] : NULL;
    e->thread = t;
    e->stamp.thread = (unsigned)t->id & 1023;
    e->stamp.part_syncs = a->flags & PART_SYNCS;
    e->buffer = b;
    if (!b)
        check_access(e, e->worker->shared_cell, a->address - e->worker->shared_base);
    else if (b->input)
        check_input(r, i, b);
    else if (b->cell)
        check_access(e, b->cell, a->address - b->start);
}

void detect_range(const struct thread *thread, unsigned agent, const void *address, size_t bytes,
                  int kind, unsigned flags, uint32_t pc) {
    struct worker *w = sim_worker;
    struct buffer *b = NULL;
    uintptr_t start = w->shared_base;
    if (!memory_is_shared(address)) {
        b = &sim_buffer[sim_buffer_at((uintptr_t)address)];
        start = b->start;
        if (b->input || !b->cell) return;
    }
    struct event e = {.worker = w,
                      .thread = thread,
                      .buffer = b,
                      .stamp = {.clock = w->clock, .pc = pc, .block = w->block}};
    e.stamp.thread = agent & 2047;
    for (size_t done = 0, size; done < bytes; done += size) {
        size = bytes - done < 16 ? bytes - done : 16;
        struct access a = {(uintptr_t)address + done,
                           pc,
                           (uint8_t)size,
                           (uint8_t)kind,
                           b ? GLOBAL : SHARED,
                           (uint8_t)flags};
        e.access = &a;
        check_access(&e, b ? b->cell : w->shared_cell, a.address - start);
    }
}

void detect_request(struct worker *w, const struct request *r) {
    struct event e = {.worker = w,
                      .stamp = {.clock = w->clock, .pc = r->lane[0]->pc, .block = w->block}};
    for (int i = 0; i < r->lanes; i++) {
        const struct access *a = r->lane[i];
        w->made_atomic |= a->kind == SIM_ATOMIC && !(a->flags & UNCOUNTED);
        if (same_as_two_before(r, i)) continue;
        int lane = r->number[i];
        check_lane(&e, r, i, r->warp->lane[lane]);
        // What the whole warp loads is loaded by this lane and by another one: even a store by this
        // very lane then needs a __syncwarp() in between.
        if (a->flags & BY_WARP) check_lane(&e, r, i, r->warp->lane[lane ^ 1]);
    }
}

// ---- loops that the lanes of a warp leave in different turns ------------------------------------

// Inner loops end at smaller pcs than the loops around them, so the open loops form a stack: what
// is below the present loop's end has been left for good.
void detect_turn(struct worker *w, struct warp *warp, const struct request *r) {
    uint32_t lanes = 0, pc = r->lane[0]->pc;
    for (int i = 0; i < r->lanes; i++) lanes |= 1u << r->number[i];
    while (warp->loops && warp->loop[warp->loops - 1].pc < pc) warp->loops--;
    struct loop *top = warp->loops ? &warp->loop[warp->loops - 1] : NULL;
    if (top && top->pc == pc) {
        bool some_left = lanes != top->lanes && (lanes & ~top->lanes) == 0;
        // One warning is enough, and finding out the line takes far longer than the loop.
        if (some_left && w->global_requests > top->global_requests && !sim_warning()[0])
            sim_warn("lanes of one warp leave the loop at %s in different turns; nvcc may unroll "
                     "it so that one "
                     "request becomes two: let the loop count tiles, and test inside",
                     symbols_place(pc));
    } else if (warp->loops < MAX_LOOPS) {
        top = &warp->loop[warp->loops++];
    } else
        return;
    *top = (struct loop){pc, lanes, w->global_requests};
}

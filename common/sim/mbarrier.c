// mbarrier.c - barriers that some threads arrive at and others wait for: mbarriers, named barriers;
// and the fence between the proxies.
//
// PTX ISA, "mbarrier" and "barrier". Both are a counter of arrivals that, when it is full, ends a
// phase and begins the next one. An mbarrier counts bytes besides, which TMA delivers (tma.c).

#include "sm90.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HERE __builtin_return_address(0)

// What stands in an mbarrier's 8 bytes. On a GPU they hold the counters; here only that it is one.
static const uint64_t cookie = 0x6d62617272696572; // "mbarrier"

int mbarrier_number(const struct mbarrier *b) { return (int)(b - sim_worker->sm90->mbarrier); }

static struct mbarrier *find(const void *address) {
    struct sm90 *s = sm90_use();
    for (int i = 0; i < s->mbarriers; i++)
        if (s->mbarrier[i].address == address) return &s->mbarrier[i];
    return NULL;
}

struct mbarrier *mbarrier_find(const void *address, const char *what, struct sim_place place) {
    struct mbarrier *b = find(address);
    if (!b)
        sim_fail("no mbarrier: %s at %s:%d is given %s, which mbarrier_init() has not made one",
                 what, place.file, place.line, memory_name(address));
    if (memcmp(address, &cookie, sizeof cookie))
        sim_fail(
            "mbarrier overwritten: %s at %s:%d finds other bytes in the mbarrier %s, which was "
            "initialised at %s:%d",
            what, place.file, place.line, memory_name(address), b->place.file, b->place.line);
    return b;
}

static void end_phase_if_complete(struct mbarrier *b) {
    if (b->pending || b->bytes) return;
    b->phases.completed++;
    b->pending = b->count;
}

static struct knowledge *known_of_this_phase(struct phases *p) {
    return &p->known[p->completed & 1];
}

// ---- what kernels call --------------------------------------------------------------------------

void sim_mbarrier_init(void *bar, int count, struct sim_place place) {
    struct worker *w = sim_worker;
    struct sm90 *s = sm90_use();
    if (!memory_owns(bar, 8) || (uintptr_t)bar % 8)
        sim_fail("mbarrier_init() at %s:%d: %s is not 8 bytes of shared memory at a multiple of 8",
                 place.file, place.line, memory_name(bar));
    if (count < 1 || count >= 1 << 20)
        sim_fail("mbarrier_init() at %s:%d: a count of %d; it must be 1 to 2^20 - 1", place.file,
                 place.line, count);
    struct mbarrier *b = find(bar);
    if (b)
        sim_fail("mbarrier_init() at %s:%d: %s is one already, since %s:%d; its phases just go on",
                 place.file, place.line, memory_name(bar), b->place.file, b->place.line);
    if (s->mbarriers == MAX_MBARRIERS)
        sim_fail("mbarrier_init() at %s:%d: more than %d mbarriers in a block (a limit of the "
                 "simulator)",
                 place.file, place.line, MAX_MBARRIERS);
    b = &s->mbarrier[s->mbarriers++];
    *b = (struct mbarrier){.address = bar,
                           .count = (uint32_t)count,
                           .pending = (uint32_t)count,
                           .thread = w->self->id,
                           .place = place};
    memory_note(bar, 8, SIM_STORE, UNCOUNTED, symbols_pc(HERE));
    memcpy(bar, &cookie, sizeof cookie);
}

void mbarrier_fence(const struct thread *t) {
    struct sm90 *s = sm90_use();
    for (int i = 0; i < s->mbarriers; i++)
        if (s->mbarrier[i].thread == t->id) s->mbarrier[i].fenced = true;
}

void sim_mbarrier_fence_init(void) { mbarrier_fence(sim_worker->self); }

void sim_fence_proxy_async(void) {
    mbarrier_fence(sim_worker->self);
    memory_log(FENCE, NULL, symbols_pc(HERE));
}

void sim_mbarrier_arrive(void *bar, int bytes, const char *what, struct sim_place place) {
    struct mbarrier *b = mbarrier_find(bar, what, place);
    uint32_t pc = symbols_pc(HERE);
    if (bytes < 0 || bytes >= 1 << 20)
        sim_fail("%s at %s:%d: %d bytes; a phase counts at most 2^20 - 1", what, place.file,
                 place.line, bytes);
    if (!b->pending)
        sim_fail("too many arrivals: %s at %s:%d comes to phase %" PRIu32
                 " of the mbarrier %s after "
                 "all %" PRIu32 " have arrived (it was initialised at %s:%d)",
                 what, place.file, place.line, b->phases.completed, memory_name(bar), b->count,
                 b->place.file, b->place.line);
    memory_note(bar, 8, SIM_ATOMIC, UNCOUNTED, pc - 1);
    memory_log(RELEASE, known_of_this_phase(&b->phases), pc);
    b->bytes += bytes;
    b->pending--;
    end_phase_if_complete(b);
}

void mbarrier_bytes_came(struct mbarrier *b, size_t bytes) {
    struct worker *w = sim_worker;
    order_learn_of(known_of_this_phase(&b->phases), MBARRIER_AGENT + mbarrier_number(b),
                   ++w->clock);
    b->bytes -= (int64_t)bytes;
    end_phase_if_complete(b);
}

static void wait_for_phase(const struct phases *p, uint32_t phase, const char *what,
                           struct sim_place place) {
    struct thread *me = sim_worker->self;
    me->awaits = p;
    me->awaited = phase;
    scheduler_wait(what, place);
}

// The phase that is going on has the parity of its number. A wait for the other parity is a wait
// for the phase before it, which is complete.
void sim_mbarrier_wait(void *bar, int parity, const char *what, struct sim_place place) {
    struct mbarrier *b = mbarrier_find(bar, what, place);
    if (parity != 0 && parity != 1)
        sim_fail("%s at %s:%d: parity %d; it is 0 or 1, the phase modulo 2", what, place.file,
                 place.line, parity);
    memory_note(bar, 8, SIM_ATOMIC, UNCOUNTED, symbols_pc(HERE));
    uint32_t now = b->phases.completed;
    if ((int)(now & 1) == parity)
        wait_for_phase(&b->phases, now, what, place);
    else if (now)
        wait_for_phase(&b->phases, now - 1, what, place);
}

void sim_named_barrier(int id, int threads, bool wait, struct sim_place place) {
    const char *what = wait ? "named_barrier_sync()" : "named_barrier_arrive()";
    struct worker *w = sim_worker;
    if (id < 1 || id > 15)
        sim_fail("%s at %s:%d: barrier %d; there are 1 to 15, and 0 is __syncthreads()", what,
                 place.file, place.line, id);
    if (threads < 32 || threads % 32 || threads > w->threads)
        sim_fail("%s at %s:%d: %d threads; it must be a multiple of 32, and the block has %d", what,
                 place.file, place.line, threads, w->threads);
    struct named_barrier *b = &sm90_use()->named[id];
    if (b->arrived == 0) {
        b->expected = threads;
        b->place = place;
    } else if (b->expected != threads)
        sim_fail("named barrier %d is for %d threads at %s:%d and for %d at %s:%d", id, b->expected,
                 b->place.file, b->place.line, threads, place.file, place.line);
    uint32_t phase = b->phases.completed;
    memory_log(RELEASE, known_of_this_phase(&b->phases), symbols_pc(HERE));
    if (++b->arrived == b->expected) {
        b->arrived = 0;
        b->phases.completed++;
    }
    if (wait) wait_for_phase(&b->phases, phase, what, place);
}

// ---- when nobody can run ------------------------------------------------------------------------

// All whose phase is complete go on, with what those who arrived have left there.
bool mbarrier_wake(struct worker *w) {
    bool some = false;
    for (int i = 0; i < w->threads; i++) {
        struct thread *t = &w->thread[i];
        if (!t->awaits || t->awaits->completed <= t->awaited) continue;
        order_learn(t->known, &t->awaits->known[t->awaited & 1]);
        t->awaits = NULL;
        scheduler_wake(t);
        some = true;
    }
    return some;
}

static int waiting_for(const struct phases *p) {
    struct worker *w = sim_worker;
    int n = 0;
    for (int i = 0; i < w->threads; i++) n += w->thread[i].awaits == p;
    return n;
}

static size_t explain_mbarrier(const struct mbarrier *b, char *out, size_t size) {
    char bytes[80] = "";
    if (b->bytes > 0)
        snprintf(bytes, sizeof bytes, ", %" PRId64 " bytes that were announced have not come",
                 b->bytes);
    if (b->bytes < 0)
        snprintf(bytes, sizeof bytes, ", %" PRId64 " bytes came that nobody announced", -b->bytes);
    return (size_t)snprintf(
        out, size,
        "; mbarrier %s (initialised at %s:%d) is in phase %" PRIu32 ", parity %" PRIu32 ": %" PRIu32
        " of %" PRIu32 " arrivals are missing%s",
        memory_name(b->address), b->place.file, b->place.line, b->phases.completed,
        b->phases.completed & 1, b->pending, b->count, bytes);
}

void mbarrier_explain(char *out, size_t size) {
    const struct sm90 *s = sim_worker->sm90;
    size_t used = 0;
    for (int i = 0; i < s->mbarriers; i++)
        if (waiting_for(&s->mbarrier[i].phases) && used < size)
            used += explain_mbarrier(&s->mbarrier[i], out + used, size - used);
    for (int i = 1; i < 16; i++)
        if (waiting_for(&s->named[i].phases) && used < size)
            used +=
                (size_t)snprintf(out + used, size - used, "; named barrier %d has %d of %d threads",
                                 i, s->named[i].arrived, s->named[i].expected);
}

// scheduler.c - one block: its threads as fibers, and the places where they wait for each other.
//
// A CUDA thread runs until it must wait: at __syncthreads, or in a warp collective whose other
// lanes have not come yet. Then the next ready thread of its block runs. Nothing preempts it, so
// the order is the same in every run; and when nobody is ready, the block is deadlocked and the
// simulator can say who waits where.

#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Thread_local struct worker *sim_worker;

struct sim_dim3 sim_thread_idx(void) {
    return sim_worker->self->idx;
}
struct sim_dim3 sim_block_idx(void) {
    return sim_worker->block_idx;
}
struct sim_dim3 sim_block_dim(void) {
    return sim_now->block;
}
struct sim_dim3 sim_grid_dim(void) {
    return sim_now->grid;
}
int sim_lane(void) { return sim_worker->self->lane; }

// ---- who runs next ---------------------------------------------------------------------------

static void push(struct queue *q, struct thread *t) {
    t->next = NULL;
    if (q->last)
        q->last->next = t;
    else
        q->first = t;
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
        used += (size_t)snprintf(out + used, size - used, "%s%d wait%s in %s at %s:%d",
                                 used ? ", " : "", same, same == 1 ? "s" : "", t->waits_for,
                                 t->where.file, t->where.line);
    }
    if (exited && used < size) snprintf(out + used, size - used, ", %d have exited", exited);
}

// A warp in which a collective waits for lanes; NULL if there is none.
static struct meeting *unfinished_meeting(struct worker *w) {
    for (int i = 0; i < w->warps; i++)
        for (int k = 0; k < 32; k++)
            if (w->warp[i].meeting[k].arrived) return &w->warp[i].meeting[k];
    return NULL;
}

static _Noreturn void fail_deadlock(struct worker *w) {
    char who[400];
    describe_waiting(w, who, sizeof who);
    struct barrier *b = &w->barrier;
    struct meeting *m = unfinished_meeting(w);
    if (b->arrived)
        sim_fail(
            "divergent barrier: not all %d threads of the block reach %s at %s:%d (%s); a barrier "
            "must not stand in a branch or behind a return that only some threads take (newer GPUs "
            "excuse threads that have exited; do not rely on it)",
            w->threads, b->what, b->where.file, b->where.line, who);
    if (m)
        sim_fail(
            "lanes missing: %s at %s:%d waits for lanes 0x%08x of mask 0x%08x (%s); every lane in "
            "the mask must call it",
            m->what, m->where.file, m->where.line, m->mask & ~m->arrived, m->mask, who);
    char why[600];
    sm90_explain(w, why, sizeof why);
    sim_fail("deadlock: no thread of the block can go on (%s)%s", who, why);
}

// Whose turn it is now.
static struct thread *next_ready(struct worker *w) {
    while (!w->ready.first)
        if (!sm90_step(w)) fail_deadlock(w);
    return w->self = pop(&w->ready);
}

// Gives the CPU to the next ready thread. Returns when this one is ready and its turn has come.
static void run_others(struct worker *w) {
    struct thread *me = w->self, *next = next_ready(w);
    if (next != me) fiber_switch_to(&me->fiber, &next->fiber);
}

// One lane comes to rest. When it was the last of its warp, the warp's accesses are complete up to
// a common point and can be put together; lanes that waited for room in their logs go on.
static void come_to_rest(struct worker *w, struct thread *t) {
    struct warp *warp = t->warp;
    if (--warp->running || w->fast) return; // --fast: nobody has logged anything
    meter_warp(w, warp);
    for (int i = 0; i < warp->size; i++) {
        struct thread *lane = warp->lane[i];
        if (!lane->log_full || lane->log_next >= lane->log_end) continue;
        lane->log_full = false;
        make_ready(lane);
    }
}

void scheduler_catch_up(struct worker *w) {
    struct thread *me = w->self;
    me->log_full = true;
    come_to_rest(w, me);
    run_others(w);
}

static void wait_for(struct worker *w, const char *what, struct sim_place where) {
    struct thread *me = w->self;
    me->waits_for = what;
    me->where = where;
    uint32_t from = w->step;
    come_to_rest(w, me);
    run_others(w);
    timeline_wait(me, from, what, where);
}

void scheduler_wait(const char *what, struct sim_place where) { wait_for(sim_worker, what, where); }
void scheduler_wake(struct thread *t) { make_ready(t); }
void scheduler_rest(struct worker *w) {
    come_to_rest(w, w->self);
    w->self->warp->running++;
}

// ---- barriers and collectives ----------------------------------------------------------------

int sim_block_barrier(int predicate, const char *what, struct sim_place where) {
    struct worker *w = sim_worker;
    struct barrier *b = &w->barrier;
    if (b->arrived++ == 0) {
        b->what = what;
        b->where = where;
    } else if (b->where.line != where.line || !same_name(b->what, what)) {
        sim_fail("divergent barrier: one part of the block waits in %s at %s:%d, another comes to "
                 "%s at %s:%d",
                 b->what, b->where.file, b->where.line, what, where.file, where.line);
    }
    b->votes += predicate != 0;
    if (b->arrived < w->threads) {
        push(&b->waiting, w->self);
        wait_for(w, what, where);
        return b->result; // nobody can complete the next barrier before this thread joins it
    }
    come_to_rest(w, w->self);
    w->self->warp->running++;
    b->result = b->votes;
    b->arrived = b->votes = 0;
    detect_settle(w);
    w->step++;
    w->barrier_clock = ++w->clock;
    for (int i = 0; i < w->threads; i++) w->thread[i].part_syncs = 0;
    for (struct thread *t; (t = pop(&b->waiting));) make_ready(t);
    return b->result;
}

static struct meeting *find_meeting(struct warp *warp, uint32_t mask) {
    struct meeting *free = NULL;
    for (int i = 0; i < 32; i++) {
        struct meeting *m = &warp->meeting[i];
        if (m->arrived && m->mask == mask) return m;
        if (!m->arrived && !free) free = m;
    }
    return free;
}

// __syncwarp() orders the memory accesses of its lanes; the other collectives do not. Where only a
// part of the warp meets, the lanes remember that there was such a meeting (detect.c).
static void order_accesses(struct worker *w, struct warp *warp, uint32_t mask) {
    bool whole = mask == (warp->size < 32 ? (1u << warp->size) - 1 : ~0u);
    if (whole) warp->sync_clock = ++w->clock;
    if (w->uses_sm90) order_warp(w, warp, mask);
    for (int i = 0; i < warp->size; i++)
        if (mask >> i & 1) warp->lane[i]->part_syncs = !whole;
}

// The operation is compiled with the kernel's hooks; what it does is the hardware's work, not this
// lane's, so the hooks are shown no worker.
static void run_collective(struct worker *w, struct warp *warp, const struct meeting *m) {
    void *arguments[32] = {NULL};
    for (int i = 0; i < warp->size; i++)
        if (m->mask >> i & 1) arguments[i] = warp->lane[i]->argument;
    sim_worker = NULL;
    m->op(arguments, m->mask);
    sim_worker = w;
}

static void meet(uint32_t mask, sim_warp_op op, void *mine, const char *what,
                 struct sim_place where, bool aligned) {
    struct worker *w = sim_worker;
    struct thread *me = w->self;
    struct warp *warp = me->warp;
    if (warp->size < 32) mask &= (1u << warp->size) - 1; // a block's last warp may be short
    if (!(mask >> me->lane & 1))
        sim_fail("lane %d calls %s at %s:%d with mask 0x%08x, which leaves it out", me->lane, what,
                 where.file, where.line, mask);
    struct meeting *m = find_meeting(warp, mask);
    if (!m->arrived)
        *m = (struct meeting){.mask = mask, .op = op, .what = what, .where = where};
    else if (m->op != op || !same_name(m->what, what))
        sim_fail("lanes of one warp meet in two different collectives: %s at %s:%d and %s at %s:%d",
                 m->what, m->where.file, m->where.line, what, where.file, where.line);
    else if (op && aligned && m->where.line != where.line)
        sim_fail("lanes of one warp come to %s from two places, %s:%d and %s:%d; all 32 must "
                 "execute it together, outside of branches that only some lanes take",
                 what, m->where.file, m->where.line, where.file, where.line);
    me->argument = mine;
    m->arrived |= 1u << me->lane;
    if (m->arrived != mask) {
        wait_for(w, what, where);
        return;
    }
    come_to_rest(w, me);
    warp->running++;
    if (op)
        run_collective(w, warp, m);
    else
        order_accesses(w, warp, mask);
    m->arrived = 0;
    for (int i = 0; i < warp->size; i++)
        if ((mask >> i & 1) && warp->lane[i] != me) make_ready(warp->lane[i]);
}

void sim_warp_collective(uint32_t mask, sim_warp_op op, void *mine, const char *what,
                         struct sim_place where) {
    meet(mask, op, mine, what, where, false);
}

void scheduler_whole_warp(sim_warp_op op, void *mine, const char *what, struct sim_place where) {
    const struct warp *warp = sim_worker->self->warp;
    if (warp->size < 32)
        sim_fail("%s at %s:%d needs a warp of 32 threads, and the block's last has %d", what,
                 where.file, where.line, warp->size);
    meet(~0u, op, mine, what, where, true);
}

// ---- one block ---------------------------------------------------------------------------------

static void thread_main(void) {
    fiber_begin();
    struct worker *w = sim_worker;
    sim_now->body(sim_now->arguments);
    struct thread *me = w->self;
    me->exited = true;
    come_to_rest(w, me);
    if (w->uses_sm90) sm90_thread_exits(me);
    timeline_exit(me);
    if (w->live == 1) detect_settle(w);
    if (w->live == 1 && w->uses_sm90) sm90_block_ends(w);
    if (--w->live == 0) fiber_end(&me->fiber, &w->home);
    fiber_end(&me->fiber, &next_ready(w)->fiber);
}

void scheduler_run_block(struct worker *w, uint64_t number) {
    struct sim_dim3 g = sim_now->grid;
    w->block_idx = (struct sim_dim3){(unsigned)(number % g.x), (unsigned)(number / g.x % g.y),
                                     (unsigned)(number / g.x / g.y)};
    w->live = w->threads;
    w->ready = (struct queue){0};
    w->barrier = (struct barrier){0};
    w->block = (uint32_t)number;
    w->made_atomic = false;
    sm90_block_begins(w);
    w->block_clock = w->barrier_clock = ++w->clock;
    for (int i = 0; i < w->warps; i++) {
        w->warp[i].running = 0;
        w->warp[i].sync_clock = w->clock;
        w->warp[i].loops = 0;
        w->warp[i].told_line = 0;
        memset(w->warp[i].meeting, 0, sizeof w->warp[i].meeting);
    }
    for (int i = 0; i < w->threads; i++) {
        struct thread *t = &w->thread[i];
        fiber_start(&t->fiber, thread_main);
        t->exited = false;
        t->log_next = t->log;
        t->log_full = false;
        t->last_block = 0;
        t->part_syncs = 0;
        async_forget(t);
        sm90_forget(t);
        make_ready(t);
    }
    w->self = pop(&w->ready);
    fiber_switch_to(&w->home, &w->self->fiber);
    w->self = NULL;
}

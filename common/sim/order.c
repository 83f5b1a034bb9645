// order.c - what comes after what, in blocks whose threads meet in other places than
// __syncthreads().
//
// A barrier of the whole block orders everything before it against everything after it, so detect.c
// needs only its time. An mbarrier or a named barrier orders those who arrive against those who
// wait. So each thread knows, for each agent, up to which time that agent's accesses are over.
// Whoever arrives at a barrier leaves there what it knows, and its own time; whoever waits takes
// that with it. (Vector clocks: Lamport 1978, Mattern 1989.)
//
// The own time of a thread is its warp's: that a lane which arrives for others has met them before,
// in __syncwarp(), is not checked.
//
// Arrivals are replayed from the logs, between the accesses that came before them and those that
// came after (meter.c); waits end when all logs are empty (sm90.h).

#include "sm90.h"

#include <stdlib.h>
#include <string.h>

void order_learn(struct knowledge *k, const struct knowledge *from) {
    for (int i = 0; i < AGENTS; i++)
        if (from->upto[i] > k->upto[i]) k->upto[i] = from->upto[i];
    if (from->latest > k->latest) k->latest = from->latest;
}

static int agent_of(unsigned thread) {
    return (int)(thread < MBARRIER_AGENT ? thread / 32 : WARPS + thread - MBARRIER_AGENT);
}

void order_learn_of(struct knowledge *k, int agent_thread, uint32_t time) {
    uint32_t *upto = &k->upto[agent_of((unsigned)agent_thread)];
    if (time > *upto) *upto = time;
    if (time > k->latest) k->latest = time;
}

bool order_knows(const struct thread *t, unsigned agent_thread, uint32_t time) {
    return t->known->upto[agent_of(agent_thread)] > time;
}

uint32_t order_latest(const struct thread *t) { return t->known->latest; }

// In __syncwarp() each lane learns what the others know.
void order_warp(struct worker *w, struct warp *warp, uint32_t mask) {
    struct knowledge *all = &w->sm90->common;
    memset(all, 0, sizeof *all);
    for (int i = 0; i < warp->size; i++)
        if (mask >> i & 1) order_learn(all, warp->lane[i]->known);
    for (int i = 0; i < warp->size; i++)
        if (mask >> i & 1) *warp->lane[i]->known = *all;
}

void sm90_replay(struct worker *w, const struct request *r) {
    for (int i = 0; i < r->lanes; i++) {
        const struct access *a = r->lane[i];
        struct thread *t = r->warp->lane[r->number[i]];
        struct knowledge *barrier = (struct knowledge *)a->address;
        switch (a->space) {
        case RELEASE:
            order_learn(barrier, t->known);
            order_learn_of(barrier, t->id, ++w->clock);
            break;
        case FENCE: t->fenced = ++w->clock; break;
        case BOX: tma_replay(t, (const struct box *)a->address); break;
        }
    }
}

// ---- a block's state ----------------------------------------------------------------------------

static void begin(struct worker *w) {
    struct sm90 *s = w->sm90;
    memset(s, 0, sizeof *s);
    int registers = w->threads ? 65536 / w->threads / 8 * 8 : 0;
    for (int g = 0; g < WARPGROUPS; g++) {
        s->warpgroup[g].number = g;
        s->warpgroup[g].registers = registers > 256 ? 256 : registers;
    }
    for (int i = 0; i < w->threads; i++) w->thread[i].known = &s->known[i];
    w->uses_sm90 = true;
}

struct sm90 *sm90_use(void) {
    struct worker *w = sim_worker;
    if (!w->sm90) w->sm90 = sim_memory(malloc(sizeof *w->sm90));
    if (!w->uses_sm90) begin(w);
    return w->sm90;
}

void sm90_block_begins(struct worker *w) {
    if (w->uses_sm90) { // a block that failed has left some behind
        tma_forget(w->sm90);
        wgmma_forget(w->sm90);
    }
    w->uses_sm90 = false;
    w->step = 0; // also where nobody uses any of this
}

void sm90_forget(struct thread *t) {
    free(t->registers);
    t->registers = NULL;
    t->known = NULL;
    t->awaits = NULL;
    t->fenced = t->store_groups = t->store_end = 0;
    t->wgmma_fenced = false;
}

void sm90_thread_exits(struct thread *t) {
    tma_thread_exits(t);
    wgmma_thread_exits(t);
}

void sm90_block_ends(struct worker *w) { tma_block_ends(w); }

bool sm90_step(struct worker *w) {
    if (!w->uses_sm90) return false;
    w->step++;
    return mbarrier_wake(w) || warpgroup_give_registers(w->sm90) || tma_land(w) ||
           tma_finish_waits(w) || wgmma_complete(w);
}

void sm90_explain(struct worker *w, char *out, size_t size) {
    out[0] = 0;
    if (!w->uses_sm90) return;
    mbarrier_explain(out, size);
    size_t used = strlen(out);
    warpgroup_explain(out + used, size - used);
}

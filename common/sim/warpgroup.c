// warpgroup.c - what 128 threads do together, and who has how many registers.

#include "sm90.h"

#include <stdio.h>
#include <string.h>

// Like a warp's collective (scheduler.c), four times as large.
void warpgroup_meet(bool (*op)(struct warpgroup *), void *mine, const char *what,
                    struct sim_place place) {
    struct worker *w = sim_worker;
    struct thread *me = w->self;
    int number = me->id / 128;
    struct warpgroup *g = &sm90_use()->warpgroup[number];
    if (128 * (number + 1) > w->threads)
        sim_fail("%s at %s:%d needs a warpgroup of 128 threads, and the block's last has %d", what,
                 place.file, place.line, w->threads % 128);
    if (g->arrived == 0) {
        g->op = op;
        g->what = what;
        g->place = place;
    } else if (!same_name(g->what, what) || g->place.line != place.line)
        sim_fail("threads of one warpgroup come to different instructions: %s at %s:%d and %s at "
                 "%s:%d; all 128 must execute them together",
                 g->what, g->place.file, g->place.line, what, place.file, place.line);
    g->argument[me->id % 128] = mine;
    if (++g->arrived < 128) {
        scheduler_wait(what, place);
        return;
    }
    scheduler_rest(w);
    g->arrived = 0;
    if (!op(g)) {
        scheduler_wait(what, place);
        return;
    }
    for (int i = 0; i < 128; i++)
        if (&w->thread[128 * number + i] != me) scheduler_wake(&w->thread[128 * number + i]);
}

void warpgroup_go_on(struct warpgroup *g) {
    for (int i = 0; i < 128; i++) scheduler_wake(&sim_worker->thread[128 * g->number + i]);
}

void warpgroup_explain(char *out, size_t size) {
    const struct sm90 *s = sim_worker->sm90;
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < WARPGROUPS && used < size; i++) {
        const struct warpgroup *g = &s->warpgroup[i];
        if (g->wants)
            used +=
                (size_t)snprintf(out + used, size - used,
                                 "; warpgroup %d has %d registers a thread and wants %d, and the "
                                 "block's pool has %d left for it",
                                 i, g->registers, g->wants, s->pool / 128);
        if (g->arrived)
            used += (size_t)snprintf(out + used, size - used,
                                     "; %s at %s:%d waits for %d more threads of warpgroup %d",
                                     g->what, g->place.file, g->place.line, 128 - g->arrived, i);
    }
}

// ---- setmaxnreg ---------------------------------------------------------------------------------

// PTX ISA, "setmaxnreg": the pool is what the block got at launch, registers of a thread times
// threads. How many those were only the compiler knows; with __launch_bounds__(threads, 1) they are
// 65536 / threads, rounded down to a multiple of 8, and at most 256 are ever used.

static bool ask(struct warpgroup *g) {
    struct sm90 *s = sim_worker->sm90;
    int wanted = *(int *)g->argument[0];
    if (wanted <= g->registers) {
        s->pool += (g->registers - wanted) * 128;
        g->registers = wanted;
        return true;
    }
    g->wants = wanted;
    return false;
}

bool warpgroup_give_registers(struct sm90 *s) {
    for (int i = 0; i < WARPGROUPS; i++) {
        struct warpgroup *g = &s->warpgroup[i];
        int more = (g->wants - g->registers) * 128;
        if (!g->wants || more > s->pool) continue;
        s->pool -= more;
        g->registers = g->wants;
        g->wants = 0;
        warpgroup_go_on(g);
        return true;
    }
    return false;
}

void sim_setmaxnreg(int registers, bool increase, struct sim_place place) {
    const char *what = increase ? "setmaxnreg_inc()" : "setmaxnreg_dec()";
    int has = sm90_use()->warpgroup[sim_worker->self->id / 128].registers;
    if (increase ? registers < has : registers > has)
        sim_fail("%s at %s:%d: to %d registers, and the warpgroup has %d (at launch each thread of "
                 "this block has 65536 / %d, rounded down to a multiple of 8)",
                 what, place.file, place.line, registers, has, sim_worker->threads);
    warpgroup_meet(ask, &registers, what, place);
}

// ---- elect --------------------------------------------------------------------------------------

static void elect(void *const lanes[32], uint32_t mask) {
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) *(bool *)lanes[i] = i == __builtin_ctz(mask);
}

bool sim_elect_one(struct sim_place place) {
    bool elected = false;
    scheduler_whole_warp(elect, &elected, "elect_one()", place);
    return elected;
}

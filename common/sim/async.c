// async.c - copies in the background: cp.async of sm_80.
//
// A copy may land at any time between the instruction that starts it and the wait that covers it.
// Here it lands in that wait, which is as late as the rules allow, and until then its destination
// is poisoned: a program that is right this way is right on a GPU, whatever the memory system does.
// One that reads too early gets NaN, and detect.c names it.
//
// PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy": a commit closes a group
// of all copies that the thread has started since its last commit, possibly none; wait_group N
// waits until at most the N youngest groups are pending. Groups belong to a thread, and so does the
// wait: what other threads have copied is there only after their waits and then a barrier.
//
// What a warp's copies store counts as wavefronts and conflicts as if ordinary stores of 16 bytes
// did it. No counter of an H200 stands behind that: the one for shared memory
// (l1tex__data_bank_conflicts_pipe_lsu_mem_shared) stays 0 where cp.async.cg writes one column of a
// tile; NVIDIA has others for LDGSTS, the instruction that cp.async becomes. A conflict that is
// shown here is a reason to look at the layout, no more.

#include "internal.h"

#include <stdlib.h>
#include <string.h>

enum { COPY_BYTES = 16 };

struct copy {
    void *to;
    const void *from;     // NULL: zeros
    uint32_t group, step; // when it was started
};

static void add_copy(struct copies *c, struct copy new) {
    if (c->count == c->room) {
        c->room = c->room ? 2 * c->room : 16;
        c->copy = sim_memory(realloc(c->copy, c->room * sizeof *c->copy));
    }
    c->copy[c->count++] = new;
}

void async_forget(struct thread *t) { t->copies.count = t->copies.groups = 0; }

// The instruction makes two requests, and the meter tells requests apart by their pc: the load gets
// one byte less, which is still inside of the call. How many sectors it counts depends on where the
// store goes (meter.c).
void sim_cp_async(void *smem, const void *gmem, bool valid) {
    uint32_t pc = symbols_pc(__builtin_return_address(0));
    struct thread *me = sim_worker->self;
    if (!memory_is_shared(smem))
        sim_fail("cp_async_16(): the destination is not in shared memory, at %s",
                 symbols_place(pc));
    if (valid) {
        if (!memory_is_global(gmem) && gmem)
            sim_fail("cp_async_16(): the source is not in global memory, at %s", symbols_place(pc));
        memory_access(gmem, COPY_BYTES, SIM_LOAD, COPY, pc - 1);
    }
    memory_access(smem, COPY_BYTES, SIM_STORE, IN_FLIGHT, pc);
    memset(smem, 0xff, COPY_BYTES);
    add_copy(&me->copies,
             (struct copy){smem, valid ? gmem : NULL, me->copies.groups, sim_worker->step});
}

void sim_cp_async_commit(void) { sim_worker->self->copies.groups++; }

// All copies of groups before number `end` land now.
static void land(struct copies *c, uint32_t end, uint32_t pc) {
    uint32_t n = 0;
    const struct thread *me = sim_worker->self;
    if (c->count && c->copy[0].group < end && me->lane == 0) // one row for the warp
        timeline_add("warp", me->id / 32, "copy", c->copy[0].step, "cp.async",
                     (struct sim_place){0});
    for (; n < c->count && c->copy[n].group < end; n++) {
        struct copy *k = &c->copy[n];
        if (k->from)
            memcpy(k->to, k->from, COPY_BYTES);
        else
            memset(k->to, 0, COPY_BYTES);
        memory_note(k->to, COPY_BYTES, SIM_STORE, LANDED, pc);
    }
    c->count -= n;
    if (n) memmove(c->copy, c->copy + n, c->count * sizeof *c->copy);
}

void sim_cp_async_wait(int pending) {
    struct copies *c = &sim_worker->self->copies;
    uint32_t end = c->groups > (uint32_t)pending ? c->groups - (uint32_t)pending : 0;
    land(c, end, symbols_pc(__builtin_return_address(0)));
}

void sim_cp_async_wait_all(void) {
    struct copies *c = &sim_worker->self->copies;
    c->groups++;
    land(c, c->groups, symbols_pc(__builtin_return_address(0)));
}

// sm90.h - what the files for Hopper's instructions share: order.c, mbarrier.c, warpgroup.c, tma.c,
// wgmma.c.
//
// Time on this machine has two parts. First everybody runs who can. When nobody can, something that
// goes on by itself may happen, one thing at a time, and only if somebody waits for it
// (sm90_step): a wait that is satisfied ends, a copy lands, a product is written. So all that a
// program starts happens as late as the rules allow, and a program that is right this way is right
// whenever it happens. This is also why a wait may be trusted to see everything: when it ends, the
// accesses of all warps have been put together and looked at (meter.c).
#ifndef SIM_SM90_H
#define SIM_SM90_H

#include "internal.h"

// ---- order.c: who knows of whose accesses -------------------------------------------------------

// An agent is somebody whose accesses are ordered among themselves: a warp, the copies that arrive
// at one mbarrier, or the tensor cores of one warpgroup. In detect.c's stamps, agents that are no
// warp are numbered after the threads.
enum {
    MAX_MBARRIERS = 64,
    WARPGROUPS = 8,
    WARPS = 32,
    AGENTS = WARPS + MAX_MBARRIERS + WARPGROUPS,
    MBARRIER_AGENT = 1024, // + number of the mbarrier
    WGMMA_AGENT = MBARRIER_AGENT + MAX_MBARRIERS,
};

// What agent i did before time upto[i] is over, for whoever holds this.
struct knowledge {
    uint32_t upto[AGENTS];
    uint32_t latest; // the largest of them
};

void order_learn(struct knowledge *, const struct knowledge *from);
void order_learn_of(struct knowledge *, int agent_thread, uint32_t time);

// ---- barriers with phases: mbarrier.c -----------------------------------------------------------

// Phases are numbered from 0; `known` collects what those who arrive know, for even and odd phases.
struct phases {
    uint32_t completed;
    struct knowledge known[2];
};

struct mbarrier {
    const void *address;
    uint32_t count, pending; // arrivals of a phase; still missing in this one
    int64_t bytes;           // announced and not come; negative: the other way round
    int thread;              // that initialised it
    bool fenced;             // and made that known to TMA
    struct sim_place place;
    struct phases phases;
};

struct named_barrier {
    int expected, arrived;
    struct sim_place place; // of the first to arrive
    struct phases phases;
};

struct mbarrier *mbarrier_find(const void *address, const char *what, struct sim_place);
int mbarrier_number(const struct mbarrier *);
void mbarrier_bytes_came(struct mbarrier *, size_t bytes);
void mbarrier_fence(const struct thread *);
void mbarrier_explain(char *out, size_t size); // what those who wait still miss
bool mbarrier_wake(struct worker *);

// ---- warpgroup.c: 128 threads together ----------------------------------------------------------

struct warpgroup {
    int number, arrived;
    bool (*op)(struct warpgroup *); // true: all go on; false: they stay until warpgroup_go_on
    const char *what;
    struct sim_place place; // of the first to arrive
    void *argument[128];
    int registers, wants;         // setmaxnreg: has, for each thread; 0: waits for none
    struct product *first, *last; // wgmma: started and not complete, oldest first
    uint32_t groups, wait_until;  // closed; the groups before this one are waited for (0: none)
};

void warpgroup_meet(bool (*op)(struct warpgroup *), void *mine, const char *what, struct sim_place);
void warpgroup_go_on(struct warpgroup *);
bool warpgroup_give_registers(struct sm90 *);
void warpgroup_explain(char *out, size_t size);

// ---- operand.c: a matrix in shared memory -------------------------------------------------------

// One operand: 64 or N rows (of m or n) by 32 bytes along k, through its descriptor. That is 16
// elements, or 32 of e4m3; these are always K-major, and are moved here in pairs, as if each pair
// were one element.
struct operand {
    const char *name; // "A", "B"
    uint64_t descriptor;
    int rows, element_bytes;
    bool mn_major;
};

void operand_inspect(const struct warpgroup *, const struct operand *, uint32_t pc);
void operand_gather(const struct operand *, uint16_t (*to)[16]); // [rows][k]
void operand_expect_unchanged(const struct warpgroup *, const struct operand *, uint16_t (*was)[16],
                              struct sim_place);

// ---- all of a block's ---------------------------------------------------------------------------

struct sm90 {
    struct mbarrier mbarrier[MAX_MBARRIERS];
    int mbarriers;
    struct named_barrier named[16];
    struct warpgroup warpgroup[WARPGROUPS];
    int pool; // registers that no warpgroup has
    struct box *first_box, *last_box;
    struct knowledge known[1024]; // of each thread
    struct knowledge common;      // of a whole warp or warpgroup, for a moment
    uint16_t scratch[256][16];    // for operand.c
    double converted[32][256];    // for wgmma.c
};

struct sm90 *sm90_use(void); // this block's; the first use makes it

// tma.c, wgmma.c
void tma_replay(const struct thread *, const struct box *);
bool tma_land(struct worker *);
bool tma_finish_waits(struct worker *);
void tma_thread_exits(struct thread *);
void tma_block_ends(struct worker *);
void tma_forget(struct sm90 *);
bool wgmma_complete(struct worker *);
void wgmma_thread_exits(struct thread *);
void wgmma_forget(struct sm90 *);

#endif

// schedule.h - what the blocks of rungs 5 to 9 share, in 16 bits or in 8: rings that go on from one
// tile of queries to the next, which tile comes when, and turns. New beside rung 5; 5_fa3.cu says
// what it is for. What differs is there or in fp8_roles.h: tilings, what lies in shared memory, and
// what the roles do with it.
//
// Memory is what a block has in shared memory, and has the mbarriers that init_barriers names.
#ifndef STEP06_SCHEDULE_H
#define STEP06_SCHEDULE_H

#include "hopper.h"

namespace step06 {

// ---- rings --------------------------------------------------------------------------------------

constexpr unsigned Stages = 2; // buffers for K, and for V

template <class Tiling, class Memory> __device__ inline void init_barriers(Memory &x) {
    for (unsigned stage = 0; stage < Tiling::QStages; stage++) {
        mbarrier_init(&x.Q_full[stage], 1);
        mbarrier_init(&x.O_full[stage], Tiling::Consumers * Warpgroup); // all threads
        mbarrier_init(&x.O_stored[stage], 1);
    }
    for (unsigned stage = 0; stage < Stages; stage++) {
        mbarrier_init(&x.K_full[stage], 1);
        mbarrier_init(&x.V_full[stage], 1);
        mbarrier_init(&x.K_empty[stage], Tiling::Consumers); // one thread of each
        mbarrier_init(&x.V_empty[stage], Tiling::Consumers);
    }
    mbarrier_fence_init();
}

// Tile n of a block goes to buffer n % Count, as number n / Count of those that this buffer holds.
template <unsigned Count> __device__ inline int parity_of(unsigned n) { return n / Count % 2; }

// The warpgroup has read a buffer; one of its threads says so.
__device__ inline void free_buffer(uint64_t *empty) {
    if (threadIdx.x % Warpgroup == 0) mbarrier_arrive(empty);
}

// ---- which tile of queries comes when -----------------------------------------------------------

//> tile-order
// Tiles are numbered group by group of heads, and in a group from the last rows of all heads to the
// first: with a causal mask the last see most keys.
struct schedule {
    int tiles, heads, group; // tiles of a head; B * H; heads of a group
    unsigned *next;          // [1] how often a block has asked for another tile; NULL: not needed
};

template <class Tiling>
__device__ inline task task_of(const shape &s, const schedule &order, int tile) {
    int of_group = order.group * order.tiles, first = tile / of_group * order.group;
    int heads = min(order.group, order.heads - first); // the last group may have fewer
    int n = tile % of_group, bh = first + n % heads;
    int i0 = (order.tiles - 1 - n / heads) * Tiling::Br;
    return {bh, (int)kv_head(s, bh), i0, keys_seen(s, i0 + Tiling::Br)};
}

// Keys are taken tile by tile, from the last that a query sees to the first; -1: none sees any.
template <class Tiling> __device__ inline int last_tile(const task &t) {
    return (t.keys + Tiling::Bc - 1) / Tiling::Bc - 1;
}

// A block begins with tile blockIdx.x. Each tile asks once for another, and atomicInc counts from 0
// on when all have: so the next launch finds 0, and nobody has to set it.
__device__ inline int tile_after(const schedule &order, int tile) {
    unsigned last = order.tiles * order.heads - 1;
    return (int)(gridDim.x + (order.next ? atomicInc(order.next, last) : tile));
}
//< tile-order

// ---- turns --------------------------------------------------------------------------------------

// Rung 3's turns, of two warpgroups or more: each hands over to the next.
__device__ inline void take_turn(int consumer) { named_barrier_sync(1 + consumer, 2 * Warpgroup); }
template <class Tiling> __device__ inline void hand_over(int consumer) {
    named_barrier_arrive(1 + (consumer + 1) % Tiling::Consumers, 2 * Warpgroup);
}

// ---- the host's side ----------------------------------------------------------------------------

// How many heads' tiles are taken together: as many as K and V of which are about L2, 512 KB for
// each multiprocessor; but no more than 16, or 64 where d is small, or blocks that all begin with
// the last rows of a head of their own wait for HBM together. Heads that share K and V always are.
// Without a mask one head at a time is best.
inline int heads_of_group(const attn_problem *p) {
    uint64_t element = p->dtype == ATTN_FP8 ? 1 : 2; // bytes
    uint64_t L2 = (uint64_t)p->sm_count << 19, KV = 2 * element * p->seqlen_k * p->head_dim;
    uint64_t sharing = p->heads / p->kv_heads, most = (p->head_dim > 64 ? 16 : 64) / sharing;
    uint64_t kv_heads = L2 / KV < most ? L2 / KV : most, all = (uint64_t)p->batch * p->heads;
    uint64_t heads = (kv_heads > 1 ? kv_heads : 1) * sharing;
    return !p->causal ? 1 : (int)(heads < all ? heads : all);
}

template <class Tiling> void describe_tiling(const attn_problem *p, char *text, size_t size) {
    snprintf(text, size, "Br %d, Bc %d, %d consumers, d padded to %d, groups of %d heads",
             Tiling::Br, Tiling::Bc, Tiling::Consumers, Tiling::D, heads_of_group(p));
}

// O leaves by TMA, as much of each panel as O has.
inline uint64_t stored_bytes(const attn_problem *p, int Br) {
    const int heads = p->batch * p->heads;
    tensor_box box = box_of(NULL, heads, p->seqlen_q, p->head_dim, Br);
    uint64_t sum = 0;
    for (int bh = 0; bh < heads; bh++)
        for (int i0 = 0; i0 < p->seqlen_q; i0 += Br)
            for (int column = 0; column < p->head_dim; column += Panel) {
                const int at[] = {column, i0, bh};
                sum += tma_store_bytes(&box, at);
            }
    return sum;
}

// The counter is asked once after each tile.
inline uint64_t counter_bytes(const attn_problem *p, int Br) {
    return p->causal ? p->batch * p->heads * ceil_div(p->seqlen_q, Br) * SECTOR : 0;
}

} // namespace step06

#endif

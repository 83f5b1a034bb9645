// rings.h - the rings of buffers of rungs 2 to 4: the producer, who fills them, and what consumers
// do to read them. 2_producer.cu says what they are for.
#ifndef STEP06_RINGS_H
#define STEP06_RINGS_H

#include "hopper.h"

namespace step06 {

constexpr int Consumers = 2, Threads = (1 + Consumers) * Warpgroup;
constexpr int Br = Consumers * Rows, Bc = 128, Stages = 2;

template <int D> struct memory { // what lies in a block's shared memory
    unsigned char Q[Br * D * 2], K[Stages][Bc * D * 2], V[Stages][Bc * D * 2];
    uint64_t Q_full, K_full[Stages], K_empty[Stages], V_full[Stages], V_empty[Stages];
};

//> init-barriers
template <int D> __device__ inline void init_barriers(memory<D> &x) {
    mbarrier_init(&x.Q_full, 1);
    for (int stage = 0; stage < Stages; stage++) {
        mbarrier_init(&x.K_full[stage], 1);
        mbarrier_init(&x.V_full[stage], 1);
        mbarrier_init(&x.K_empty[stage], Consumers); // one thread of each
        mbarrier_init(&x.V_empty[stage], Consumers);
    }
    mbarrier_fence_init();
}
//< init-barriers

//> parity
// Tile n of K goes to buffer n % Stages, as number n / Stages of those that this buffer holds. So
// when it is full, phase n / Stages of K_full is complete, and when it is empty again, that of
// K_empty.
__device__ inline int stage_of(int n) { return n % Stages; }
__device__ inline int parity_of(int n) { return n / Stages % 2; }
//< parity

//> produce
// One thread. A buffer may be filled when tile n - Stages has been read, a phase earlier; for the
// first tiles that is the phase before the first, and the wait passes.
template <int D>
__device__ inline void produce(memory<D> &x, const CUtensorMap &Q_map, const CUtensorMap &K_map,
                               const CUtensorMap &V_map, task t) {
    load_tile<Br, D>(x.Q, &Q_map, &x.Q_full, t.i0, t.bh);
    for (int n = 0; n * Bc < t.keys; n++) {
        int stage = stage_of(n);
        mbarrier_wait(&x.K_empty[stage], parity_of(n) ^ 1);
        load_tile<Bc, D>(x.K[stage], &K_map, &x.K_full[stage], n * Bc, t.head);
        mbarrier_wait(&x.V_empty[stage], parity_of(n) ^ 1);
        load_tile<Bc, D>(x.V[stage], &V_map, &x.V_full[stage], n * Bc, t.head);
    }
}
//< produce

//> wait-and-free
// Waits for tile n of K, and says where it is, for wgmma.
template <int D> __device__ inline uint64_t wait_for_K(memory<D> &x, int n) {
    mbarrier_wait(&x.K_full[stage_of(n)], parity_of(n));
    return wgmma_k_major(x.K[stage_of(n)]);
}

template <int D> __device__ inline uint64_t wait_for_V(memory<D> &x, int n) {
    mbarrier_wait(&x.V_full[stage_of(n)], parity_of(n));
    return wgmma_mn_major(x.V[stage_of(n)], Bc * PanelRow);
}

// The warpgroup has read tile n; one of its threads says so.
template <int D> __device__ inline void free_K(memory<D> &x, int n) {
    if (threadIdx.x % Warpgroup == 0) mbarrier_arrive(&x.K_empty[stage_of(n)]);
}
//< wait-and-free

template <int D> __device__ inline void free_V(memory<D> &x, int n) {
    if (threadIdx.x % Warpgroup == 0) mbarrier_arrive(&x.V_empty[stage_of(n)]);
}

} // namespace step06

#endif

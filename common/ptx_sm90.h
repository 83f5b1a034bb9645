// ptx_sm90.h - single instructions of Hopper (sm_90a), each a function named after it.
//
// What is new on Hopper is that much of a kernel's work is only started by a thread and then goes
// on by itself: TMA copies whole boxes of a tensor, wgmma multiplies matrices that lie in shared
// memory. So most of this file is about starting, and about knowing when something is complete. As
// in ptx.h each function stands here twice, for nvcc and for the simulator (sim/mbarrier.c,
// sim/tma.c, sim/wgmma.c).
//
// A kernel that uses it is compiled for sm_90a, the a for "only this architecture".
#ifndef PTX_SM90_H
#define PTX_SM90_H

#include "ptx.h"
#include "tensor_map.h"

#ifdef __CUDACC__
#include <cuda.h>
#endif

// ---- mbarrier: a barrier that also counts bytes -------------------------------------------------
//
// PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". An mbarrier is 8
// bytes of shared memory. It goes through phases 0, 1, 2, …; a phase is complete when `count`
// threads have arrived and all bytes that were announced have come. Then the next phase begins,
// with the same count. A wait names only the parity of the phase it waits for:
//
//     parity p passes  as long as the phase that is going on has the other parity
//
// so a fresh barrier lets a wait for parity 1 pass ("the phase before the first is complete").
//
//     if (threadIdx.x == 0) {
//         mbarrier_init(&full, 1);
//         mbarrier_fence_init();               // or TMA might not see what init wrote
//     }
//     __syncthreads();                         // nor other threads
//     …
//     mbarrier_arrive_expect_tx(&full, bytes); // one thread: so many bytes will come
//     tma_load_2d(tile, &map, &full, x, y);
//     …
//     mbarrier_wait(&full, phase % 2);         // all that read the tile

#ifdef __CUDACC__
PTX void mbarrier_init(uint64_t *bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(bar)), "r"(count)
                 : "memory");
}
PTX void mbarrier_fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
PTX void mbarrier_arrive(uint64_t *bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(bar)) : "memory");
}
PTX void mbarrier_arrive_expect_tx(uint64_t *bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(bar)),
                 "r"(bytes)
                 : "memory");
}
// Has the phase of this parity completed? Waits for a while before it says no.
PTX bool mbarrier_try_wait(uint64_t *bar, int parity) {
    uint32_t complete;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                 "selp.u32 %0, 1, 0, p;}"
                 : "=r"(complete)
                 : "r"(smem_address(bar)), "r"(parity)
                 : "memory");
    return complete;
}
PTX void mbarrier_wait(uint64_t *bar, int parity) {
    while (!mbarrier_try_wait(bar, parity)) continue;
}
#else
PTX void mbarrier_init(uint64_t *bar, int count, SIM_HERE) {
    sim_mbarrier_init(bar, count, SIM_PLACE);
}
PTX void mbarrier_fence_init() { sim_mbarrier_fence_init(); }
PTX void mbarrier_arrive(uint64_t *bar, SIM_HERE) {
    sim_mbarrier_arrive(bar, 0, "mbarrier_arrive()", SIM_PLACE);
}
PTX void mbarrier_arrive_expect_tx(uint64_t *bar, int bytes, SIM_HERE) {
    sim_mbarrier_arrive(bar, bytes, "mbarrier_arrive_expect_tx()", SIM_PLACE);
}
// The simulator waits until the answer is yes.
PTX bool mbarrier_try_wait(uint64_t *bar, int parity, SIM_HERE) {
    sim_mbarrier_wait(bar, parity, "mbarrier_try_wait()", SIM_PLACE);
    return true;
}
PTX void mbarrier_wait(uint64_t *bar, int parity, SIM_HERE) {
    sim_mbarrier_wait(bar, parity, "mbarrier_wait()", SIM_PLACE);
}
#endif

// ---- named barriers -----------------------------------------------------------------------------
//
// PTX ISA, "barrier". A block has 16; number 0 is __syncthreads(). `threads` says how many take
// part, a multiple of 32, the same number in every call that belongs together. Those that arrive go
// on at once, those that sync wait until all have come. Whole warps call them.

#ifdef __CUDACC__
PTX void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
PTX void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
#else
PTX void named_barrier_sync(int id, int threads, SIM_HERE) {
    sim_named_barrier(id, threads, true, SIM_PLACE);
}
PTX void named_barrier_arrive(int id, int threads, SIM_HERE) {
    sim_named_barrier(id, threads, false, SIM_PLACE);
}
#endif

// ---- roles: who does it, with how many registers ------------------------------------------------
//
// PTX ISA, "elect.sync", "setmaxnreg". A warpgroup is 4 warps, threads 128 i to 128 i + 127. The
// block's registers are a pool, given out at launch in equal parts; a warpgroup that copies gives
// some back, and one that multiplies takes them (and waits until they are there). All its threads
// execute it. The kernel needs __launch_bounds__, or nvcc ignores it (C7508).

#ifdef __CUDACC__
// True for one lane of the warp, which all must ask.
PTX bool elect_one() {
    uint32_t elected;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}"
                 : "=r"(elected)::"memory");
    return elected;
}
template <int Registers> PTX void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers> PTX void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
#else
PTX bool elect_one(SIM_HERE) { return sim_elect_one(SIM_PLACE); }
template <int Registers> PTX void setmaxnreg_inc(SIM_HERE) {
    static_assert(Registers % 8 == 0 && Registers >= 24 && Registers <= 256);
    sim_setmaxnreg(Registers, true, SIM_PLACE);
}
template <int Registers> PTX void setmaxnreg_dec(SIM_HERE) {
    static_assert(Registers % 8 == 0 && Registers >= 24 && Registers <= 256);
    sim_setmaxnreg(Registers, false, SIM_PLACE);
}
#endif

// ---- the async proxy ----------------------------------------------------------------------------
//
// PTX ISA, "Memory Consistency Model: Proxies". TMA and wgmma reach shared memory on another way
// than loads and stores do. What threads have stored there (or cp.async has copied) they do not see
// before each thread that stored has executed this fence; then comes a barrier, then TMA or wgmma.

#ifdef __CUDACC__
PTX void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
#else
PTX void fence_proxy_async() { sim_fence_proxy_async(); }
#endif

// ---- four floats in one register: cvt to e4m3 ---------------------------------------------------
//
// PTX ISA, "cvt". e4m3 is the FP8 with 4 bits of exponent and 3 of fraction (dtype.c). To nearest,
// ties to even; beyond 448 it is 448, and NaN is 0x7f. `a` becomes the lowest byte, the element of
// the smallest index. The instruction makes two at a time, the upper one first in PTX's order.

#ifdef __CUDACC__
PTX uint32_t pack_e4m3(float a, float b, float c, float d) {
    uint32_t four;
    asm("{.reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; "
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; mov.b32 %0, {low, high};}"
        : "=r"(four)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return four;
}
#else
PTX uint32_t pack_e4m3(float a, float b, float c, float d) { return sim_pack_e4m3(a, b, c, d); }
#endif

// ---- TMA: whole boxes of a tensor ---------------------------------------------------------------
//
// PTX ISA, "cp.async.bulk.tensor". The map comes from tensor_map_encode() (tensor_map.h), as an
// argument `const __grid_constant__ CUtensorMap`. x, y, … say where the box begins, in elements; it
// may lie partly outside of the tensor: loads put zeros there, and count these, too; stores leave
// it out (tma_load_bytes(), tma_store_bytes() in tensor_map.h). But x is a multiple of 16 bytes,
// and for stores not negative: an H200 takes others for illegal instructions. Shared memory is
// aligned to 128 bytes, with SWIZZLE_128B to 1024, with SWIZZLE_64B to 512, with SWIZZLE_32B to
// 256. One thread calls these.
//
// A load is complete when its bytes have arrived at the mbarrier. A store belongs to a group of its
// thread, as cp.async's copies do, and is complete in two steps: when shared memory has been read
// (it may be used again), and when HBM has been written.

#ifdef __CUDACC__
PTX void prefetch_tensormap(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
PTX void tma_load_2d(void *smem, const CUtensorMap *map, uint64_t *bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(smem_address(smem)),
                 "l"(map), "r"(smem_address(bar)), "r"(x), "r"(y)
                 : "memory");
}
PTX void tma_load_3d(void *smem, const CUtensorMap *map, uint64_t *bar, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(smem_address(smem)),
                 "l"(map), "r"(smem_address(bar)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
PTX void tma_load_4d(void *smem, const CUtensorMap *map, uint64_t *bar, int x, int y, int z,
                     int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(smem_address(smem)),
                 "l"(map), "r"(smem_address(bar)), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
PTX void tma_store_2d(const CUtensorMap *map, const void *smem, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(smem_address(smem)), "r"(x), "r"(y)
                 : "memory");
}
PTX void tma_store_3d(const CUtensorMap *map, const void *smem, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(smem_address(smem)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
PTX void tma_store_4d(const CUtensorMap *map, const void *smem, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(smem_address(smem)), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
PTX void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All but the youngest `Pending` groups have been read from shared memory.
template <int Pending> PTX void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}
// They are in HBM, too.
template <int Pending> PTX void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}
#else
struct CUtensorMap {
    unsigned char opaque[128];
};
PTX void prefetch_tensormap(const CUtensorMap *map, SIM_HERE) {
    sim_prefetch_tensormap(map, SIM_PLACE);
}
PTX void tma_load_2d(void *smem, const CUtensorMap *map, uint64_t *bar, int x, int y, SIM_HERE) {
    const int at[] = {x, y};
    sim_tma_load(smem, map, bar, 2, at, SIM_PLACE);
}
PTX void tma_load_3d(void *smem, const CUtensorMap *map, uint64_t *bar, int x, int y, int z,
                     SIM_HERE) {
    const int at[] = {x, y, z};
    sim_tma_load(smem, map, bar, 3, at, SIM_PLACE);
}
PTX void tma_load_4d(void *smem, const CUtensorMap *map, uint64_t *bar, int x, int y, int z, int w,
                     SIM_HERE) {
    const int at[] = {x, y, z, w};
    sim_tma_load(smem, map, bar, 4, at, SIM_PLACE);
}
PTX void tma_store_2d(const CUtensorMap *map, const void *smem, int x, int y, SIM_HERE) {
    const int at[] = {x, y};
    sim_tma_store(map, smem, 2, at, SIM_PLACE);
}
PTX void tma_store_3d(const CUtensorMap *map, const void *smem, int x, int y, int z, SIM_HERE) {
    const int at[] = {x, y, z};
    sim_tma_store(map, smem, 3, at, SIM_PLACE);
}
PTX void tma_store_4d(const CUtensorMap *map, const void *smem, int x, int y, int z, int w,
                      SIM_HERE) {
    const int at[] = {x, y, z, w};
    sim_tma_store(map, smem, 4, at, SIM_PLACE);
}
PTX void tma_store_commit() { sim_tma_store_commit(); }
template <int Pending> PTX void tma_store_wait_read(SIM_HERE) {
    sim_tma_store_wait(Pending, true, SIM_PLACE);
}
template <int Pending> PTX void tma_store_wait(SIM_HERE) {
    sim_tma_store_wait(Pending, false, SIM_PLACE);
}
#endif

// ---- wgmma: the matrix product of a warpgroup ---------------------------------------------------
//
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". D[64 x N] (+)= A[64 x 16] B[16 x N]
// for 128 threads together, N a multiple of 8 up to 256; A and B are T = __half or __nv_bfloat16.
// B lies in shared memory, A there or in registers, and D is fp32 in registers. Warp w of the
// warpgroup has rows 16 w to 16 w + 15; within them a lane has, as for mma (ptx.h), with g and t as
// there,
//
//     d[4 j], d[4 j + 1]      D[g][8 j + 2 t], D[g][8 j + 2 t + 1]
//     d[4 j + 2], d[4 j + 3]  D[g + 8][…]
//     A[0] … A[3]             as the a of mma: again packed neighbours of a D
//
//     wgmma_fence(d);                   // registers were written before: D, or A
//     wgmma_m64k16<N, T>(d, A, B, 0);   // starts
//     wgmma_m64k16<N, T>(d, A2, B2, 1); // the same D: in order, without a fence
//     wgmma_commit();                   // closes a group
//     …                                 // d, A in registers, the tiles: not to be touched
//     wgmma_wait<0>(d);                 // at most 0 groups are pending
//
// wgmma_m64k32<N> is the same for FP8, elements of type e4m3: A[64 x 32], B[32 x N], both K-major
// (16-bit operands alone can be transposed on the way). Of A in registers a lane has four
// neighbours in each, the first in the lowest byte:
//
//     A[0]  A[g][4 t … 4 t + 3]        A[1]  A[g + 8][4 t …]
//     A[2]  A[g][4 t + 16 …]           A[3]  A[g + 8][4 t + 16 …]
//
// which are not the neighbours of a D: the lane that has columns 2 t and 2 t + 1 of D is asked for
// columns 4 t to 4 t + 3 of A. And the sums are less exact than fp32 (sim/wgmma.c).
//
// The compiler knows nothing of work that goes on after an instruction. It must not store to the
// registers behind the fence what stands before it in the source, nor use before the wait what
// stands behind. So the fence and the wait are told which arrays they are about; the empty asm
// makes each element look used and changed at that place. Tell the wait of an A in registers, too:
// what is used there is not given away before.

#ifdef __CUDACC__
PTX void wgmma_tie(float &element) { asm volatile("" : "+f"(element)::"memory"); }
PTX void wgmma_tie(uint32_t &element) { asm volatile("" : "+r"(element)::"memory"); }
template <class T, int Size> PTX void wgmma_tie(T (&array)[Size]) {
#pragma unroll
    for (int i = 0; i < Size; i++) wgmma_tie(array[i]);
}
template <class... Arrays> PTX void wgmma_fence(Arrays &...arrays) {
    (wgmma_tie(arrays), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
PTX void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending, class... Arrays> PTX void wgmma_wait(Arrays &...arrays) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
    (wgmma_tie(arrays), ...);
}
#else
template <class... Arrays> PTX void wgmma_fence(Arrays &...) { sim_wgmma_fence(); }
PTX void wgmma_commit(SIM_HERE) { sim_wgmma_commit(SIM_PLACE); }
// With the place of the call, which stands behind all other parameters: up to three arrays.
template <int Size> PTX void sim_wgmma_told(float (&d)[Size], sim_place place) {
    sim_wgmma_expect_complete(d, place);
}
template <int Size> PTX void sim_wgmma_told(uint32_t (&)[Size][4], sim_place) {} // A: only read
template <int Pending> PTX void wgmma_wait(SIM_HERE) { sim_wgmma_wait(Pending, SIM_PLACE); }
template <int Pending, class X> PTX void wgmma_wait(X &x, SIM_HERE) {
    sim_wgmma_wait(Pending, SIM_PLACE);
    sim_wgmma_told(x, SIM_PLACE);
}
template <int Pending, class X, class Y> PTX void wgmma_wait(X &x, Y &y, SIM_HERE) {
    sim_wgmma_wait(Pending, SIM_PLACE);
    sim_wgmma_told(x, SIM_PLACE), sim_wgmma_told(y, SIM_PLACE);
}
template <int Pending, class X, class Y, class Z> PTX void wgmma_wait(X &x, Y &y, Z &z, SIM_HERE) {
    sim_wgmma_wait(Pending, SIM_PLACE);
    sim_wgmma_told(x, SIM_PLACE), sim_wgmma_told(y, SIM_PLACE), sim_wgmma_told(z, SIM_PLACE);
}
#endif

// Where a matrix lies in shared memory (PTX ISA, "Matrix Descriptor Format"):
//
//     bits  0-13  address / 16
//     bits 16-29  leading byte offset / 16
//     bits 32-45  stride byte offset / 16
//     bits 49-51  base offset: 0, as tiles begin at multiples of 1024 (512, 256)
//     bits 62-63  0: not swizzled, 1: 128 bytes, 2: 64, 3: 32
//
// What the two offsets mean depends on the layout. With SWIZZLE_128B, as TMA writes it, rows are
// 128 bytes and 8 of them an atom of 1024:
//
//     K-major   a row holds 64 neighbours along k. Stride: from 8 rows to the next 8 (1024 if the
//               rows are dense). Leading: not used. The next 16 of k are 32 bytes further on.
//     MN-major  a row holds 64 neighbours along m or n, and each row is another k. Stride: from 8
//               values of k to the next 8 (1024). Leading: to the next 64 of m or n, a panel
//               further on. The next 16 of k are 2048 bytes further on.
//
// K-major with SWIZZLE_64B a row is 64 bytes and 8 of them 512, the stride; with SWIZZLE_32B it is
// 32 bytes, one step along k, and the stride 256. After the row comes the next panel: a box of its
// own. An e4m3 is one byte, so all that is said of 16 neighbours along k holds for 32 of them.
//
// With SWIZZLE_NONE everything is made of 8 x 16 bytes, dense: 8 rows of 8 elements. K-major,
// leading: to the next 8 of k, stride: to the next 8 rows. MN-major, leading: to the next 8 of k,
// stride: to the next 8 of m or n.
//> descriptor
PTX uint64_t wgmma_descriptor_at(uint32_t address, int leading_bytes, int stride_bytes,
                                 enum tensor_swizzle swizzle) {
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(leading_bytes >> 4 & 0x3fff) << 16 |
           (uint64_t)(stride_bytes >> 4 & 0x3fff) << 32 |
           (uint64_t)(swizzle == SWIZZLE_NONE   ? 0
                      : swizzle == SWIZZLE_128B ? 1
                      : swizzle == SWIZZLE_64B  ? 2
                                                : 3)
               << 62;
}
//< descriptor
PTX uint64_t wgmma_descriptor(const void *smem_tile, int leading_bytes, int stride_bytes,
                              enum tensor_swizzle swizzle) {
    return wgmma_descriptor_at(smem_address(smem_tile), leading_bytes, stride_bytes, swizzle);
}
// The two that TMA's boxes need: K-major, of rows as long as the swizzle is wide, and MN-major, of
// rows of 128 bytes. `panel_bytes`: from one box to the next along n.
PTX uint64_t wgmma_k_major(const void *smem_tile, enum tensor_swizzle swizzle = SWIZZLE_128B) {
    return wgmma_descriptor(smem_tile, 16, 8 * (int)swizzle, swizzle);
}
PTX uint64_t wgmma_mn_major(const void *smem_tile, int panel_bytes) {
    return wgmma_descriptor(smem_tile, panel_bytes, 1024, SWIZZLE_128B);
}
// The same matrix `bytes` further on: the next step along k, the next panel. One addition to the
// lower half, where the address is: cheaper than a new descriptor, and wgmma needs one for each
// step.
PTX uint64_t wgmma_moved(uint64_t descriptor, int bytes) {
    return (descriptor & ~0xffffffffull) | ((uint32_t)descriptor + (uint32_t)(bytes >> 4));
}

enum wgmma_major { K_MAJOR, MN_MAJOR };

#ifdef __CUDACC__
#include "ptx_wgmma.h"
// A and B from shared memory, by their descriptors. `accumulate` 0: D = A B, whatever d holds.
template <int N, class T, wgmma_major MajorA = K_MAJOR, wgmma_major MajorB = K_MAJOR>
PTX void wgmma_m64k16(float (&d)[N / 2], uint64_t A, uint64_t B, bool accumulate) {
    wgmma_of<N, T>::template run<MajorA, MajorB>(d, A, B, accumulate);
}
// A from registers.
template <int N, class T, wgmma_major MajorB = K_MAJOR>
PTX void wgmma_m64k16(float (&d)[N / 2], const uint32_t (&A)[4], uint64_t B, bool accumulate) {
    wgmma_of<N, T>::template run<MajorB>(d, A, B, accumulate);
}
template <int N> PTX void wgmma_m64k32(float (&d)[N / 2], uint64_t A, uint64_t B, bool accumulate) {
    wgmma_of_e4m3<N>::run(d, A, B, accumulate);
}
template <int N>
PTX void wgmma_m64k32(float (&d)[N / 2], const uint32_t (&A)[4], uint64_t B, bool accumulate) {
    wgmma_of_e4m3<N>::run(d, A, B, accumulate);
}
#else
template <class T>
constexpr sim_element sim_element_of = std::is_same_v<T, __half> ? SIM_FP16 : SIM_BF16;
template <int N, class T, wgmma_major MajorA = K_MAJOR, wgmma_major MajorB = K_MAJOR>
PTX void wgmma_m64k16(float (&d)[N / 2], uint64_t A, uint64_t B, bool accumulate, SIM_HERE) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256);
    struct sim_wgmma mine = {d, nullptr, A, B, N, sim_element_of<T>, MajorA, MajorB, accumulate};
    sim_wgmma_start(&mine, SIM_PLACE);
}
template <int N, class T, wgmma_major MajorB = K_MAJOR>
PTX void wgmma_m64k16(float (&d)[N / 2], const uint32_t (&A)[4], uint64_t B, bool accumulate,
                      SIM_HERE) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256);
    struct sim_wgmma mine = {d, A, 0, B, N, sim_element_of<T>, false, MajorB, accumulate};
    sim_wgmma_start(&mine, SIM_PLACE);
}
template <int N>
PTX void wgmma_m64k32(float (&d)[N / 2], uint64_t A, uint64_t B, bool accumulate, SIM_HERE) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256);
    struct sim_wgmma mine = {d, nullptr, A, B, N, SIM_E4M3, false, false, accumulate};
    sim_wgmma_start(&mine, SIM_PLACE);
}
template <int N>
PTX void wgmma_m64k32(float (&d)[N / 2], const uint32_t (&A)[4], uint64_t B, bool accumulate,
                      SIM_HERE) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256);
    struct sim_wgmma mine = {d, A, 0, B, N, SIM_E4M3, false, false, accumulate};
    sim_wgmma_start(&mine, SIM_PLACE);
}
#endif

#endif

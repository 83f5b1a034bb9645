// ptx.h - single instructions of sm_80 and later, each a function named after it.
//
// Some instructions have no operator and no intrinsic in CUDA C: copies in the background, loads of
// matrix fragments, matrix products. A kernel calls them through this file. Each function stands
// here twice, once for nvcc as the PTX instruction that it is, once for the simulator as a call
// into sim/async.c or sim/tensor.c, which do what the PTX ISA says that the instruction does.
//
// Pointers are plain C pointers, into shared memory where the name says smem.
#ifndef PTX_H
#define PTX_H

#include "kernel.h"

#include <type_traits>

#ifdef __CUDACC__
#define PTX __device__ __forceinline__
#else
#define PTX SIM_INLINE
#endif

// ---- addresses ----------------------------------------------------------------------------------

// PTX wants 32-bit addresses within the block's shared memory.
#ifdef __CUDACC__
PTX uint32_t smem_address(const void *smem) { return (uint32_t)__cvta_generic_to_shared(smem); }
#else
PTX uint32_t smem_address(const void *smem) { return sim_smem_address(smem); }
#endif

// ---- copies in the background: cp.async ---------------------------------------------------------
//
// PTX ISA: "cp.async", "cp.async.commit_group", "cp.async.wait_group", "cp.async.wait_all". Both
// addresses are multiples of 16. `.cg` goes through L2 only, not through L1. What it asks of HBM
// also depends on where it stores: copy_sectors() (attn.h).
//
//     cp_async_16(tile + i, K_hbm + i);     // starts, returns at once
//     cp_async_commit();                    // closes a group: this thread's copies since the last
//     cp_async_wait<0>();                   // at most the 0 youngest groups are still pending
//     __syncthreads();                      // and now the other threads' copies are there, too

#ifdef __CUDACC__
PTX void cp_async_16(void *smem, const void *gmem) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_address(smem)), "l"(gmem)
                 : "memory");
}
// If not `valid`, 16 bytes of zeros, and `gmem` is not looked at: for rows past the end.
PTX void cp_async_16(void *smem, const void *gmem, bool valid) {
    int source_bytes = valid ? 16 : 0; // the rest up to 16 is filled with zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(smem)),
                 "l"(gmem), "r"(source_bytes)
                 : "memory");
}
PTX void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending> PTX void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
// All of this thread's copies, committed or not.
PTX void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
PTX void cp_async_16(void *smem, const void *gmem, bool valid = true) {
    sim_cp_async(smem, gmem, valid);
}
PTX void cp_async_commit() { sim_cp_async_commit(); }
template <int Pending> PTX void cp_async_wait() { sim_cp_async_wait(Pending); }
PTX void cp_async_wait_all() { sim_cp_async_wait_all(); }
#endif

// ---- fragments from shared memory: ldmatrix -----------------------------------------------------
//
// PTX ISA, "Warp-level matrix instructions: ldmatrix". A matrix is 8 rows of 8 16-bit elements;
// each row is 16 bytes at a multiple of 16, and the rows may lie anywhere. Lane 8 m + i gives the
// address of row i of matrix m; lanes beyond the last matrix give any. In r[m] lane l gets
//
//     as it is      row l / 4,           columns 2 (l % 4) and 2 (l % 4) + 1
//     transposed    rows 2 (l % 4), + 1, column l / 4
//
// the first in the lower half. All 32 lanes take part.

#ifdef __CUDACC__
#define PTX_LDMATRIX_1(name, qualifiers)                                                           \
    PTX void name(uint32_t(&r)[1], const void *smem_row) {                                         \
        asm volatile("ldmatrix.sync.aligned.m8n8." qualifiers ".shared.b16 {%0}, [%1];"            \
                     : "=r"(r[0])                                                                  \
                     : "r"(smem_address(smem_row))                                                 \
                     : "memory");                                                                  \
    }
#define PTX_LDMATRIX_2(name, qualifiers)                                                           \
    PTX void name(uint32_t(&r)[2], const void *smem_row) {                                         \
        asm volatile("ldmatrix.sync.aligned.m8n8." qualifiers ".shared.b16 {%0, %1}, [%2];"        \
                     : "=r"(r[0]), "=r"(r[1])                                                      \
                     : "r"(smem_address(smem_row))                                                 \
                     : "memory");                                                                  \
    }
#define PTX_LDMATRIX_4(name, qualifiers)                                                           \
    PTX void name(uint32_t(&r)[4], const void *smem_row) {                                         \
        asm volatile("ldmatrix.sync.aligned.m8n8." qualifiers                                      \
                     ".shared.b16 {%0, %1, %2, %3}, [%4];"                                         \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                              \
                     : "r"(smem_address(smem_row))                                                 \
                     : "memory");                                                                  \
    }
PTX_LDMATRIX_1(ldmatrix_x1, "x1")
PTX_LDMATRIX_2(ldmatrix_x2, "x2")
PTX_LDMATRIX_4(ldmatrix_x4, "x4")
PTX_LDMATRIX_1(ldmatrix_x1_trans, "x1.trans")
PTX_LDMATRIX_2(ldmatrix_x2_trans, "x2.trans")
PTX_LDMATRIX_4(ldmatrix_x4_trans, "x4.trans")
#else
#define PTX_LDMATRIX(name, matrices, transposed)                                                   \
    PTX void name(uint32_t(&r)[matrices], const void *smem_row, SIM_HERE) {                        \
        sim_ldmatrix(r, matrices, transposed, smem_row, #name "()", SIM_PLACE);                    \
    }
PTX_LDMATRIX(ldmatrix_x1, 1, false)
PTX_LDMATRIX(ldmatrix_x2, 2, false)
PTX_LDMATRIX(ldmatrix_x4, 4, false)
PTX_LDMATRIX(ldmatrix_x1_trans, 1, true)
PTX_LDMATRIX(ldmatrix_x2_trans, 2, true)
PTX_LDMATRIX(ldmatrix_x4_trans, 4, true)
#endif

// ---- fragments to shared memory: stmatrix -------------------------------------------------------
//
// PTX ISA, "Warp-level matrix instructions: stmatrix". The way back of ldmatrix_x4: r[m] of all
// lanes is matrix m, 8 rows of 8 16-bit elements, of which lane l has columns 2 (l % 4) and the
// next of row l / 4; lane 8 m + i says where row i of matrix m goes, 16 bytes at a multiple of 16.
// An older GPU than sm_90 does not have it, as HasStmatrix says.

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 900
constexpr bool HasStmatrix = false;
#else
constexpr bool HasStmatrix = true;
#endif
#ifdef __CUDACC__
PTX void stmatrix_x4(void *smem_row, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     smem_address(smem_row)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
#else
PTX void stmatrix_x4(void *smem_row, const uint32_t (&r)[4], SIM_HERE) {
    sim_stmatrix_x4(smem_row, r, SIM_PLACE);
}
#endif

// ---- the matrix product: mma --------------------------------------------------------------------
//
// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". D[16 x 8] += A[16 x 16]
// B[16 x 8], one warp together; T is __half or __nv_bfloat16, and D is fp32. With g = lane / 4 and
// t = lane % 4 a lane holds
//
//     a[0] A[g][2t], A[g][2t + 1]            a[1] A[g + 8][2t], …
//     a[2] A[g][2t + 8], A[g][2t + 9]        a[3] A[g + 8][2t + 8], …
//     b0   B[2t][g], B[2t + 1][g]            b1   B[2t + 8][g], B[2t + 9][g]
//     d[0], d[1]  D[g][2t], D[g][2t + 1]     d[2], d[3]  D[g + 8][2t], …
//
// So d of two neighbouring products, packed in pairs, is a of the next one: no lane has to ask
// another. ldmatrix_x4 delivers a from a row-major A, and b0, b1 of two products from a B that is
// stored by columns (as K is); ldmatrix_x4_trans from a B that is stored by rows (as V is).

#ifdef __CUDACC__
template <class T>
PTX void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
#define PTX_MMA(T, type)                                                                           \
    template <>                                                                                    \
    PTX void mma_m16n8k16<T>(float(&d)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1) {      \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
    }
PTX_MMA(__half, "f16")
PTX_MMA(__nv_bfloat16, "bf16")
#else
template <class T>
PTX void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, SIM_HERE) {
    uint32_t b[2] = {b0, b1};
    if constexpr (std::is_same_v<T, __half>)
        sim_mma_m16n8k16_fp16(d, a, b, SIM_PLACE);
    else
        sim_mma_m16n8k16_bf16(d, a, b, SIM_PLACE);
}
#endif

// ---- two floats in one register: cvt ------------------------------------------------------------
//
// PTX ISA, "cvt": to nearest, ties to even. `low` becomes the lower half, which is the element of
// the smaller index in a fragment and in memory. (In PTX's own operand order the upper half comes
// first.)

#ifdef __CUDACC__
template <class T> PTX uint32_t pack(float low, float high);
#define PTX_PACK(T, type)                                                                          \
    template <> PTX uint32_t pack<T>(float low, float high) {                                      \
        uint32_t pair;                                                                             \
        asm("cvt.rn." type ".f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));                 \
        return pair;                                                                               \
    }
PTX_PACK(__half, "f16x2")
PTX_PACK(__nv_bfloat16, "bf16x2")
#else
template <class T> PTX uint32_t pack(float low, float high) {
    if constexpr (std::is_same_v<T, __half>)
        return sim_pack_fp16(low, high);
    else
        return sim_pack_bf16(low, high);
}
#endif

// ---- 2 to the power of x: ex2 -------------------------------------------------------------------
//
// PTX ISA, "ex2". One instruction, where expf() takes several; subnormal inputs and results are
// zero. exp2_approx(-INFINITY) is 0.

#ifdef __CUDACC__
PTX float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
PTX float exp2_approx(float x) { return sim_exp2_approx(x); }
#endif

// ---- sums in HBM: red ---------------------------------------------------------------------------
//
// PTX ISA, "red". Adds to four neighbours in global memory, each atomically, and returns nothing:
// what a block contributes to dQ. `address` is a multiple of 16. One instruction from sm_90 on; an
// older GPU makes four of it, and asks for four times the sectors where lanes are neighbours.

#ifdef __CUDACC__
PTX void red_add_f32x4(float *address, float4 value) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(address)),
        "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
        : "memory");
#else
    atomicAdd(address, value.x);
    atomicAdd(address + 1, value.y);
    atomicAdd(address + 2, value.z);
    atomicAdd(address + 3, value.w);
#endif
}
#else
PTX void red_add_f32x4(float *address, float4 value) {
    const float values[4] = {value.x, value.y, value.z, value.w};
    sim_red_add_f32x4(address, values);
}
#endif

#endif

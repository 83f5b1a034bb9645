// instructions.cu - each instruction of ptx.h alone, to be run on both machines.
//
// The host prepares operands and knows the answers (test_instructions.c). A kernel does nothing but
// bring them to the instruction and back.

#include "instructions.h"
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

namespace instructions {

// ---- cp.async -----------------------------------------------------------------------------------

// Two groups, each 32 pieces of 16 bytes; in the second, odd pieces are zeros. After the wait for
// the first, it is stored; after the wait for all, both are.
__global__ void cp_async_groups(const uint4 *in, // [2][32]
                                uint4 *out) {    // [3][32]
    uint4 *tile = reinterpret_cast<uint4 *>(smem);
    int lane = threadIdx.x;
    cp_async_16(&tile[lane], &in[lane]);
    cp_async_commit();
    cp_async_16(&tile[32 + lane], &in[32 + lane], lane % 2 == 0);
    cp_async_commit();
    cp_async_wait<1>();
    out[lane] = tile[lane];
    cp_async_wait<0>();
    out[32 + lane] = tile[lane];
    out[64 + lane] = tile[32 + lane];
}

// Without a commit. Each thread reads what its neighbour has copied.
__global__ void cp_async_all(const uint4 *in, // [64]
                             uint4 *out) {    // [64]
    uint4 *tile = reinterpret_cast<uint4 *>(smem);
    cp_async_16(&tile[threadIdx.x], &in[threadIdx.x]);
    cp_async_wait_all();
    __syncthreads(); // all threads' copies are complete
    out[threadIdx.x] = tile[threadIdx.x ^ 1];
}

// ---- ldmatrix -----------------------------------------------------------------------------------

// The rows lie scattered: row r of matrix m is the 16 bytes at number (8 m + r) * 5 mod 32.
__device__ inline const uint4 *scattered_rows(const uint4 *in) {
    uint4 *tile = reinterpret_cast<uint4 *>(smem);
    int lane = threadIdx.x;
    tile[lane * 5 % 32] = in[lane];
    __syncwarp(); // every lane's row is there
    return &tile[lane * 5 % 32];
}

__global__ void ldmatrix_plain(const uint4 *in,          // [4][8] rows of 8 elements
                               uint32_t (*out)[4][32]) { // [x1, x2, x4][matrix][lane]
    const uint4 *row = scattered_rows(in);
    int lane = threadIdx.x;
    uint32_t x1[1], x2[2], x4[4];
    ldmatrix_x1(x1, row);
    ldmatrix_x2(x2, row);
    ldmatrix_x4(x4, row);
    out[0][0][lane] = x1[0];
    for (int m = 0; m < 2; m++) out[1][m][lane] = x2[m];
    for (int m = 0; m < 4; m++) out[2][m][lane] = x4[m];
}

__global__ void ldmatrix_transposed(const uint4 *in, uint32_t (*out)[4][32]) { // as above
    const uint4 *row = scattered_rows(in);
    int lane = threadIdx.x;
    uint32_t x1[1], x2[2], x4[4];
    ldmatrix_x1_trans(x1, row);
    ldmatrix_x2_trans(x2, row);
    ldmatrix_x4_trans(x4, row);
    out[0][0][lane] = x1[0];
    for (int m = 0; m < 2; m++) out[1][m][lane] = x2[m];
    for (int m = 0; m < 4; m++) out[2][m][lane] = x4[m];
}

// ---- mma ----------------------------------------------------------------------------------------

// The lanes' registers, as the test has laid them out.
struct fragments {
    uint32_t A[32][4], B[32][2];
    float D[32][4];
};

template <class T> __global__ void mma(const fragments *in, float (*out)[4]) { // [lane][4]
    int lane = threadIdx.x;
    uint32_t a[4];
    float d[4];
    for (int i = 0; i < 4; i++) a[i] = in->A[lane][i];
    for (int i = 0; i < 4; i++) d[i] = in->D[lane][i];
    mma_m16n8k16<T>(d, a, in->B[lane][0], in->B[lane][1]);
    for (int i = 0; i < 4; i++) out[lane][i] = d[i];
}

// Two products D[16 x 16] = A[16 x 16] B[16 x 16] from matrices in shared memory, all by rows of 16
// elements, as a kernel does it: B is taken once as it is (ldmatrix_trans), once as if it were
// stored by columns, which gives A B^T.
template <class T>
__global__ void matrix_product(const uint4 *in,    // A, B: [2][16 rows][2 uint4]
                               float (*out)[16]) { // A B, A B^T: [2][16][16]
    uint4 *tile = reinterpret_cast<uint4 *>(smem);
    int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    for (int i = lane; i < 64; i += 32) tile[i] = in[i];
    __syncwarp(); // both matrices are there
    const uint4 *A = tile, *B = tile + 32;
    uint32_t a[4], b[4], b_transposed[4];
    // Matrices in the order of a: upper left, lower left, upper right, lower right.
    ldmatrix_x4(a, &A[lane % 16 * 2 + lane / 16]);
    // k 0-7 and 8-15 of columns 0-7, then of columns 8-15.
    ldmatrix_x4_trans(b, &B[lane % 16 * 2 + lane / 16]);
    // Rows 0-7 of B, columns 0-7 and 8-15; then rows 8-15.
    ldmatrix_x4(b_transposed, &B[(lane / 16 * 8 + lane % 8) * 2 + lane / 8 % 2]);
    for (int half = 0; half < 2; half++) {
        float d[4] = {}, dt[4] = {};
        mma_m16n8k16<T>(d, a, b[2 * half], b[2 * half + 1]);
        mma_m16n8k16<T>(dt, a, b_transposed[2 * half], b_transposed[2 * half + 1]);
        for (int i = 0; i < 4; i++) {
            int row = g + i / 2 * 8, column = 8 * half + 2 * t + i % 2;
            out[row][column] = d[i];
            out[16 + row][column] = dt[i];
        }
    }
}

// ---- arithmetic, red ----------------------------------------------------------------------------

template <class T> __global__ void pack_pairs(const float2 *in, uint32_t *out) { // [32] each
    float2 x = in[threadIdx.x];
    out[threadIdx.x] = pack<T>(x.x, x.y);
}

__global__ void powers_of_two(const float *in, float *out) { // [128] each
    out[threadIdx.x] = exp2_approx(in[threadIdx.x]);
}

// Four blocks add the same numbers to zeros.
__global__ void clear(float *out) { out[threadIdx.x] = 0; }
__global__ void add_fours(const float4 *in, float *out) { // [32] float4; [128]
    red_add_f32x4(&out[4 * threadIdx.x], in[threadIdx.x]);
}

// ---- the list -----------------------------------------------------------------------------------

const struct {
    const char *name;
    void (*run)(const void *in, void *out);
} kernels[] = {
#define ENTRY(name, kernel, threads, bytes, In, Out)                                               \
    {                                                                                              \
        name, [](const void *in, void *out) {                                                      \
            LAUNCH(kernel, 1, threads, bytes, static_cast<In>(in), static_cast<Out>(out));         \
        }                                                                                          \
    }
    ENTRY("cp_async_groups", cp_async_groups, 32, 1024, const uint4 *, uint4 *),
    ENTRY("cp_async_all", cp_async_all, 64, 1024, const uint4 *, uint4 *),
    ENTRY("ldmatrix", ldmatrix_plain, 32, 512, const uint4 *, uint32_t (*)[4][32]),
    ENTRY("ldmatrix_trans", ldmatrix_transposed, 32, 512, const uint4 *, uint32_t (*)[4][32]),
    ENTRY("mma fp16", mma<__half>, 32, 0, const fragments *, float (*)[4]),
    ENTRY("mma bf16", mma<__nv_bfloat16>, 32, 0, const fragments *, float (*)[4]),
    ENTRY("product fp16", matrix_product<__half>, 32, 1024, const uint4 *, float (*)[16]),
    ENTRY("product bf16", matrix_product<__nv_bfloat16>, 32, 1024, const uint4 *, float (*)[16]),
    ENTRY("pack fp16", pack_pairs<__half>, 32, 0, const float2 *, uint32_t *),
    ENTRY("pack bf16", pack_pairs<__nv_bfloat16>, 32, 0, const float2 *, uint32_t *),
    ENTRY("exp2", powers_of_two, 128, 0, const float *, float *),
    {"red",
     [](const void *in, void *out) {
         LAUNCH(clear, 1, 128, 0, static_cast<float *>(out));
         LAUNCH(add_fours, 4, 32, 0, static_cast<const float4 *>(in), static_cast<float *>(out));
     }},
};

} // namespace instructions

void instruction_run(const char *name, const void *in, void *out) {
    for (auto &k : instructions::kernels)
        if (!strcmp(k.name, name)) return k.run(in, out);
    fprintf(stderr, "no kernel %s in instructions.cu\n", name);
    abort();
}

// tensor.c - the matrix instructions of sm_80: ldmatrix and mma, and the arithmetic around them.
//
// Both are warp collectives: each lane brings its registers, the last one to come does the work of
// all. The tables are those of the PTX ISA, "Matrix multiply-accumulate operation using mma
// instruction"; there a lane is written as groupID = lane / 4, threadID_in_group = lane % 4.

#include "dtype.h"
#include "internal.h"

#include <math.h>
#include <string.h>

// ---- ldmatrix -----------------------------------------------------------------------------------

struct ldmatrix {
    uint32_t *registers; // of the lane, one for each matrix
    int matrices;
    bool transposed;
    const uint16_t *row; // 8 elements: row `lane % 8` of matrix `lane / 8`
};

static const struct ldmatrix *ldmatrix_of(void *const lanes[32], int lane) { return lanes[lane]; }

// Lane l gets elements 2 (l % 4) and the next of row l / 4; transposed, of column l / 4.
static void load_matrices(void *const lanes[32], uint32_t mask) {
    (void)mask;
    for (int lane = 0; lane < 32; lane++) {
        const struct ldmatrix *me = ldmatrix_of(lanes, lane);
        for (int m = 0; m < me->matrices; m++) {
            int r = lane / 4, c = lane % 4 * 2;
            const uint16_t *low = ldmatrix_of(lanes, 8 * m + (me->transposed ? c : r))->row;
            const uint16_t *high = ldmatrix_of(lanes, 8 * m + (me->transposed ? c + 1 : r))->row;
            me->registers[m] = me->transposed ? low[r] | (uint32_t)high[r] << 16
                                              : low[c] | (uint32_t)high[c + 1] << 16;
        }
    }
}

// Lanes 0-7 give the rows of the first matrix, 8-15 of the second, and so on; what the others bring
// is ignored. Each matrix is 8 rows of 16 bytes, one wavefront if the rows are in different banks,
// and that is how the meter counts 16-byte accesses: 8 lanes at a time.
void sim_ldmatrix(uint32_t *registers, int matrices, bool transposed, const void *row,
                  const char *what, struct sim_place place) {
    uint32_t pc = symbols_pc(__builtin_return_address(0));
    if (sim_worker->self->lane < 8 * matrices) {
        if (!memory_is_shared(row))
            sim_fail("%s: the row is not in shared memory, at %s:%d", what, place.file, place.line);
        memory_access(row, 16, SIM_LOAD, BY_WARP, pc);
    }
    struct ldmatrix mine = {registers, matrices, transposed, row};
    scheduler_whole_warp(load_matrices, &mine, what, place);
}

// ---- stmatrix -----------------------------------------------------------------------------------

struct stmatrix {
    const uint32_t *registers;
    uint16_t *row; // 8 elements: row `lane % 8` of matrix `lane / 8`
};

static void store_matrices(void *const lanes[32], uint32_t mask) {
    (void)mask;
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < 4; m++) {
            const struct stmatrix *to = lanes[8 * m + lane / 4];
            uint32_t pair = ((const struct stmatrix *)lanes[lane])->registers[m];
            to->row[lane % 4 * 2] = (uint16_t)pair;
            to->row[lane % 4 * 2 + 1] = (uint16_t)(pair >> 16);
        }
}

// Each row counts as stored by the lane that gives its address.
void sim_stmatrix_x4(void *row, const uint32_t registers[4], struct sim_place place) {
    uint32_t pc = symbols_pc(__builtin_return_address(0));
    if (!memory_is_shared(row))
        sim_fail("stmatrix_x4(): the row is not in shared memory, at %s:%d", place.file,
                 place.line);
    memory_access(row, 16, SIM_STORE, 0, pc);
    struct stmatrix mine = {registers, row};
    scheduler_whole_warp(store_matrices, &mine, "stmatrix_x4()", place);
}

// ---- mma ----------------------------------------------------------------------------------------

struct mma {
    float *D;
    const uint32_t *A, *B;
};

typedef float (*to_float)(uint16_t);

static const struct mma *mma_of(void *const lanes[32], int lane) { return lanes[lane]; }

// A register of a fragment holds two 16-bit elements, the first in the lower half: neighbours in a
// row of A,
static void gather_A(void *const lanes[32], to_float convert, double A[16][16]) {
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            uint32_t pair = mma_of(lanes, lane)->A[i];
            double *row = A[lane / 4 + (i % 2 ? 8 : 0)] + lane % 4 * 2 + (i >= 2 ? 8 : 0);
            row[0] = (double)convert((uint16_t)pair);
            row[1] = (double)convert((uint16_t)(pair >> 16));
        }
}

// and in a column of B.
static void gather_B(void *const lanes[32], to_float convert, double B[16][8]) {
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 2; i++) {
            uint32_t pair = mma_of(lanes, lane)->B[i];
            int k = lane % 4 * 2 + 8 * i, column = lane / 4;
            B[k][column] = (double)convert((uint16_t)pair);
            B[k + 1][column] = (double)convert((uint16_t)(pair >> 16));
        }
}

// Of D a lane has two pairs of neighbours, i = 0 and 1, in rows 8 apart.
static float *pair_of_D(float D[16][8], int lane, int i) {
    return &D[lane / 4 + 8 * i][lane % 4 * 2];
}

// PTX promises products and sums of "at least single precision" and no order. Measured on an A100
// (Fasi, Higham, Mikaitis, Pranesh: "Numerical behavior of NVIDIA tensor cores", 2021), 8 products,
// exact, are added to the accumulator in one step. So here: exact products (two 11-bit significands
// fit a double many times), 8 at a time, one rounding to fp32. The hardware cuts off low bits of
// the step where this rounds to nearest; sums of small integers are exact in both.
//
// One row of D, its 8 columns side by side: the compiler makes vector instructions of that.
static void add_products(const double *a, const double B[16][8], float d[8]) {
    for (int step = 0; step < 16; step += 8) {
        double exact[8];
        for (int column = 0; column < 8; column++) exact[column] = (double)d[column];
        for (int k = step; k < step + 8; k++)
            for (int column = 0; column < 8; column++) exact[column] += a[k] * B[k][column];
        for (int column = 0; column < 8; column++) d[column] = (float)exact[column];
    }
}

static void multiply(void *const lanes[32], to_float convert) {
    double A[16][16], B[16][8];
    float D[16][8];
    gather_A(lanes, convert, A);
    gather_B(lanes, convert, B);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 2; i++)
            memcpy(pair_of_D(D, lane, i), mma_of(lanes, lane)->D + 2 * i, 2 * sizeof(float));
    for (int row = 0; row < 16; row++) add_products(A[row], B, D[row]);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 2; i++)
            memcpy(mma_of(lanes, lane)->D + 2 * i, pair_of_D(D, lane, i), 2 * sizeof(float));
}

static void multiply_fp16(void *const lanes[32], uint32_t mask) {
    (void)mask;
    multiply(lanes, fp16_to_float);
}
static void multiply_bf16(void *const lanes[32], uint32_t mask) {
    (void)mask;
    multiply(lanes, bf16_to_float);
}

void sim_mma_m16n8k16_fp16(float D[4], const uint32_t A[4], const uint32_t B[2],
                           struct sim_place place) {
    struct mma mine = {D, A, B};
    scheduler_whole_warp(multiply_fp16, &mine, "mma_m16n8k16()", place);
}
void sim_mma_m16n8k16_bf16(float D[4], const uint32_t A[4], const uint32_t B[2],
                           struct sim_place place) {
    struct mma mine = {D, A, B};
    scheduler_whole_warp(multiply_bf16, &mine, "mma_m16n8k16()", place);
}

// ---- arithmetic ---------------------------------------------------------------------------------

// ex2.approx.ftz: subnormal inputs count as zero, and subnormal results become zero. The hardware's
// answer is within 2^-22 of 2^x, relatively (PTX ISA, "ex2"); exp2f is nearer.
float sim_exp2_approx(float x) {
    float y = fpclassify(x) == FP_SUBNORMAL ? 1 : exp2f(x);
    return fpclassify(y) == FP_SUBNORMAL ? 0 : y;
}

// cvt.rn: NaN becomes 0x7fff, the canonical one, whatever its sign and payload were.
uint32_t sim_pack_fp16(float low, float high) {
    uint32_t l = isnan(low) ? 0x7fff : fp16_from_float(low);
    return l | (uint32_t)(isnan(high) ? 0x7fff : fp16_from_float(high)) << 16;
}
uint32_t sim_pack_bf16(float low, float high) {
    uint32_t l = isnan(low) ? 0x7fff : bf16_from_float(low);
    return l | (uint32_t)(isnan(high) ? 0x7fff : bf16_from_float(high)) << 16;
}
uint32_t sim_pack_e4m3(float a, float b, float c, float d) {
    return e4m3_from_float(a) | (uint32_t)e4m3_from_float(b) << 8 |
           (uint32_t)e4m3_from_float(c) << 16 | (uint32_t)e4m3_from_float(d) << 24;
}

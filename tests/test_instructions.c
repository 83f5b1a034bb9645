// test_instructions.c - does each instruction of ptx.h do what the PTX ISA says? On either machine.
//
// Operands are small integers, so that every answer is exact whatever the order of the sums. The
// answers come from the PTX ISA's figures read the other way round than in sim/tensor.c: which lane
// and register holds element (row, column), not which elements a lane holds.

#include "dtype.h"
#include "instructions.h"
#include "machine.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static struct machine machine;

static void open_machine(void) {
    char why[300];
    cr_assert(machine_open(&(struct machine_options){0}, &machine, why, sizeof why), "%s", why);
    if (machine.sm < 80) cr_skip_test("this card has none of these instructions");
}

TestSuite(instructions, .init = open_machine);

static const char *kernel; // that runs now

static void call(const struct attn_problem *p, const struct attn_tensors *t) {
    (void)p;
    instruction_run(kernel, t->Q, t->O);
}

static void run(const char *name, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    void *in_device = machine_alloc("in", in_bytes), *out_device = machine_alloc("out", out_bytes);
    machine_write(in_device, in, in_bytes);
    machine_poison(out_device, out_bytes);
    struct attn_problem problem = {0};
    struct attn_tensors tensors = {.Q = in_device, .O = out_device};
    static struct measurement result;
    kernel = name;
    machine_run(&(struct machine_work){call, &problem, &tensors}, &result);
    cr_assert_str_empty(result.error, "%s", result.error);
    machine_read(out, out_device, out_bytes);
    machine_free(in_device), machine_free(out_device);
}

// Integers in [-8, 8), different in each place, the same in every run.
static int small(int i) { return (int)((uint32_t)(i + 1) * 2654435761u >> 28) - 8; }

static uint16_t encode(enum attn_dtype dtype, int x) {
    return dtype == ATTN_FP16 ? fp16_from_float((float)x) : bf16_from_float((float)x);
}

// ---- cp.async -----------------------------------------------------------------------------------

Test(instructions, cp_async_copies_and_fills_with_zeros) {
    uint32_t in[2][32][4], out[3][32][4];
    for (unsigned i = 0; i < 256; i++) (&in[0][0][0])[i] = 1000 + i;
    run("cp_async_groups", in, sizeof in, out, sizeof out);
    cr_expect_arr_eq(out[0], in[0], sizeof in[0], "the first group, after wait<1>");
    cr_expect_arr_eq(out[1], in[0], sizeof in[0]);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            cr_expect_eq(out[2][lane][i], lane % 2 ? 0 : in[1][lane][i], "piece %d", lane);
}

Test(instructions, cp_async_wait_all_needs_no_commit) {
    uint32_t in[64][4], out[64][4];
    for (unsigned i = 0; i < 256; i++) (&in[0][0])[i] = i;
    run("cp_async_all", in, sizeof in, out, sizeof out);
    for (int t = 0; t < 64; t++) cr_expect_arr_eq(out[t], in[t ^ 1], sizeof in[t]);
}

// ---- ldmatrix -----------------------------------------------------------------------------------

// Element (r, c) of a matrix is in lane 4 r + c / 2, in the lower half if c is even.
static unsigned held(const uint32_t lanes[32], int r, int c) {
    return lanes[4 * r + c / 2] >> (c % 2 ? 16 : 0) & 0xffff;
}

static void expect_matrices(const char *name, bool transposed) {
    uint16_t in[4][8][8];
    uint32_t out[3][4][32];
    for (int i = 0; i < 256; i++) (&in[0][0][0])[i] = (uint16_t)(1000 + i);
    run(name, in, sizeof in, out, sizeof out);
    for (int x = 0; x < 3; x++)
        for (int m = 0; m < 1 << x; m++)
            for (int r = 0; r < 8; r++)
                for (int c = 0; c < 8; c++)
                    cr_expect_eq(held(out[x][m], r, c), transposed ? in[m][c][r] : in[m][r][c],
                                 "%s x%d, matrix %d, element (%d, %d)", name, 1 << x, m, r, c);
}

Test(instructions, ldmatrix) { expect_matrices("ldmatrix", false); }
Test(instructions, ldmatrix_transposed) { expect_matrices("ldmatrix_trans", true); }

// ---- mma ----------------------------------------------------------------------------------------

struct fragments {
    uint16_t A[32][8], B[32][4]; // elements of a lane, two in each register
    float D[32][4];
};

static int A_at(int row, int k) { return small(row * 16 + k); }
static int B_at(int k, int column) { return small(1000 + k * 8 + column); }
static int D_at(int row, int column) { return small(2000 + row * 8 + column); }

// From the figures of "Matrix Fragments for mma.m16n8k16 with floating point type".
static struct fragments lay_out(enum attn_dtype dtype) {
    struct fragments f;
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            f.A[4 * (row % 8) + k % 8 / 2][k % 2 + 2 * (row >= 8) + 4 * (k >= 8)] =
                encode(dtype, A_at(row, k));
    for (int k = 0; k < 16; k++)
        for (int column = 0; column < 8; column++)
            f.B[4 * column + k % 8 / 2][k % 2 + 2 * (k >= 8)] = encode(dtype, B_at(k, column));
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++)
            f.D[4 * (row % 8) + column / 2][column % 2 + 2 * (row >= 8)] = (float)D_at(row, column);
    return f;
}

static void expect_mma(const char *name, enum attn_dtype dtype) {
    struct fragments in = lay_out(dtype);
    float out[32][4];
    run(name, &in, sizeof in, out, sizeof out);
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            int sum = D_at(row, column);
            for (int k = 0; k < 16; k++) sum += A_at(row, k) * B_at(k, column);
            float d = out[4 * (row % 8) + column / 2][column % 2 + 2 * (row >= 8)];
            cr_expect_eq(d, (float)sum, "%s (%d, %d): %g, not %d", name, row, column, d, sum);
        }
}

Test(instructions, mma_of_fp16) { expect_mma("mma fp16", ATTN_FP16); }
Test(instructions, mma_of_bf16) { expect_mma("mma bf16", ATTN_BF16); }

// Whole matrices, through ldmatrix and mma: no fragment is looked at.
static void expect_product(const char *name, enum attn_dtype dtype) {
    uint16_t in[2][16][16];
    float out[2][16][16];
    for (int i = 0; i < 512; i++) (&in[0][0][0])[i] = encode(dtype, small(i));
    run(name, in, sizeof in, out, sizeof out);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            int AB = 0, ABt = 0;
            for (int k = 0; k < 16; k++) {
                AB += small(16 * i + k) * small(256 + 16 * k + j);
                ABt += small(16 * i + k) * small(256 + 16 * j + k);
            }
            cr_expect_eq(out[0][i][j], (float)AB, "%s: A B (%d, %d)", name, i, j);
            cr_expect_eq(out[1][i][j], (float)ABt, "%s: A B^T (%d, %d)", name, i, j);
        }
}

Test(instructions, products_of_fp16) { expect_product("product fp16", ATTN_FP16); }
Test(instructions, products_of_bf16) { expect_product("product bf16", ATTN_BF16); }

// ---- arithmetic, red ----------------------------------------------------------------------------

static void expect_pairs(const char *name, enum attn_dtype dtype) {
    float in[32][2];
    uint32_t out[32];
    // Ties, values on both sides of them, subnormals of fp16, infinities.
    for (int i = 0; i < 64; i++) (&in[0][0])[i] = (1 + (float)i / 16384) * ldexpf(1, i - 26);
    in[0][0] = INFINITY, in[1][1] = -INFINITY, in[2][0] = NAN, in[3][1] = -NAN, in[4][0] = -0.f;
    run(name, in, sizeof in, out, sizeof out);
    for (int i = 0; i < 32; i++)
        for (int half = 0; half < 2; half++) {
            float x = in[i][half];
            uint16_t expected = dtype == ATTN_FP16 ? fp16_from_float(x) : bf16_from_float(x);
            if (isnan(x)) expected = 0x7fff; // PTX's canonical NaN
            cr_expect_eq(out[i] >> 16 * half & 0xffff, expected, "%s: %a in half %d: %" PRIx32,
                         name, x, half, out[i]);
        }
}

Test(instructions, pairs_of_fp16) { expect_pairs("pack fp16", ATTN_FP16); }
Test(instructions, pairs_of_bf16) { expect_pairs("pack bf16", ATTN_BF16); }

Test(instructions, exp2_is_close_and_flushes_subnormals) {
    float in[128], out[128];
    for (int i = 0; i < 128; i++) in[i] = (float)(i - 100) * 1.17f;
    in[0] = -INFINITY, in[1] = INFINITY, in[2] = NAN, in[3] = 0, in[4] = -0x1p-140f, in[5] = -127;
    in[6] = 10, in[7] = 128;
    run("exp2", in, sizeof in, out, sizeof out);
    cr_expect_eq(out[0], 0);
    cr_expect_eq(out[1], INFINITY);
    cr_expect(isnan(out[2]));
    cr_expect_eq(out[3], 1);
    cr_expect_eq(out[4], 1, "a subnormal counts as zero");
    cr_expect_eq(out[5], 0, "a subnormal result is zero");
    cr_expect_eq(out[6], 1024);
    cr_expect_eq(out[7], INFINITY);
    for (int i = 8; i < 128; i++) {
        double right = exp2((double)in[i]);
        cr_expect(fabs((double)out[i] - right) <= right * 0x1p-22, "2^%g: %g", in[i], out[i]);
    }
}

Test(instructions, red_adds_four_at_a_time) {
    float in[128], out[128];
    for (int i = 0; i < 128; i++) in[i] = (float)small(i);
    run("red", in, sizeof in, out, sizeof out);
    for (int i = 0; i < 128; i++) cr_expect_eq(out[i], 4 * in[i], "%d", i);
}

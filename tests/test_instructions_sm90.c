// test_instructions_sm90.c - does each instruction of ptx_sm90.h do what the PTX ISA says? On
// either machine; what the answers are taken from is said in test_instructions.c.

#include "dtype.h"
#include "instructions_sm90.h"
#include "machine.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct machine machine;

static void open_machine(void) {
    char why[300];
    cr_assert(machine_open(&(struct machine_options){0}, &machine, why, sizeof why), "%s", why);
    if (machine.sm != 90) cr_skip_test("these instructions are Hopper's alone");
}

TestSuite(instructions_sm90, .init = open_machine);

// ---- running ------------------------------------------------------------------------------------

// What runs now: one of the list, or a copy.
static const char *kernel;
static struct tensor_box box;
static int at[4], out_size;

static void call(const struct attn_problem *p, const struct attn_tensors *t) {
    (void)p;
    if (!strcmp(kernel, "load"))
        instruction_tma_load(&box, at, t->Q, t->O);
    else if (!strcmp(kernel, "store"))
        instruction_tma_store(&box, at, t->Q, t->O, out_size);
    else
        instruction_sm90_run(kernel, t->Q, t->O);
}

static struct measurement result;

static void run(const char *name, const void *in, size_t in_bytes, void *out, size_t out_bytes) {
    void *in_device = machine_alloc("in", in_bytes), *out_device = machine_alloc("out", out_bytes);
    machine_write(in_device, in, in_bytes);
    machine_poison(out_device, out_bytes);
    struct attn_problem problem = {0};
    struct attn_tensors tensors = {.Q = in_device, .O = out_device};
    kernel = name;
    out_size = (int)out_bytes;
    machine_run(&(struct machine_work){call, &problem, &tensors}, &result);
    cr_assert_str_empty(result.error, "%s", result.error);
    machine_read(out, out_device, out_bytes);
    machine_free(in_device), machine_free(out_device);
}

// Integers in [-8, 8), different in each place, the same in every run.
static int small(int i) { return (int)((uint32_t)(i + 1) * 2654435761u >> 28) - 8; }

// ---- TMA ----------------------------------------------------------------------------------------

// A tensor of 16-bit numbers that say where they stand, with gaps behind each row and each plane.
enum { SX = 40, SY = 9, SZ = 3, SW = 2, PITCH = 48, PLANE = 10 * PITCH, VOLUME = 3 * PLANE };
static uint16_t tensor[SW * VOLUME];

static int number_of(int x, int y, int z, int w) { return w * VOLUME + z * PLANE + y * PITCH + x; }

// A box of columns x rows x planes x volumes, and where it begins.
static void choose(int rank, enum tensor_swizzle swizzle, const int size[4], const int begin[4]) {
    box = (struct tensor_box){.element_bytes = 2,
                              .rank = rank,
                              .size = {SX, SY, SZ, SW},
                              .stride = {2, PITCH * 2, PLANE * 2, VOLUME * 2},
                              .swizzle = swizzle};
    for (int i = 0; i < 4; i++) {
        box.box[i] = (uint32_t)(i < rank ? size[i] : 1);
        at[i] = i < rank ? begin[i] : 0;
    }
}

static bool is_inside(int x, int y, int z, int w) {
    return x >= 0 && x < SX && y >= 0 && y < SY && z >= 0 && z < SZ && w >= 0 && w < SW;
}

// In shared memory the box's elements follow each other, x fastest. Swizzled, look at it as lines
// of 128 bytes: in line l, piece c of 16 bytes (8 elements) is where c xor l % 8 would be. 64 bytes
// have 4 pieces, and there it is l % 4; 32 bytes have 2.
static int index_in_smem(int i) {
    if (box.swizzle == SWIZZLE_NONE) return i;
    int line = i / 64, piece = i % 64 / 8;
    return line * 64 + (piece ^ line % ((int)box.swizzle / 16)) * 8 + i % 8;
}

// Calls f for each element of the box: its number in shared memory, and in the tensor (-1:
// outside).
static void each_element(void (*f)(int in_smem, int in_tensor)) {
    int i = 0;
    for (int w = 0; w < (int)box.box[3]; w++)
        for (int z = 0; z < (int)box.box[2]; z++)
            for (int y = 0; y < (int)box.box[1]; y++)
                for (int x = 0; x < (int)box.box[0]; x++, i++) {
                    int X = at[0] + x, Y = at[1] + y, Z = at[2] + z, W = at[3] + w;
                    bool inside = is_inside(X, Y, Z, W);
                    f(index_in_smem(i), inside ? number_of(X, Y, Z, W) : -1);
                }
}

static uint16_t shared[8192], wanted[sizeof tensor / 2];

static void expect_loaded(int in_smem, int in_tensor) {
    int right = in_tensor < 0 ? 0 : tensor[in_tensor];
    cr_assert_eq(shared[in_smem], right, "rank %d at (%d, %d, %d, %d), element %d: %d, not %d",
                 box.rank, at[0], at[1], at[2], at[3], in_smem, shared[in_smem], right);
}

static void store_wanted(int in_smem, int in_tensor) {
    if (in_tensor >= 0) wanted[in_tensor] = shared[in_smem];
}

// The tensor's rows and planes are multiples of 32 bytes apart, with a gap behind each.
static uint64_t sectors_stored;
static int last_stored;
static void count_stored(int in_smem, int in_tensor) {
    (void)in_smem;
    if (in_tensor < 0) return;
    sectors_stored += in_tensor != last_stored + 1 || in_tensor % 16 == 0;
    last_stored = in_tensor;
}

static uint64_t sectors_loaded(void) {
    uint32_t begin = (uint32_t)at[0] * 2 % 32;
    return (begin + box.box[0] * 2 + 31) / 32 * box.box[1] * box.box[2] * box.box[3];
}

static void expect_copies(int rank, enum tensor_swizzle swizzle, const int size[4],
                          const int begin[4]) {
    choose(rank, swizzle, size, begin);
    size_t bytes = tensor_box_bytes(&box);
    for (int i = 0; i < SW * VOLUME; i++) tensor[i] = (uint16_t)(i + 1);
    memset(shared, 0xee, sizeof shared);
    run("load", tensor, sizeof tensor, shared, bytes);
    each_element(expect_loaded);
    if (machine.simulated)
        cr_expect_eq(result.asked.tma_load, 32 * sectors_loaded(), "what is outside, too");

    if (begin[0] < 0) return; // a load only

    static uint16_t out[sizeof tensor / 2];
    for (unsigned i = 0; i < bytes / 2; i++) shared[i] = (uint16_t)(7 * i + 1);
    memset(wanted, 0, sizeof wanted);
    each_element(store_wanted);
    run("store", shared, bytes, out, sizeof out);
    cr_expect_arr_eq(out, wanted, sizeof wanted, "rank %d at (%d, %d, %d, %d)", rank, at[0], at[1],
                     at[2], at[3]);
    sectors_stored = 0, last_stored = -2;
    each_element(count_stored);
    if (machine.simulated)
        cr_expect_eq(result.asked.tma_store, 32 * sectors_stored, "what is inside");
}

#define SIZE(...)                                                                                  \
    (const int[4]) { __VA_ARGS__ }

Test(instructions_sm90, boxes_inside_of_the_tensor) {
    expect_copies(2, SWIZZLE_NONE, SIZE(8, 4), SIZE(16, 3));
    expect_copies(2, SWIZZLE_NONE, SIZE(40, 9), SIZE(0, 0));
    expect_copies(3, SWIZZLE_NONE, SIZE(16, 3, 2), SIZE(8, 2, 1));
    expect_copies(4, SWIZZLE_NONE, SIZE(24, 5, 2, 2), SIZE(8, 4, 1, 0));
}

Test(instructions_sm90, boxes_partly_outside) {
    expect_copies(2, SWIZZLE_NONE, SIZE(64, 16), SIZE(0, 0));
    expect_copies(2, SWIZZLE_NONE, SIZE(16, 8), SIZE(-8, -3));
    expect_copies(3, SWIZZLE_NONE, SIZE(16, 4, 4), SIZE(32, 7, 1));
    expect_copies(4, SWIZZLE_NONE, SIZE(8, 4, 2, 2), SIZE(32, -1, 2, 1));
    expect_copies(2, SWIZZLE_NONE, SIZE(8, 2), SIZE(104, 100));
}

Test(instructions_sm90, swizzled_boxes) {
    expect_copies(2, SWIZZLE_128B, SIZE(64, 9), SIZE(0, 0));
    expect_copies(2, SWIZZLE_128B, SIZE(64, 20), SIZE(-8, -2));
    expect_copies(3, SWIZZLE_128B, SIZE(64, 5, 3), SIZE(8, 2, 0));
    expect_copies(4, SWIZZLE_128B, SIZE(64, 16, 1, 1), SIZE(0, 3, 2, 1));
    expect_copies(2, SWIZZLE_64B, SIZE(32, 9), SIZE(0, 0));
    expect_copies(3, SWIZZLE_64B, SIZE(32, 7, 3), SIZE(16, -1, 0));
    expect_copies(2, SWIZZLE_32B, SIZE(16, 9), SIZE(0, 0));
    expect_copies(3, SWIZZLE_32B, SIZE(16, 7, 3), SIZE(-8, 1, 1));
}

// ---- barriers -----------------------------------------------------------------------------------

static void expect_ring(const char *name) {
    uint32_t in[5][32], out[5][32];
    for (unsigned i = 0; i < 160; i++) (&in[0][0])[i] = i;
    run(name, in, sizeof in, out, sizeof out);
    for (int i = 0; i < 5; i++)
        for (int lane = 0; lane < 32; lane++)
            cr_expect_eq(out[i][lane], in[i][31 - lane], "turn %d, lane %d", i, lane);
}

Test(instructions_sm90, mbarriers_go_through_phases) { expect_ring("mbarrier ring"); }
Test(instructions_sm90, named_barriers_part_arriving_from_waiting) { expect_ring("named ring"); }

Test(instructions_sm90, one_lane_of_each_warp_is_elected) {
    uint32_t in = 0, out[12];
    run("roles", &in, sizeof in, out, sizeof out);
    for (int warp = 0; warp < 12; warp++) cr_expect_eq(out[warp], 1, "warp %d", warp);
}

// ---- stmatrix -----------------------------------------------------------------------------------

// Element (r, c) of a matrix is in lane 4 r + c / 2, in the lower half if c is even.
Test(instructions_sm90, stmatrix_stores_rows_where_lanes_say) {
    uint16_t in[4][32][2], out[32][8];
    for (int i = 0; i < 256; i++) (&in[0][0][0])[i] = (uint16_t)(1000 + i);
    run("stmatrix", in, sizeof in, out, sizeof out);
    for (int m = 0; m < 4; m++)
        for (int r = 0; r < 8; r++)
            for (int c = 0; c < 8; c++)
                cr_expect_eq(out[31 - (8 * m + r)][c], in[m][4 * r + c / 2][c % 2],
                             "matrix %d, element (%d, %d)", m, r, c);
}

// ---- wgmma --------------------------------------------------------------------------------------

enum { K = 64 };

static int A_at(int m, int k) { return small(m * K + k); }
static int B_at(int k, int n) { return small(5000 + n * K + k); }

// PTX ISA's figure of D: which thread and which register hold element (row, column).
static float held(const float *out, int N, int row, int column) {
    int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
    int i = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
    return out[thread * N / 2 + i];
}

// "fp16 64 kk swizzled": type, N, majors.
static void expect_product(const char *name) {
    char type[8], majors[4];
    int N;
    cr_assert_eq(sscanf(name, "%7s %d %3s", type, &N, majors), 3);
    bool fp16 = !strcmp(type, "fp16"), A_by_k = majors[0] != 'm', B_by_k = majors[1] == 'k';
    uint16_t (*encode)(float) = fp16 ? fp16_from_float : bf16_from_float;
    static uint16_t in[(64 + 256) * K];
    static float out[128 * 128];
    for (int k = 0; k < K; k++) {
        for (int m = 0; m < 64; m++)
            in[A_by_k ? m * K + k : k * 64 + m] = encode((float)A_at(m, k));
        for (int n = 0; n < N; n++)
            in[64 * K + (B_by_k ? n * K + k : k * N + n)] = encode((float)B_at(k, n));
    }
    run(name, in, (size_t)(64 + N) * K * 2, out, (size_t)N * 64 * 4);
    for (int m = 0; m < 64; m++)
        for (int n = 0; n < N; n++) {
            int sum = 0;
            for (int k = 0; k < K; k++) sum += A_at(m, k) * B_at(k, n);
            cr_assert_eq(held(out, N, m, n), (float)sum, "%s: (%d, %d) is %g, not %d", name, m, n,
                         held(out, N, m, n), sum);
        }
}

Test(instructions_sm90, wgmma_along_k) {
    expect_product("fp16 64 kk swizzled");
    expect_product("bf16 64 kk swizzled");
    expect_product("fp16 8 kk swizzled");
    expect_product("bf16 176 kk swizzled");
    expect_product("fp16 256 kk swizzled");
}

Test(instructions_sm90, wgmma_along_m_and_n) {
    expect_product("fp16 24 kn swizzled");
    expect_product("fp16 128 mn swizzled");
    expect_product("bf16 176 kn swizzled");
    expect_product("fp16 256 mn swizzled");
}

Test(instructions_sm90, wgmma_without_swizzling) {
    expect_product("fp16 64 kk plain");
    expect_product("fp16 96 kn plain");
    expect_product("bf16 40 mk plain");
}

Test(instructions_sm90, wgmma_with_A_in_registers) {
    expect_product("fp16 64 rk swizzled");
    expect_product("bf16 128 rn swizzled");
}

// ---- e4m3 ---------------------------------------------------------------------------------------

enum { K8 = 128 };
static uint8_t e4m3_A[64][K8], e4m3_B[256][K8];
static float e4m3_D[128 * 128];

static void run_e4m3(const char *name, int N) {
    static uint8_t in[sizeof e4m3_A + sizeof e4m3_B];
    memcpy(in, e4m3_A, sizeof e4m3_A);
    memcpy(in + sizeof e4m3_A, e4m3_B, sizeof e4m3_B);
    run(name, in, sizeof e4m3_A + (size_t)N * K8, e4m3_D, (size_t)N * 64 * 4);
}

// "e4m3 64 smem 128": N, where A is, the swizzle's bytes. Sums of integers, below 2^13: exact.
static void expect_e4m3_product(const char *name) {
    int N;
    cr_assert_eq(sscanf(name, "e4m3 %d", &N), 1);
    for (int k = 0; k < K8; k++) {
        for (int m = 0; m < 64; m++) e4m3_A[m][k] = e4m3_from_float((float)small(m * K8 + k));
        for (int n = 0; n < N; n++) e4m3_B[n][k] = e4m3_from_float((float)small(9000 + n * K8 + k));
    }
    run_e4m3(name, N);
    for (int m = 0; m < 64; m++)
        for (int n = 0; n < N; n++) {
            int sum = 0;
            for (int k = 0; k < K8; k++) sum += small(m * K8 + k) * small(9000 + n * K8 + k);
            cr_assert_eq(held(e4m3_D, N, m, n), (float)sum, "%s: (%d, %d) is %g, not %d", name, m,
                         n, held(e4m3_D, N, m, n), sum);
        }
}

static const char *const e4m3_products[] = {
    "e4m3 8 smem 128",  "e4m3 64 smem 128",      "e4m3 96 smem 32",       "e4m3 128 smem 128",
    "e4m3 160 smem 32", "e4m3 192 smem 64",      "e4m3 224 smem 32",      "e4m3 256 smem 64",
    "e4m3 40 smem 0",   "e4m3 64 registers 128", "e4m3 128 registers 64", "e4m3 224 registers 32"};

static void expect_all_e4m3_products(void) {
    for (unsigned i = 0; i < sizeof e4m3_products / sizeof *e4m3_products; i++)
        expect_e4m3_product(e4m3_products[i]);
}

Test(instructions_sm90, wgmma_of_e4m3) { expect_all_e4m3_products(); }

// Opens the machine again, which then adds as said; a GPU cannot choose.
static void choose_accumulator(bool fp8_14_bits) {
    char why[300];
    struct machine_options options = {.fp8_14_bits = fp8_14_bits};
    if (!machine.simulated) cr_skip_test("the simulator's choice");
    cr_assert(machine_open(&options, &machine, why, sizeof why), "%s", why);
}

// Row 0 of A times column 0 of B. The last of the four steps has the products a[k] b[k], the one
// before it a single one, x y: that is in the accumulator then.
static float e4m3_sum(const float a[32], const float b[32], float x, float y) {
    memset(e4m3_A, 0, sizeof e4m3_A);
    memset(e4m3_B, 0, sizeof e4m3_B);
    e4m3_A[0][64] = e4m3_from_float(x);
    e4m3_B[0][64] = e4m3_from_float(y);
    for (int k = 0; k < 32; k++) {
        e4m3_A[0][96 + k] = e4m3_from_float(a[k]);
        e4m3_B[0][96 + k] = e4m3_from_float(b[k]);
    }
    run_e4m3("e4m3 64 smem 128", 64);
    return held(e4m3_D, 64, 0, 0);
}

// All products are `each` but number 5, which is `one` squared.
static float sum_of(float each, float one, float x, float y) {
    float a[32], b[32];
    for (int k = 0; k < 32; k++) {
        a[k] = k == 5 ? one : each;
        b[k] = k == 5 ? one : 1;
    }
    return e4m3_sum(a, b, x, y);
}

// What is summed, by hand. 256 * 256 = 2^16: the unit is 2^(16 - 13) = 8.
static void expect_sums(bool in_14_bits) {
    choose_accumulator(in_14_bits);
    cr_expect_eq(sum_of(7, 256, 0, 0), in_14_bits ? 65536 : 65536 + 31 * 7);
    cr_expect_eq(sum_of(-7, 256, 0, 0), in_14_bits ? 65536 : 65536 - 31 * 7, "towards zero");
    cr_expect_eq(sum_of(9, 256, 0, 0), in_14_bits ? 65536 + 31 * 8 : 65536 + 31 * 9);
    // The accumulator takes part as one of the products does: its exponent counts, and it is cut.
    cr_expect_eq(sum_of(-7, 0, 256, 256), in_14_bits ? 65536 : 65536 - 31 * 7);
    cr_expect_eq(sum_of(0, 256, -15, 13), in_14_bits ? 65536 - 192 : 65536 - 195);
    // 15 * 15 = 225 has the unit 2^(7 - 13), so 2^-6 is whole; 31 * 225 = 6975 has the unit 1/2.
    float a[32];
    for (int k = 0; k < 32; k++) a[k] = k == 9 ? 0.125f : 15;
    cr_expect_eq(e4m3_sum(a, a, 0, 0), in_14_bits ? 6975 : 6975.015625, "the sum is cut, too");
}

Test(instructions_sm90, sums_of_e4m3_are_exact) { expect_sums(false); }
Test(instructions_sm90, sums_of_e4m3_in_14_bits) { expect_sums(true); }
Test(instructions_sm90, small_integers_are_exact_in_14_bits) {
    choose_accumulator(true);
    expect_all_e4m3_products();
}

// 16 bits are added as ever.
Test(instructions_sm90, sums_of_bf16_keep_their_bits) {
    static uint16_t in[128 * K];
    static float out[128 * 32];
    choose_accumulator(true);
    in[0] = in[64 * K] = bf16_from_float(256);
    for (int k = 1; k < K; k++) in[k] = bf16_from_float(7), in[64 * K + k] = bf16_from_float(1);
    run("bf16 64 kk swizzled", in, sizeof in, out, sizeof out);
    cr_expect_eq(held(out, 64, 0, 0), 65536 + 63 * 7);
}

Test(instructions_sm90, nan_and_zero_in_14_bits) {
    float zeros[32] = {0}, a[32] = {1, NAN}, b[32] = {1, 1};
    choose_accumulator(true);
    cr_expect_eq(e4m3_sum(zeros, zeros, 0, 0), 0);
    cr_expect(isnan(e4m3_sum(a, b, 0, 0)));
    cr_expect(isnan(e4m3_sum(zeros, zeros, NAN, 1)), "it stays");
}

// By the format's definition: (1 + fraction / 8) 2^(exponent - 7), subnormals fraction 2^-9.
static double e4m3_value(int code) {
    int exponent = code >> 3 & 15, fraction = code & 7;
    double x = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return code & 0x80 ? -x : x;
}

// The nearest of all 254 numbers, of two the one with the even code.
static int e4m3_nearest(float x) {
    int best = signbit(x) ? 0x80 : 0;
    if (isnan(x)) return 0x7f;
    if (isinf(x)) return best | 0x7e;
    for (int code = best, end = best | 0x7e; code <= end; code++) {
        double d = fabs(e4m3_value(code) - (double)x), least = fabs(e4m3_value(best) - (double)x);
        if (d < least || (d == least && code % 2 == 0)) best = code;
    }
    return best;
}

// All numbers, all halves between two neighbours, what is next to these; large ones, NaN.
Test(instructions_sm90, four_floats_are_packed_as_e4m3) {
    static float in[1024];
    static uint32_t out[256];
    int n = 0;
    for (int code = 0; code < 0x7e; code++)
        for (int sign = 0; sign < 2; sign++) {
            float x = (float)e4m3_value(code | sign << 7);
            float half = (float)((e4m3_value(code) + e4m3_value(code + 1)) / 2 * (sign ? -1 : 1));
            in[n++] = x;
            in[n++] = half;
            in[n++] = nextafterf(half, 0);
            in[n++] = nextafterf(half, 2 * half);
        }
    const float more[] = {448,       -448, 463,  464,    465,     480,      -1e30f, INFINITY,
                          -INFINITY, NAN,  -NAN, 1e-40f, -1e-40f, 0x1p-10f, 0,      1};
    memcpy(in + n, more, sizeof more);
    cr_assert_eq((size_t)n + sizeof more / sizeof *more, sizeof in / sizeof *in);
    run("pack e4m3", in, sizeof in, out, sizeof out);
    for (int i = 0; i < 1024; i++)
        cr_expect_eq(out[i / 4] >> i % 4 * 8 & 255, (uint32_t)e4m3_nearest(in[i]),
                     "%a: %02x, not %02x", (double)in[i], out[i / 4] >> i % 4 * 8 & 255,
                     (unsigned)e4m3_nearest(in[i]));
}

Test(instructions_sm90, a_pipeline_of_all) {
    enum { WIDTH = 320 };
    static uint16_t in[(128 + 64) * WIDTH];
    static float out[128 * 64];
    for (int i = 0; i < (128 + 64) * WIDTH; i++) in[i] = fp16_from_float((float)small(i));
    run("pipeline", in, sizeof in, out, sizeof out);
    for (int i = 0; i < 128; i++)
        for (int j = 0; j < 64; j++) {
            int sum = 0;
            for (int k = 0; k < WIDTH; k++)
                sum += small(i * WIDTH + k) * small((128 + j) * WIDTH + k);
            cr_assert_eq(out[i * 64 + j], (float)sum, "(%d, %d): %g, not %d", i, j, out[i * 64 + j],
                         sum);
        }
}

// ---- what TMA cannot copy -----------------------------------------------------------------------

static void expect_refused(struct tensor_box b, const char *words) {
    char why[300] = "";
    cr_expect(!tensor_box_check(&b, why, sizeof why));
    cr_expect(strstr(why, words), "'%s' does not say '%s'", why, words);
    cr_expect_null(strchr(why, '\n'));
}

Test(instructions_sm90, impossible_boxes_are_refused_in_a_line) {
    struct tensor_box right = {.base = (void *)4096,
                               .element_bytes = 2,
                               .rank = 2,
                               .size = {64, 100},
                               .stride = {2, 128},
                               .box = {64, 64},
                               .swizzle = SWIZZLE_128B},
                      b;
    char why[300];
    cr_expect(tensor_box_check(&right, why, sizeof why), "%s", why);
    cr_expect_eq(tensor_box_bytes(&right), 8192);
    b = right, b.stride[1] = 136;
    expect_refused(b, "the stride of dimension 1 is 136 bytes");
    b = right, b.base = (void *)4104;
    expect_refused(b, "begins at an address that is 8 modulo 16");
    b = right, b.box[1] = 257;
    expect_refused(b, "the box has 257 elements along dimension 1");
    b = right, b.box[0] = 72;
    expect_refused(b, "a row of the box has 144 bytes; with SWIZZLE_128B at most 128");
    b = right, b.swizzle = SWIZZLE_64B;
    expect_refused(b, "a row of the box has 128 bytes; with SWIZZLE_64B at most 64");
    b = right, b.box[0] = 32;
    expect_refused(b, "with SWIZZLE_128B TMA would leave gaps behind shorter rows than 128");
    b = right, b.box[0] = 8, b.swizzle = SWIZZLE_32B;
    expect_refused(b, "a row of the box has 16 bytes; with SWIZZLE_32B");
    b = right, b.box[0] = 4;
    expect_refused(b, "a row of the box has 8 bytes");
    b = right, b.size[0] = 0;
    expect_refused(b, "dimension 0 has 0 elements");
    b = right, b.rank = 5;
    expect_refused(b, "5 dimensions");
    b = right, b.element_bytes = 8;
    expect_refused(b, "elements of 8 bytes");
}

// test_numerics.c - tests of the plain C half of the harness: sizes, data types, files, inputs, the
// oracle and the bar that kernels are held to.
//
// Results are compared exactly wherever the mathematics allows it. The NumPy section reads the
// cases that numpy_reference.py wrote; NUMPY_CASES names their folder (default build/numpy_cases).
#include "../common/check.h"
#include "../common/dtype.h"
#include "../common/npy.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <dirent.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WHY = 512 };

// ---- helpers -----------------------------------------------------------------------------------

static struct attn_problem problem(int heads, int kv_heads, int nq, int nk, int d, bool causal,
                                   enum attn_dtype dtype) {
    return (struct attn_problem){
        .batch = 1,
        .heads = heads,
        .kv_heads = kv_heads,
        .seqlen_q = nq,
        .seqlen_k = nk,
        .head_dim = d,
        .causal = causal,
        .scale = 1 / sqrtf((float)d),
        .dtype = dtype,
        .sm = 90,
        .sm_count = 132,
    };
}

static struct inputs make(const struct attn_problem *p, enum data_family family) {
    struct inputs in;
    char why[WHY] = "";
    cr_assert(inputs_make(p, family, 1, true, &in, why, sizeof why), "%s", why);
    return in;
}

static struct reference refer(const struct attn_problem *p, const struct inputs *in) {
    struct reference r;
    char why[WHY] = "";
    cr_assert(reference_make(p, in, &r, why, sizeof why), "%s", why);
    return r;
}

// The oracle's result as a kernel would deliver it: O in the data type, LSE in fp32.
struct output {
    float *O, *LSE;
};

static struct output oracle_output(const struct attn_problem *p, const struct inputs *in) {
    uint64_t n = attn_q_elements(p), rows = attn_rows(p);
    double *O = malloc(n * sizeof *O), *LSE = malloc(rows * sizeof *LSE), max_logit;
    struct output out = {malloc(n * sizeof(float)), malloc(rows * sizeof(float))};
    cr_assert(oracle_forward(p, in, O, LSE, &max_logit));
    for (uint64_t i = 0; i < n; i++) out.O[i] = dtype_round(p->dtype, (float)O[i]);
    for (uint64_t i = 0; i < rows; i++) out.LSE[i] = (float)LSE[i];
    free(O);
    free(LSE);
    return out;
}

static void output_free(struct output *out) {
    free(out->O);
    free(out->LSE);
}

// scale * q.k, written without any code of the harness. Rows are numbered through all heads.
static double logit(const struct attn_problem *p, const struct inputs *in, uint64_t q_row,
                    uint64_t k_row) {
    double sum = 0;
    for (int t = 0; t < p->head_dim; t++) {
        sum += (double)in->Q[q_row * p->head_dim + t] * in->K[k_row * p->head_dim + t];
    }
    return p->scale * sum;
}

static void expect_line(const char *why, const char *word) {
    cr_expect(strstr(why, word), "expected \"%s\" in: %s", word, why);
    cr_expect_null(strchr(why, '\n'), "more than one line: %s", why);
}

// ---- sizes and masks ---------------------------------------------------------------------------

Test(problem, mask_is_the_definition) {
    for (int nq = 1; nq <= 9; nq++) {
        for (int nk = 1; nk <= 9; nk++) {
            struct attn_problem p = problem(2, 1, nq, nk, 8, true, ATTN_FP32);
            uint64_t pairs = 0;
            for (int i = 0; i < nq; i++) {
                int keys = 0;
                for (int j = 0; j < nk; j++) keys += j <= i + nk - nq;
                cr_expect_eq(attn_visible_keys(&p, i), keys, "Nq %d Nk %d i %d", nq, nk, i);
                pairs += keys;
            }
            cr_expect_eq(attn_visible_pairs(&p), 2 * pairs, "Nq %d Nk %d", nq, nk);
            p.causal = false;
            cr_expect_eq(attn_visible_keys(&p, 0), nk);
            cr_expect_eq(attn_visible_pairs(&p), 2ull * nq * nk);
        }
    }
}

Test(problem, sizes_of_a_small_one) {
    struct attn_problem p = problem(6, 2, 5, 7, 8, false, ATTN_BF16);
    p.batch = 3;
    cr_expect_eq(attn_rows(&p), 90);
    cr_expect_eq(attn_q_elements(&p), 720);
    cr_expect_eq(attn_kv_elements(&p), 336);
    cr_expect_eq(attn_compulsory_bytes(&p, ATTN_FORWARD), 2 * (720 + 336 + 336 + 720) + 4 * 90);
    cr_expect_eq(attn_compulsory_bytes(&p, ATTN_BACKWARD), 2 * (4 * 720 + 4 * 336) + 4 * 90);
    cr_expect_eq(attn_flops(&p, ATTN_FORWARD), 4.0 * 8 * 18 * 35);
    cr_expect_eq(attn_flops(&p, ATTN_BACKWARD), 10.0 * 8 * 18 * 35);
    p.dtype = ATTN_FP32;
    cr_expect_eq(attn_compulsory_bytes(&p, ATTN_FORWARD), 4 * (720 + 336 + 336 + 720) + 4 * 90);
}

Test(problem, sizes_do_not_overflow) {
    struct attn_problem p = problem(127, 1, 16777216, 16777216, 256, false, ATTN_FP32);
    char why[WHY] = "";
    cr_expect_eq(attn_problem_check(&p, why, sizeof why), 0, "%s", why);
    cr_expect_eq(attn_rows(&p), 127ull << 24);
    cr_expect_eq(attn_q_elements(&p), 127ull << 32);
    cr_expect_eq(attn_visible_pairs(&p), 127ull << 48);
    cr_expect_eq(attn_compulsory_bytes(&p, ATTN_FORWARD), (2 * 128ull << 34) + (127ull << 26));
    p.causal = true;
    cr_expect_eq(attn_visible_pairs(&p), 127 * ((1ull << 47) + (1ull << 23)));
}

Test(problem, names_and_bytes) {
    cr_expect_str_eq(attn_dtype_name(ATTN_FP32), "fp32");
    cr_expect_str_eq(attn_dtype_name(ATTN_FP16), "fp16");
    cr_expect_str_eq(attn_dtype_name(ATTN_BF16), "bf16");
    cr_expect_str_eq(attn_dtype_name(ATTN_FP8), "fp8");
    cr_expect_eq(attn_dtype_bytes(ATTN_FP32), 4);
    for (int dtype = ATTN_FP16; dtype < ATTN_DTYPES; dtype++)
        cr_expect_eq(attn_dtype_bytes(dtype), 2);
}

static void expect_refused(struct attn_problem p, const char *word, const char *value) {
    char why[WHY] = "";
    cr_expect_eq(attn_problem_check(&p, why, sizeof why), -1, "not refused: %s %s", word, value);
    expect_line(why, word);
    expect_line(why, value);
}

Test(problem, check_refuses) {
    const struct attn_problem good = problem(4, 2, 33, 65, 40, true, ATTN_FP16);
    char why[WHY] = "";
    cr_expect_eq(attn_problem_check(&good, why, sizeof why), 0, "%s", why);
#define REFUSED(field, bad, word)                                                                  \
    do {                                                                                           \
        struct attn_problem p = good;                                                              \
        p.field = bad;                                                                             \
        expect_refused(p, word, #bad);                                                             \
    } while (0)
    REFUSED(batch, 0, "batch");
    REFUSED(batch, 65536, "batch");
    REFUSED(heads, -1, "heads");
    REFUSED(heads, 65536, "heads");
    REFUSED(kv_heads, 0, "kv-heads");
    REFUSED(kv_heads, 65536, "kv-heads");
    REFUSED(kv_heads, 3, "multiple of --kv-heads");
    REFUSED(kv_heads, 8, "multiple of --kv-heads");
    REFUSED(seqlen_q, 0, "seqlen-q");
    REFUSED(seqlen_q, 16777217, "seqlen-q");
    REFUSED(seqlen_k, 0, "seqlen-k");
    REFUSED(seqlen_k, 16777217, "seqlen-k");
    REFUSED(head_dim, 0, "multiple of 8");
    REFUSED(head_dim, 12, "multiple of 8");
    REFUSED(head_dim, 264, "multiple of 8");
    REFUSED(scale, 0, "scale");
    REFUSED(scale, -1, "scale");
    REFUSED(dtype, 4, "dtype");
#undef REFUSED
    struct attn_problem p = good;
    p.scale = INFINITY;
    expect_refused(p, "scale", "inf");
    p.scale = NAN;
    expect_refused(p, "scale", "nan");
}

Test(problem, check_counts_rows_of_the_longer_side) {
    struct attn_problem p = problem(128, 1, 1, 16777216, 8, false, ATTN_FP16);
    expect_refused(p, "2147483648", "2147483647");
    p.seqlen_k = 1, p.seqlen_q = 16777216;
    expect_refused(p, "2147483648", "2147483647");
    char why[WHY] = "";
    p.seqlen_q--;
    cr_expect_eq(attn_problem_check(&p, why, sizeof why), 0, "%s", why);
    p = problem(65535, 65535, 16777216, 1, 8, false, ATTN_FP16);
    p.batch = 65535; // the product needs 56 bits
    expect_refused(p, "72055395031449600", "2147483647");
}

// ---- the registry ------------------------------------------------------------------------------
// Criterion runs each test in a process of its own, so what is registered here is seen here only.

static const struct attn_kernel third = {.step = "zz1", .rung = 1, .name = "third"};
static const struct attn_kernel first = {.step = "zz0", .rung = 2, .name = "first"};
static const struct attn_kernel second = {.step = "zz0", .rung = 10, .name = "second"};

Test(registry, is_sorted_by_step_then_rung) {
    int before = attn_kernel_count();
    cr_expect(attn_register(&third));
    cr_expect(attn_register(&second));
    cr_expect(attn_register(&first));
    cr_assert_eq(attn_kernel_count(), before + 3);
    cr_expect_eq(attn_kernel_at(before), &first);
    cr_expect_eq(attn_kernel_at(before + 1), &second);
    cr_expect_eq(attn_kernel_at(before + 2), &third);
    for (int i = 1; i < before; i++) {
        const struct attn_kernel *a = attn_kernel_at(i - 1), *b = attn_kernel_at(i);
        bool in_order = a->rung < b->rung || (a->rung == b->rung && b->variant);
        cr_expect(strcmp(a->step, b->step) < 0 || (!strcmp(a->step, b->step) && in_order),
                  "%s before %s", a->name, b->name);
    }
}

Test(registry, refuses_a_second_kernel_of_the_same_name, .signal = SIGABRT,
     .init = cr_redirect_stderr) {
    attn_register(&first);
    attn_register(&first);
}

Test(registry, refuses_more_than_its_table_holds, .signal = SIGABRT, .init = cr_redirect_stderr) {
    static struct attn_kernel kernel[100];
    static char name[100][8];
    for (int i = 0; i < 100; i++) {
        snprintf(name[i], sizeof name[i], "zz%d", i);
        kernel[i] = (struct attn_kernel){.step = "zz", .rung = i, .name = name[i]};
        attn_register(&kernel[i]);
    }
}

// ---- data types --------------------------------------------------------------------------------

static double fp16_by_definition(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static double bf16_by_definition(uint16_t bits) {
    int exponent = bits >> 7 & 255, fraction = bits & 127;
    double magnitude = exponent ? ldexp(128 + fraction, exponent - 134) : ldexp(fraction, -133);
    return bits & 0x8000 ? -magnitude : magnitude;
}

Test(dtype, every_fp16_pattern) {
    for (unsigned bits = 0; bits < 65536; bits++) {
        float x = fp16_to_float((uint16_t)bits);
        if ((bits & 0x7fff) > 0x7c00) {
            cr_assert(isnan(x) && isnan(fp16_to_float(fp16_from_float(x))), "%04x", bits);
            continue;
        }
        if ((bits & 0x7fff) == 0x7c00)
            cr_assert_eq(x, bits & 0x8000 ? -INFINITY : INFINITY);
        else
            cr_assert_eq(x, fp16_by_definition((uint16_t)bits), "%04x gave %a", bits, x);
        cr_assert_eq(fp16_from_float(x), bits, "%04x came back as %04x", bits, fp16_from_float(x));
    }
}

Test(dtype, every_bf16_pattern) {
    for (unsigned bits = 0; bits < 65536; bits++) {
        float x = bf16_to_float((uint16_t)bits);
        if ((bits & 0x7fff) > 0x7f80) {
            cr_assert(isnan(x) && isnan(bf16_to_float(bf16_from_float(x))), "%04x", bits);
            continue;
        }
        if ((bits & 0x7fff) == 0x7f80)
            cr_assert_eq(x, bits & 0x8000 ? -INFINITY : INFINITY);
        else
            cr_assert_eq(x, bf16_by_definition((uint16_t)bits), "%04x gave %a", bits, x);
        cr_assert_eq(bf16_from_float(x), bits, "%04x came back as %04x", bits, bf16_from_float(x));
    }
}

// Between each two neighbours: the middle goes to the even one, a hair beside it to the nearer one.
// Above the largest number stands the power of two that would come next; it means infinity.
static void expect_nearest_even(uint16_t (*from_float)(float), double (*value)(uint16_t),
                                unsigned largest) {
    for (unsigned bits = 0; bits <= largest; bits++) {
        float middle = (float)((value((uint16_t)bits) + value((uint16_t)(bits + 1))) / 2);
        unsigned even = bits + (bits & 1);
        cr_assert_eq(from_float(middle), even, "middle above %04x", bits);
        cr_assert_eq(from_float(nextafterf(middle, 0)), bits, "below the middle above %04x", bits);
        cr_assert_eq(from_float(nextafterf(middle, INFINITY)), bits + 1, "above it, %04x", bits);
        cr_assert_eq(from_float(-middle), even | 0x8000, "middle below -%04x", bits);
    }
}

Test(dtype, rounds_to_nearest_even_and_overflows_to_infinity) {
    expect_nearest_even(fp16_from_float, fp16_by_definition, 0x7bff);
    expect_nearest_even(bf16_from_float, bf16_by_definition, 0x7f7f);
    cr_expect_eq(fp16_from_float(FLT_MAX), 0x7c00);
    cr_expect_eq(fp16_from_float(-1e5f), 0xfc00);
    cr_expect_eq(bf16_from_float(FLT_MAX), 0x7f80);
    cr_expect_eq(fp16_from_float(FLT_TRUE_MIN), 0);
    cr_expect_eq(fp16_from_float(-FLT_TRUE_MIN), 0x8000);
    cr_expect_eq(bf16_from_float(FLT_TRUE_MIN), 0);
}

static double e4m3_by_definition(int bits) {
    int exponent = bits >> 3 & 15, fraction = bits & 7;
    double magnitude = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return bits & 0x80 ? -magnitude : magnitude;
}

Test(dtype, every_e4m3_pattern) {
    for (int bits = 0; bits < 256; bits++) {
        float x = e4m3_to_float((uint8_t)bits);
        if ((bits & 0x7f) == 0x7f) {
            cr_expect(isnan(x), "%02x gave %a", bits, x);
            cr_expect_eq(e4m3_from_float(x), 0x7f, "the one that the instruction gives");
            continue;
        }
        cr_expect_eq(x, e4m3_by_definition(bits), "%02x gave %a", bits, x);
        cr_expect_eq(signbit(x) != 0, bits >> 7);
        cr_expect_eq(e4m3_from_float(x), bits, "%02x came back as %02x", bits, e4m3_from_float(x));
    }
}

Test(dtype, e4m3_rounds_to_nearest_even_and_saturates) {
    for (int bits = 0; bits < 0x7e; bits++) {
        double half = (e4m3_by_definition(bits) + e4m3_by_definition(bits + 1)) / 2;
        int even = bits % 2 ? bits + 1 : bits;
        for (int sign = 0; sign < 2; sign++) {
            float x = (float)(sign ? -half : half);
            cr_expect_eq(e4m3_from_float(x), even | sign << 7, "%a", x);
            cr_expect_eq(e4m3_from_float(nextafterf(x, 0)), bits | sign << 7, "below %a", x);
            cr_expect_eq(e4m3_from_float(nextafterf(x, 2 * x)), (bits + 1) | sign << 7, "above");
        }
    }
    const float large[] = {448, 463, 464, 465, 1e5f, FLT_MAX, INFINITY};
    for (unsigned i = 0; i < sizeof large / sizeof *large; i++) {
        cr_expect_eq(e4m3_from_float(large[i]), 0x7e, "%g", large[i]);
        cr_expect_eq(e4m3_from_float(-large[i]), 0xfe, "-%g", large[i]);
    }
    cr_expect_eq(e4m3_from_float(-NAN), 0x7f);
    cr_expect_eq(e4m3_from_float(-1e-40f), 0x80);
}

Test(dtype, nan_stays_nan) {
    const uint32_t patterns[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};
    for (int i = 0; i < 5; i++) {
        float x;
        memcpy(&x, &patterns[i], sizeof x);
        cr_expect(isnan(fp16_to_float(fp16_from_float(x))), "%08x", patterns[i]);
        cr_expect(isnan(bf16_to_float(bf16_from_float(x))), "%08x", patterns[i]);
        cr_expect_eq(fp16_from_float(x) >> 15, patterns[i] >> 31);
        cr_expect_eq(bf16_from_float(x) >> 15, patterns[i] >> 31);
    }
}

Test(dtype, ulp_is_the_distance_to_the_next) {
    for (unsigned bits = 0; bits < 0x7bff; bits++) {
        double x = fp16_by_definition((uint16_t)bits),
               gap = fp16_by_definition((uint16_t)(bits + 1)) - x;
        cr_assert_eq(dtype_ulp(ATTN_FP16, x), gap, "%04x", bits);
        cr_assert_eq(dtype_ulp(ATTN_FP16, -x - gap / 2), gap, "half above %04x", bits);
    }
    for (unsigned bits = 0; bits < 0x7f7f; bits++) {
        double x = bf16_by_definition((uint16_t)bits),
               gap = bf16_by_definition((uint16_t)(bits + 1)) - x;
        cr_assert_eq(dtype_ulp(ATTN_BF16, x), gap, "%04x", bits);
        cr_assert_eq(dtype_ulp(ATTN_FP8, x), gap, "%04x", bits);
    }
    for (float x = FLT_TRUE_MIN; x < 1e38f; x *= 1.7f) {
        cr_assert_eq(dtype_ulp(ATTN_FP32, x), (double)nextafterf(x, INFINITY) - x, "%a", x);
        if (x < 1e-44f) x = 1e-44f; // 1.7 times the smallest rounds back down
    }
    cr_expect_eq(dtype_ulp(ATTN_FP32, 0), 0x1p-149);
    cr_expect_eq(dtype_ulp(ATTN_FP16, -INFINITY), 0);
    cr_expect(isnan(dtype_ulp(ATTN_FP16, NAN)));
}

Test(dtype, packs_and_unpacks) {
    const float x[5] = {1, -0.1f, 300.7f, 1e-6f, -65504};
    for (int dtype = 0; dtype < ATTN_DTYPES; dtype++) {
        unsigned char packed[24];
        float back[5];
        memset(packed, 0xab, sizeof packed);
        dtype_pack(dtype, x, packed, 5);
        cr_expect_eq(packed[5 * attn_dtype_bytes(dtype)], 0xab, "%s wrote too far",
                     attn_dtype_name(dtype));
        dtype_unpack(dtype, packed, back, 5);
        for (int i = 0; i < 5; i++) cr_expect_eq(back[i], dtype_round(dtype, x[i]));
    }
    cr_expect_eq(dtype_round(ATTN_FP32, x[1]), x[1]);
    cr_expect_eq(dtype_round(ATTN_FP8, x[2]), 300); // bf16: multiples of 2
    cr_expect_eq(dtype_round(ATTN_FP16, x[2]), 300.75);
}

// ---- .npy files --------------------------------------------------------------------------------

static char folder[64]; // of this test's files

static void make_folder(void) {
    snprintf(folder, sizeof folder, "%s/test_numerics_XXXXXX", P_tmpdir);
    cr_assert_not_null(mkdtemp(folder), "no scratch folder in %s", P_tmpdir);
}

static void remove_folder(void) {
    DIR *dir = opendir(folder);
    for (struct dirent *entry; (entry = readdir(dir));) unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    rmdir(folder);
}

TestSuite(npy, .init = make_folder, .fini = remove_folder);
TestSuite(load, .init = make_folder, .fini = remove_folder);

static const char *in_folder(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// A file with this dict, and `length` as the header's length (-1: the true one).
static const char *write_npy(int version, const char *dict, long length, const void *data,
                             size_t bytes) {
    const char *path = in_folder("x.npy");
    FILE *file = fopen(path, "wb");
    if (length < 0) length = (long)strlen(dict);
    fprintf(file, "\x93NUMPY%c%c", version, 0);
    for (int i = 0; i < (version == 1 ? 2 : 4); i++) fputc((int)(length >> 8 * i & 255), file);
    fputs(dict, file);
    fwrite(data, 1, bytes, file);
    fclose(file);
    return path;
}

static void expect_malformed(const char *path, const char *word) {
    int dims;
    uint64_t shape[NPY_MAX_DIMS];
    double *data;
    char why[WHY] = "";
    cr_expect_not(npy_read(path, &dims, shape, &data, why, sizeof why), "accepted: %s", word);
    cr_expect_null(data);
    expect_line(why, path);
    expect_line(why, word);
}

Test(npy, round_trip) {
    const uint64_t shape[4] = {2, 3, 1, 5};
    float x[30];
    uint64_t read_shape[NPY_MAX_DIMS];
    double *data;
    int dims;
    char why[WHY] = "";
    for (int i = 0; i < 30; i++) x[i] = (float)(i * 1e10 / 3 - 7);
    x[3] = -INFINITY, x[4] = NAN;
    for (int n = 1; n <= 4; n++) {
        uint64_t count = n == 1 ? 2 : n == 4 ? 30 : 6;
        cr_assert(npy_write(in_folder("x.npy"), n, shape, x, why, sizeof why), "%s", why);
        struct stat info;
        stat(in_folder("x.npy"), &info);
        cr_expect_eq((uint64_t)info.st_size, 128 + 4 * count, "the elements begin at byte 128");
        cr_assert(npy_read(in_folder("x.npy"), &dims, read_shape, &data, why, sizeof why), "%s",
                  why);
        cr_assert_eq(dims, n);
        cr_expect_eq(memcmp(shape, read_shape, n * sizeof *shape), 0);
        for (uint64_t i = 0; i < count; i++)
            cr_expect(data[i] == x[i] || (i == 4 && isnan(data[i])));
        free(data);
    }
}

static void expect_array(int version, const char *dict, const void *bytes, int dims,
                         uint64_t last_side, int count, size_t size) {
    int got_dims;
    uint64_t shape[NPY_MAX_DIMS];
    double *data;
    char why[WHY] = "";
    const char *path = write_npy(version, dict, -1, bytes, count * size);
    cr_assert(npy_read(path, &got_dims, shape, &data, why, sizeof why), "%s: %s", dict, why);
    cr_expect_eq(got_dims, dims, "%s", dict);
    if (dims) cr_expect_eq(shape[dims - 1], last_side, "%s", dict);
    for (int i = 0; i < count; i++) cr_expect_eq(data[i], 1.5 * i, "%s: element %d", dict, i);
    free(data);
}

Test(npy, reads_every_spelling) {
    const float f4[6] = {0, 1.5f, 3, 4.5f, 6, 7.5f};
    const double f8[6] = {0, 1.5, 3, 4.5, 6, 7.5};
    const uint16_t f2[6] = {0, 0x3e00, 0x4200, 0x4480, 0x4600, 0x4780};
    expect_array(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n", f4, 2, 3, 6,
                 4);
    expect_array(2, "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }  \n", f8, 2, 3, 6,
                 8);
    expect_array(1, "{'descr': '<f2', 'fortran_order': False, 'shape': (6,), }", f2, 1, 6, 6, 2);
    expect_array(1, "{\"shape\":(3,2,),\"fortran_order\":False,\"descr\":\"<f4\"}", f4, 2, 2, 6, 4);
    expect_array(1, " { 'shape' : ( 1 , 6 ) , 'descr' : '<f4' , 'fortran_order' : False } ", f4, 2,
                 6, 6, 4);
    expect_array(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }", f4, 0, 0, 1, 4);
    expect_array(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 0), }", f4, 2, 0, 0, 4);
}

Test(npy, refuses_a_damaged_start) {
    const char good[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n";
    float x = 1;
    expect_malformed(in_folder("missing.npy"), "No such file");
    expect_malformed(folder, "not a .npy file");
    FILE *file = fopen(in_folder("short.npy"), "wb");
    fclose(file);
    expect_malformed(in_folder("short.npy"), "not a .npy file");
    file = fopen(in_folder("short.npy"), "wb");
    fputs("PK\x03\x04 a .npz file, say", file);
    fclose(file);
    expect_malformed(in_folder("short.npy"), "not a .npy file");
    file = fopen(in_folder("short.npy"), "wb");
    fprintf(file, "\x93NUMPY%c%c%c", 1, 0, 70);
    fclose(file);
    expect_malformed(in_folder("short.npy"), "cut off");
    expect_malformed(write_npy(3, good, -1, &x, 4), "version 3");
    expect_malformed(write_npy(1, good, 1000, &x, 4), "past the end");
    expect_malformed(write_npy(2, good, 0xfffffff0, &x, 4), "past the end");
    expect_malformed(write_npy(1, good, 20, &x, 4), "dict");
}

Test(npy, refuses_a_damaged_dict) {
    static const char *const dicts[] = {
        "",
        "[]",
        "{}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} more",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'shape': (1,)}",
        "{'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1)}",
        "{'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1), 'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551617,)}",
    };
    float x = 1;
    for (size_t i = 0; i < sizeof dicts / sizeof *dicts; i++) {
        expect_malformed(write_npy(1, dicts[i], -1, &x, 4), "dict");
    }
}

Test(npy, refuses_other_arrays) {
    static const struct {
        const char *dict, *word;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}", "ascontiguousarray"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", "big endian"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "type |O"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (1,)}", "type <i4"},
        {"{'descr': '<f16', 'fortran_order': False, 'shape': (1,)}", "type <f16"},
        {"{'descr': '<f', 'fortran_order': False, 'shape': (1,)}", "type <f,"},
        {"{'descr': '', 'fortran_order': False, 'shape': (1,)}", "type "},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
         "any memory"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807,)}", "any memory"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}", "truncated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "truncated"},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", "truncated"},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (1,)}", "damaged"},
    };
    float x = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_malformed(write_npy(1, cases[i].dict, -1, &x, 4), cases[i].word);
    }
}

Test(npy, write_reports_failure) {
    static float x[100000];
    const uint64_t one = 1, many = 100000;
    char why[WHY] = "";
    cr_expect_not(npy_write(in_folder("no/such/x.npy"), 1, &one, x, why, sizeof why));
    expect_line(why, "No such file");
    if (access("/dev/full", W_OK) != 0) cr_skip_test("no /dev/full here");
    cr_expect_not(npy_write("/dev/full", 1, &one, x, why, sizeof why), "seen by fclose only");
    expect_line(why, "/dev/full: not written whole");
    cr_expect_not(npy_write("/dev/full", 1, &many, x, why, sizeof why));
}

// ---- inputs ------------------------------------------------------------------------------------

static bool same_bits(const float *a, const float *b, uint64_t n) {
    return !memcmp(a, b, n * sizeof *a);
}

Test(inputs, the_seed_decides) {
    struct attn_problem p = problem(2, 1, 20, 30, 16, false, ATTN_BF16);
    uint64_t q = attn_q_elements(&p), kv = attn_kv_elements(&p);
    for (int family = 0; family < DATA_FAMILIES; family++) {
        struct inputs a = make(&p, family), b, c;
        char why[WHY];
        cr_assert(inputs_make(&p, family, 1, false, &b, why, sizeof why));
        cr_assert(inputs_make(&p, family, 2, true, &c, why, sizeof why));
        cr_expect(same_bits(a.Q, b.Q, q) && same_bits(a.K, b.K, kv) && same_bits(a.V, b.V, kv));
        cr_expect_null(b.dO);
        cr_expect_not(same_bits(a.dO, c.dO, q));
        cr_expect_not(same_bits(a.dO, a.Q, q));
        cr_expect_not(same_bits(a.K, a.V, kv));
        inputs_free(&a), inputs_free(&b), inputs_free(&c);
        cr_expect_null(a.Q);
    }
}

// FNV-1a over the bits: pins them down for every compiler and machine.
static uint64_t hash(uint64_t h, const float *x, uint64_t n) {
    const unsigned char *byte = (const unsigned char *)x;
    for (uint64_t i = 0; i < n * sizeof *x; i++) h = (h ^ byte[i]) * 0x100000001b3;
    return h;
}

Test(inputs, bits_are_the_same_everywhere) {
    static const uint64_t expected[DATA_FAMILIES] = {
        [DATA_NORMAL] = 0xca4f5c907d8d6ada,   [DATA_LARGE] = 0x68813e3c53edfb9b,
        [DATA_RISING] = 0xe1ebafc100cf075c,   [DATA_OUTLIERS] = 0x4f95e3f83879f109,
        [DATA_CONSTANT] = 0x84760d3cb5f4a702, [DATA_ONE_HOT] = 0x960618343679e9a2,
    };
    struct attn_problem p = problem(2, 1, 200, 300, 64, true, ATTN_FP32);
    for (int family = 0; family < DATA_FAMILIES; family++) {
        struct inputs in = make(&p, family);
        uint64_t h = hash(0xcbf29ce484222325, in.Q, attn_q_elements(&p));
        h = hash(h, in.K, attn_kv_elements(&p));
        h = hash(h, in.V, attn_kv_elements(&p));
        h = hash(h, in.dO, attn_q_elements(&p));
        cr_expect_eq(h, expected[family], "%s: %#lx", data_family_name(family), (unsigned long)h);
        inputs_free(&in);
    }
}

Test(inputs, names_parse) {
    enum data_family family;
    for (int i = 0; i < DATA_FAMILIES; i++) {
        cr_expect(data_family_parse(data_family_name(i), &family));
        cr_expect_eq((int)family, i);
    }
    cr_expect_str_eq(data_family_name(DATA_ONE_HOT), "one-hot");
    cr_expect_not(data_family_parse("onehot", &family));
    cr_expect_not(data_family_parse("", &family));
}

static uint64_t unrepresentable(enum attn_dtype dtype, const float *x, uint64_t n) {
    uint64_t bad = 0;
    for (uint64_t i = 0; i < n; i++) bad += !isfinite(x[i]) || dtype_round(dtype, x[i]) != x[i];
    return bad;
}

Test(inputs, values_are_of_the_data_type) {
    for (int dtype = 0; dtype < ATTN_DTYPES; dtype++) {
        for (int family = 0; family < DATA_FAMILIES; family++) {
            struct attn_problem p = problem(2, 2, 33, 500, 40, true, dtype);
            struct inputs in = make(&p, family);
            uint64_t q = attn_q_elements(&p), kv = attn_kv_elements(&p);
            uint64_t bad = unrepresentable(dtype, in.Q, q) + unrepresentable(dtype, in.K, kv) +
                           unrepresentable(dtype, in.V, kv) + unrepresentable(dtype, in.dO, q);
            cr_expect_eq(bad, 0, "%s, %s", data_family_name(family), attn_dtype_name(dtype));
            inputs_free(&in);
        }
    }
}

// Share of the deviates beyond each bound, against the normal distribution's 2 (1 - Phi(bound)).
Test(inputs, normal_is_normal) {
    struct attn_problem p = problem(1, 1, 20000, 1, 96, false, ATTN_FP32);
    struct inputs in = make(&p, DATA_NORMAL);
    uint64_t n = attn_q_elements(&p), beyond[5] = {0};
    const double bound[5] = {0.1, 1, 2, 3, 4};
    double mean = 0, square = 0, neighbours = 0;
    for (uint64_t i = 0; i < n; i++) {
        mean += in.Q[i] / (double)n;
        square += in.Q[i] * (double)in.Q[i] / (double)n;
        if (i > 0) neighbours += in.Q[i] * (double)in.Q[i - 1] / (double)n;
        for (int k = 0; k < 5; k++) beyond[k] += fabsf(in.Q[i]) > bound[k];
    }
    cr_expect_lt(fabs(mean), 5 / sqrt(n));
    cr_expect_lt(fabs(square - 1), 5 * sqrt(2.0 / n));
    cr_expect_lt(fabs(neighbours), 5 / sqrt(n));
    for (int k = 0; k < 5; k++) {
        double share = erfc(bound[k] / sqrt(2)), deviation = sqrt(n * share * (1 - share));
        cr_expect_lt(fabs(beyond[k] - n * share), 5 * deviation, "beyond %g: %g", bound[k],
                     (double)beyond[k]);
    }
    inputs_free(&in);
}

static double logit_deviation(const struct attn_problem *p, const struct inputs *in) {
    double sum = 0, n = (double)p->seqlen_q * p->seqlen_k;
    for (int i = 0; i < p->seqlen_q; i++) {
        for (int j = 0; j < p->seqlen_k; j++) sum += pow(logit(p, in, i, j), 2) / n;
    }
    return sqrt(sum);
}

Test(inputs, large_logits_deviate_by_30) {
    const int dims[3] = {8, 64, 256};
    const float scales[3] = {0.01f, 0.125f, 1};
    for (int k = 0; k < 9 * ATTN_DTYPES; k++) {
        struct attn_problem p = problem(1, 1, 150, 150, dims[k % 3], false, k / 9);
        p.scale = scales[k / 3 % 3];
        struct inputs in = make(&p, DATA_LARGE);
        double deviation = logit_deviation(&p, &in);
        cr_expect(deviation > 26 && deviation < 34, "d %d scale %g: %g", p.head_dim, p.scale,
                  deviation);
        inputs_free(&in);
    }
}

static void expect_rising(const struct attn_problem *p, const struct inputs *in) {
    int falls = 0;
    for (uint64_t row = 0; row < attn_rows(p); row++) {
        uint64_t head = row / p->seqlen_q, first = head * p->seqlen_k;
        for (int j = 1; j < p->seqlen_k; j++) {
            falls += !(logit(p, in, row, first + j) > logit(p, in, row, first + j - 1));
        }
        double range = logit(p, in, row, first + p->seqlen_k - 1) - logit(p, in, row, first);
        double wanted = 60.0 * (p->seqlen_k - 1) / p->seqlen_k;
        cr_expect_float_eq(range, wanted, 1 + 60.0 / p->seqlen_k, "%s: %g",
                           attn_dtype_name(p->dtype), range);
    }
    cr_expect_eq(falls, 0, "%s N %d d %d: %d keys do not rise", attn_dtype_name(p->dtype),
                 p->seqlen_k, p->head_dim, falls);
}

Test(inputs, rising_rises_at_every_key) {
    const int lengths[4] = {1, 2, 300, 5000}, dims[4] = {8, 64, 256, 40};
    for (int k = 0; k < 4 * ATTN_DTYPES; k++) {
        struct attn_problem p = problem(2, 2, 3, lengths[k % 4], dims[k % 4], false, k / 4);
        struct inputs in = make(&p, DATA_RISING);
        expect_rising(&p, &in);
        inputs_free(&in);
    }
}

Test(inputs, outliers_are_one_in_a_thousand) {
    struct attn_problem p = problem(1, 1, 4000, 4000, 64, false, ATTN_FP16);
    struct inputs in = make(&p, DATA_OUTLIERS);
    const float *tensor[3] = {in.Q, in.K, in.V};
    double n = (double)attn_q_elements(&p), share = 0.001 * erfc(6 / sqrt(101) / sqrt(2));
    for (int k = 0; k < 3; k++) {
        double beyond = 0;
        for (uint64_t i = 0; i < n; i++)
            beyond += fabsf(tensor[k][i]) > 6; // never without outliers
        cr_expect_float_eq(beyond, n * share, 5 * sqrt(n * share), "%g, not %g", beyond, n * share);
    }
    inputs_free(&in);
}

Test(inputs, constant_logits_are_equal) {
    const float scales[3] = {1e-3f, 0.125f, 40};
    for (int k = 0; k < 3 * ATTN_DTYPES; k++) {
        struct attn_problem p = problem(2, 1, 5, 40, 40, false, k / 3);
        p.scale = scales[k % 3];
        struct inputs in = make(&p, DATA_CONSTANT);
        double first = logit(&p, &in, 0, 0);
        cr_expect(first >= 0.99 && first <= 4.01, "logit %g", first);
        for (uint64_t row = 0; row < attn_rows(&p); row++) {
            for (int j = 0; j < p.seqlen_k; j++) cr_assert_eq(logit(&p, &in, row, j), first);
        }
        for (int i = 0; i < 40 * 40; i++) {
            cr_assert(in.V[i] == rintf(in.V[i]) && fabsf(in.V[i]) <= 9);
            if (i >= 40) cr_assert_neq(in.V[i], in.V[i - 40]);
        }
        inputs_free(&in);
    }
}

// For each query: the wanted key leads by at least 110, and the oracle's O is its row of V, bit for
// bit.
static void expect_one_hot(const struct attn_problem *p, const struct inputs *in) {
    struct output out = oracle_output(p, in);
    uint64_t d = p->head_dim;
    for (uint64_t row = 0; row < attn_rows(p); row++) {
        int i = (int)(row % p->seqlen_q), wanted = one_hot_key(p, i),
            visible = attn_visible_keys(p, i);
        uint64_t first = row / p->seqlen_q / (p->heads / p->kv_heads) * p->seqlen_k;
        if (visible == 0) {
            cr_assert_eq(wanted, -1);
            continue;
        }
        cr_assert(wanted >= 0 && wanted < visible);
        double best = logit(p, in, row, first + wanted);
        for (int j = 0; j < visible; j++) {
            cr_assert(j == wanted || best - logit(p, in, row, first + j) >= 110);
        }
        cr_assert(same_bits(out.O + row * d, in->V + (first + wanted) * d, d), "query %d", i);
        cr_assert_eq(out.LSE[row], (float)best);
    }
    output_free(&out);
}

Test(inputs, one_hot_selects_exactly) {
    const int nq[4] = {40, 40, 60, 7}, nk[4] = {40, 70, 33, 600}, dims[4] = {8, 64, 40, 256};
    for (int k = 0; k < 4 * ATTN_DTYPES; k++) {
        struct attn_problem p = problem(4, 2, nq[k % 4], nk[k % 4], dims[k % 4], k % 2, k / 4);
        struct inputs in = make(&p, DATA_ONE_HOT);
        expect_one_hot(&p, &in);
        inputs_free(&in);
    }
}

Test(inputs, one_hot_tries_the_end_of_the_mask) {
    struct attn_problem p = problem(1, 1, 64, 64, 8, true, ATTN_FP16);
    int last = 0, spread[64] = {0}, distinct = 0;
    for (int i = 0; i < 64; i++) {
        last += one_hot_key(&p, i) == i;
        spread[one_hot_key(&p, i)] = 1;
    }
    for (int j = 0; j < 64; j++) distinct += spread[j];
    cr_expect_geq(last, 16);
    cr_expect_geq(distinct, 30);
}

static void expect_unmakeable(struct attn_problem p, enum data_family family, const char *word) {
    struct inputs in;
    char why[WHY] = "";
    cr_expect_not(inputs_make(&p, family, 1, true, &in, why, sizeof why), "made %s",
                  data_family_name(family));
    expect_line(why, data_family_name(family));
    expect_line(why, word);
    cr_expect_null(in.Q);
}

Test(inputs, what_a_type_cannot_hold_is_refused) {
    struct attn_problem p = problem(1, 1, 4, 65537, 8, false, ATTN_FP16);
    expect_unmakeable(p, DATA_ONE_HOT, "65537");
    p.seqlen_k = 65536;
    struct inputs in = make(&p, DATA_ONE_HOT);
    inputs_free(&in);
    p.scale = 1e-3f;
    expect_unmakeable(p, DATA_ONE_HOT, "fp16");
    p.dtype = ATTN_BF16;
    in = make(&p, DATA_ONE_HOT);
    inputs_free(&in);
    p.dtype = ATTN_FP16, p.seqlen_k = 10, p.scale = 1e-12f;
    expect_unmakeable(p, DATA_LARGE, "fp16");
    expect_unmakeable(p, DATA_RISING, "fp16");
    expect_unmakeable(p, DATA_CONSTANT, "fp16");
    p.scale = 1e20f;
    expect_unmakeable(p, DATA_LARGE, "fp16");
    expect_unmakeable(p, DATA_CONSTANT, "fp16");
}

// ---- inputs from files -------------------------------------------------------------------------

static void save(const char *name, uint64_t b, uint64_t h, uint64_t n, uint64_t d) {
    static float x[4096];
    const uint64_t shape[4] = {b, h, n, d};
    char why[WHY];
    for (int i = 0; i < 4096; i++) x[i] = (float)(i - 9) / 3;
    cr_assert(npy_write(in_folder(name), 4, shape, x, why, sizeof why), "%s", why);
}

static void save_good(void) {
    save("Q.npy", 2, 6, 5, 8);
    save("K.npy", 2, 3, 7, 8);
    save("V.npy", 2, 3, 7, 8);
    save("dO.npy", 2, 6, 5, 8);
}

static void expect_unloadable(const char *word, const char *other) {
    struct attn_problem p = {.dtype = ATTN_FP16};
    struct inputs in;
    char why[WHY] = "";
    cr_expect_not(inputs_load(folder, true, &p, &in, why, sizeof why), "loaded: %s", word);
    expect_line(why, word);
    expect_line(why, other);
    cr_expect(!in.Q && !in.K && !in.V && !in.dO);
}

Test(load, reads_shapes_and_rounds) {
    struct attn_problem p = {.dtype = ATTN_BF16};
    struct inputs in;
    char why[WHY] = "";
    save_good();
    cr_assert(inputs_load(folder, true, &p, &in, why, sizeof why), "%s", why);
    cr_expect(p.batch == 2 && p.heads == 6 && p.kv_heads == 3);
    cr_expect(p.seqlen_q == 5 && p.seqlen_k == 7 && p.head_dim == 8);
    for (int i = 0; i < 480; i++) {
        float want = dtype_round(ATTN_BF16, (float)(i - 9) / 3);
        cr_expect(in.Q[i] == want && in.dO[i] == want &&
                  (i >= 336 || (in.K[i] == want && in.V[i] == want)));
    }
    inputs_free(&in);
    unlink(in_folder("dO.npy"));
    cr_assert(inputs_load(folder, false, &p, &in, why, sizeof why), "dO is not needed: %s", why);
    cr_expect_null(in.dO);
    inputs_free(&in);
}

Test(load, refuses_what_does_not_agree) {
    save_good();
    save("V.npy", 2, 3, 7, 16);
    expect_unloadable("K.npy is [2, 3, 7, 8]", "V.npy is [2, 3, 7, 16]");
    save_good();
    save("Q.npy", 1, 6, 5, 8);
    expect_unloadable("Q.npy is [1, 6, 5, 8]", "K.npy is [2, 3, 7, 8]");
    save_good();
    save("Q.npy", 2, 6, 5, 16);
    expect_unloadable("Q.npy is [2, 6, 5, 16]", "head dimension");
    save_good();
    save("dO.npy", 2, 6, 6, 8);
    expect_unloadable("Q.npy is [2, 6, 5, 8]", "dO.npy is [2, 6, 6, 8]");
    save_good();
    save("K.npy", 2, 0, 7, 8);
    expect_unloadable("K.npy", "[2, 0, 7, 8]");
    save_good();
    unlink(in_folder("V.npy"));
    expect_unloadable("V.npy", "No such file");
}

static void save_vector(const char *name, const float *x, int dims, const uint64_t *shape) {
    char why[WHY];
    cr_assert(npy_write(in_folder(name), dims, shape, x, why, sizeof why), "%s", why);
}

Test(load, refuses_what_is_not_finite) {
    const uint64_t shape[4] = {1, 1, 1, 8};
    float x[8] = {0};
    save_good();
    save_vector("Q.npy", x, 3, shape + 1);
    expect_unloadable("Q.npy", "3 dimensions");
    x[5] = NAN;
    save_vector("Q.npy", x, 4, shape);
    expect_unloadable("Q.npy", "element 5");
    x[5] = INFINITY;
    save_vector("Q.npy", x, 4, shape);
    expect_unloadable("Q.npy", "element 5");
    x[5] = 70000;
    save_vector("Q.npy", x, 4, shape);
    expect_unloadable("70000", "fp16");
}

// ---- the oracle --------------------------------------------------------------------------------

Test(oracle, one_key_gives_its_value) {
    struct attn_problem p = problem(3, 3, 1, 1, 8, true, ATTN_FP32);
    struct inputs in = make(&p, DATA_LARGE);
    struct reference r = refer(&p, &in);
    double max_logit = 0;
    for (int h = 0; h < 3; h++) {
        cr_expect_float_eq(r.LSE[h], logit(&p, &in, h, h), 1e-12);
        max_logit = fmax(max_logit, fabs(logit(&p, &in, h, h)));
        for (int t = 0; t < 8; t++) cr_expect_eq(r.O[h * 8 + t], in.V[h * 8 + t]);
    }
    cr_expect_float_eq(r.max_logit, max_logit, 1e-12);
    inputs_free(&in);
    reference_free(&r);
}

Test(oracle, equal_logits_give_the_mean_of_the_visible_values) {
    struct attn_problem p = problem(2, 2, 20, 33, 16, true, ATTN_FP32);
    struct inputs in = make(&p, DATA_CONSTANT);
    struct reference r = refer(&p, &in);
    for (int row = 0; row < 40; row++) {
        int keys = row % 20 + 1 + 33 - 20, first = row / 20 * 33;
        cr_expect_float_eq(r.LSE[row], logit(&p, &in, 0, 0) + log(keys), 1e-13);
        for (int t = 0; t < 16; t++) {
            double sum = 0;
            for (int j = 0; j < keys; j++) sum += in.V[(first + j) * 16 + t];
            cr_expect_float_eq(r.O[row * 16 + t], sum / keys, 1e-13);
        }
    }
    inputs_free(&in);
    reference_free(&r);
}

Test(oracle, a_query_without_keys_gives_zero_and_minus_infinity) {
    struct attn_problem p = problem(1, 1, 9, 4, 8, true, ATTN_FP16);
    struct inputs in = make(&p, DATA_NORMAL);
    struct reference r = refer(&p, &in);
    for (int i = 0; i < 9; i++) {
        bool blind = i < 5;
        cr_expect_eq(isinf(r.LSE[i]) && r.LSE[i] < 0, blind);
        cr_expect_eq(isinf(r.base_LSE[i]) && r.base_LSE[i] < 0, blind);
        for (int t = 0; t < 8; t++) {
            cr_expect_eq(r.O[i * 8 + t] == 0, blind);
            cr_expect_eq(r.base_O[i * 8 + t] == 0, blind);
        }
    }
    cr_expect(isfinite(r.base_error_LSE));
    inputs_free(&in);
    reference_free(&r);
}

// B = 2, H = 6, Hkv = 2 against twelve problems of one head, on the same data.
Test(oracle, heads_read_their_groups_keys) {
    struct attn_problem p = problem(6, 2, 5, 7, 8, true, ATTN_BF16), one = p;
    p.batch = 2;
    one.heads = one.kv_heads = 1;
    struct inputs in = make(&p, DATA_NORMAL);
    struct reference all = refer(&p, &in);
    for (int bh = 0; bh < 12; bh++) {
        int kv = bh / 6 * 2 + bh % 6 / 3;
        struct inputs part = {in.Q + bh * 40, in.K + kv * 56, in.V + kv * 56, NULL};
        struct reference r = refer(&one, &part);
        cr_expect_eq(memcmp(r.O, all.O + bh * 40, 40 * sizeof(double)), 0, "head %d", bh);
        cr_expect_eq(memcmp(r.LSE, all.LSE + bh * 5, 5 * sizeof(double)), 0, "head %d", bh);
        cr_expect(same_bits(r.base_O, all.base_O + bh * 40, 40), "head %d", bh);
        cr_expect(same_bits(r.base_LSE, all.base_LSE + bh * 5, 5), "head %d", bh);
        reference_free(&r);
    }
    inputs_free(&in);
    reference_free(&all);
}

// Two keys, V = (1, -1): O = P0 - P1, where the rounding of P does not hide behind that of O.
Test(oracle, the_baseline_rounds_P_and_O_but_not_S) {
    for (int dtype = 0; dtype < ATTN_FP8; dtype++) {
        struct attn_problem p = problem(1, 1, 1, 2, 8, false, dtype);
        float Q[8] = {1}, K[16] = {0.125f}, V[16] = {[0] = 1, [8] = -1}, O[8], LSE;
        p.scale = 0.7f;
        struct inputs in = {Q, K, V, NULL};
        cr_assert(baseline_forward(&p, &in, O, &LSE));
        float s = 0.7f * 0.125f, e = expf(-s), sum = 1 + e;
        float P0 = dtype_round(dtype, 1 / sum), P1 = dtype_round(dtype, e / sum);
        cr_expect_eq(O[0], dtype_round(dtype, P0 - P1), "%s", attn_dtype_name(dtype));
        cr_expect_eq(LSE, s + logf(sum));
        if (dtype != ATTN_FP32) cr_expect_neq(O[0], dtype_round(dtype, 1 / sum - e / sum));
    }
}

Test(oracle, the_reference_knows_its_errors) {
    struct attn_problem p = problem(2, 1, 17, 29, 24, true, ATTN_BF16);
    struct inputs in = make(&p, DATA_NORMAL);
    struct reference r = refer(&p, &in);
    double error_O = 0, error_LSE = 0, max_v = 0, max_logit = 0;
    for (int i = 0; i < 2 * 17 * 24; i++) error_O = fmax(error_O, fabs(r.base_O[i] - r.O[i]));
    for (int i = 0; i < 2 * 17; i++) error_LSE = fmax(error_LSE, fabs(r.base_LSE[i] - r.LSE[i]));
    for (int i = 0; i < 29 * 24; i++) max_v = fmax(max_v, fabsf(in.V[i]));
    for (int row = 0; row < 2 * 17; row++) {
        for (int j = 0; j <= row % 17 + 12; j++)
            max_logit = fmax(max_logit, fabs(logit(&p, &in, row, j)));
    }
    cr_expect_eq(unrepresentable(ATTN_BF16, r.base_O, 2 * 17 * 24), 0);
    cr_expect_eq(r.base_error_O, error_O);
    cr_expect_eq(r.base_error_LSE, error_LSE);
    cr_expect_eq(r.max_v, max_v);
    cr_expect_float_eq(r.max_logit, max_logit, 1e-12);
    cr_expect(error_O > 1e-4 && error_O < 0.02, "bf16 has 8 bits: %g", error_O);
    cr_expect(error_LSE < 1e-5, "LSE is fp32: %g", error_LSE);
    inputs_free(&in);
    reference_free(&r);
    cr_expect_null(r.O);
}

Test(oracle, an_overflowing_baseline_is_refused) {
    struct attn_problem p = problem(1, 1, 8, 8, 8, false, ATTN_FP32);
    struct inputs in = make(&p, DATA_NORMAL);
    struct reference r;
    char why[WHY] = "";
    p.scale = FLT_MAX;
    cr_expect_not(reference_make(&p, &in, &r, why, sizeof why));
    expect_line(why, "overflows fp32");
    cr_expect_null(r.O);
    inputs_free(&in);
}

// Times log2(e), which is what kernels with powers of two have, a logit above 2.36e38 is infinite.
Test(oracle, logits_that_overflow_in_powers_of_two_are_refused) {
    static const float q[] = {2.3e38f, 2.4e38f};
    struct attn_problem p = problem(1, 1, 1, 2, 8, false, ATTN_FP32);
    struct inputs in = make(&p, DATA_NORMAL);
    struct reference r;
    char why[WHY] = "";
    memset(in.Q, 0, 8 * sizeof *in.Q), memset(in.K, 0, 16 * sizeof *in.K);
    for (int n = 0; n < 2; n++) {
        in.Q[0] = q[n], in.K[0] = 1, p.scale = 1;
        bool taken = reference_make(&p, &in, &r, why, sizeof why);
        cr_expect_eq(taken, n == 0, "logit %g: %s", q[n], why);
        if (taken) reference_free(&r);
    }
    expect_line(why, "overflows fp32");
    inputs_free(&in);
}

// ---- the gradients -----------------------------------------------------------------------------

static struct reference refer_both(const struct attn_problem *p, const struct inputs *in) {
    struct reference r = refer(p, in);
    char why[WHY] = "";
    cr_assert(reference_add_backward(p, in, &r, why, sizeof why), "%s", why);
    return r;
}

// The largest |got - want| / (1 + |want|).
static double relative_error(const double *got, const double *want, uint64_t n) {
    double largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        double error = got[i] == want[i] ? 0 : fabs(got[i] - want[i]) / (1 + fabs(want[i]));
        if (!(error <= largest)) largest = error;
        if (isnan(error)) return error;
    }
    return largest;
}

static uint64_t not_zero(const double *x, uint64_t n) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < n; i++) count += x[i] != 0;
    return count;
}

Test(gradients, of_one_query_and_one_key) {
    struct attn_problem p = problem(3, 3, 1, 1, 8, true, ATTN_FP32);
    struct inputs in = make(&p, DATA_LARGE);
    struct reference r = refer_both(&p, &in);
    for (int i = 0; i < 24; i++) cr_expect_eq(r.dV[i], in.dO[i]);
    cr_expect_eq(not_zero(r.dQ, 24) + not_zero(r.dK, 24), 0, "O = V, whatever Q and K are");
    inputs_free(&in), reference_free(&r);
}

// P = 1/n, so dS = (dP - mean of dP) / n. These sum to 0 over the keys, and the keys are all equal:
// dQ = 0.
Test(gradients, of_equal_logits) {
    struct attn_problem p = problem(1, 1, 20, 33, 16, true, ATTN_FP32);
    struct inputs in = make(&p, DATA_CONSTANT);
    struct reference r = refer_both(&p, &in);
    double dV[33 * 16] = {0}, dK[33 * 16] = {0};
    for (int i = 0; i < 20; i++) {
        int n = i + 1 + 33 - 20;
        double dP[33] = {0}, mean = 0;
        for (int j = 0; j < n; j++) {
            for (int t = 0; t < 16; t++) dP[j] += (double)in.dO[i * 16 + t] * in.V[j * 16 + t];
            mean += dP[j] / n;
        }
        for (int jt = 0; jt < n * 16; jt++) {
            dV[jt] += in.dO[i * 16 + jt % 16] / (double)n;
            dK[jt] += p.scale * in.Q[0] * (dP[jt / 16] - mean) / n;
        }
    }
    cr_expect_lt(relative_error(r.dV, dV, 33 * 16), 1e-13);
    cr_expect_lt(relative_error(r.dK, dK, 33 * 16), 1e-13);
    for (int i = 0; i < 20 * 16; i++) cr_expect_float_eq(r.dQ[i], 0, 1e-13);
    inputs_free(&in), reference_free(&r);
}

// 9 queries, 4 keys: the first 5 see none. Without their dO everything else stays the same.
Test(gradients, of_a_query_without_keys_are_zero) {
    struct attn_problem p = problem(1, 1, 9, 4, 8, true, ATTN_FP16);
    struct inputs in = make(&p, DATA_NORMAL);
    struct reference r = refer_both(&p, &in);
    cr_expect_eq(not_zero(r.dQ, 5 * 8), 0);
    cr_expect_eq(not_zero(r.dQ + 6 * 8, 3 * 8), 3 * 8); // query 5 sees one key: its dQ is 0 too
    for (int i = 0; i < 5 * 8; i++) in.Q[i] = in.dO[i] = 1000;
    struct reference other = refer_both(&p, &in);
    cr_expect_eq(memcmp(r.dK, other.dK, 4 * 8 * sizeof(double)), 0);
    cr_expect_eq(memcmp(r.dV, other.dV, 4 * 8 * sizeof(double)), 0);
    cr_expect(isfinite(r.base_error_dQ) && isfinite(r.base_error_dK) && isfinite(r.base_error_dV));
    inputs_free(&in), reference_free(&r), reference_free(&other);
}

// B = 2, H = 6, Hkv = 2 against twelve problems of one head, on the same data.
Test(gradients, are_summed_over_the_group) {
    struct attn_problem p = problem(6, 2, 5, 7, 8, true, ATTN_BF16), one = p;
    p.batch = 2;
    one.heads = one.kv_heads = 1;
    struct inputs in = make(&p, DATA_NORMAL);
    struct reference all = refer_both(&p, &in);
    double dK[4 * 56] = {0}, dV[4 * 56] = {0};
    for (int bh = 0; bh < 12; bh++) {
        int kv = bh / 6 * 2 + bh % 6 / 3;
        struct inputs part = {in.Q + bh * 40, in.K + kv * 56, in.V + kv * 56, in.dO + bh * 40};
        struct reference r = refer_both(&one, &part);
        cr_expect_eq(memcmp(r.dQ, all.dQ + bh * 40, 40 * sizeof(double)), 0, "head %d", bh);
        for (int i = 0; i < 56; i++) dK[kv * 56 + i] += r.dK[i], dV[kv * 56 + i] += r.dV[i];
        reference_free(&r);
    }
    cr_expect_lt(relative_error(all.dK, dK, 4 * 56), 1e-15 * 8);
    cr_expect_lt(relative_error(all.dV, dV, 4 * 56), 1e-15 * 8);
    inputs_free(&in), reference_free(&all);
}

// L = sum(dO * O) from Q, K and V in double, which stand one after the other in x.
static double loss(const struct attn_problem *p, const double *x, const float *dO) {
    uint64_t d = p->head_dim, q = attn_q_elements(p), kv = attn_kv_elements(p);
    double L = 0;
    for (uint64_t row = 0; row < attn_rows(p); row++) {
        uint64_t first = row / p->seqlen_q / (p->heads / p->kv_heads) * p->seqlen_k;
        double sum = 0, weighted = 0; // of exp S, and of exp S times dO.v
        for (int j = 0; j < attn_visible_keys(p, (int)(row % p->seqlen_q)); j++) {
            const double *k = x + q + (first + j) * d, *v = k + kv;
            double S = 0, dP = 0;
            for (uint64_t t = 0; t < d; t++) S += p->scale * x[row * d + t] * k[t];
            for (uint64_t t = 0; t < d; t++) dP += dO[row * d + t] * v[t];
            sum += exp(S);
            weighted += exp(S) * dP;
        }
        if (sum > 0) L += weighted / sum;
    }
    return L;
}

static double slope(const struct attn_problem *p, double *x, uint64_t at, const float *dO,
                    double h) {
    double here = x[at];
    x[at] = here + h;
    double above = loss(p, x, dO);
    x[at] = here - h;
    double below = loss(p, x, dO);
    x[at] = here;
    return (above - below) / (2 * h);
}

// The central difference is off by a term in h^2, three times which is the distance to that of 2h,
// and by the rounding of L, whose terms (a few hundred here, none above 30) are good to 1e-15.
static void expect_slopes(const struct attn_problem *p, const double *gradient, double *x,
                          uint64_t first, uint64_t n, const float *dO, const char *name) {
    const double h = 1e-4, rounding = 1e-13 / h;
    for (uint64_t i = 0; i < n; i++) {
        double near = slope(p, x, first + i, dO, h), far = slope(p, x, first + i, dO, 2 * h);
        double tolerance = fabs(far - near) + rounding;
        cr_expect_lt(tolerance, 1e-6, "too wide to tell");
        cr_expect(fabs(near - gradient[i]) <= tolerance, "%s[%d]: %g, the slope is %g", name,
                  (int)i, gradient[i], near);
    }
}

Test(gradients, are_the_slopes_of_the_loss) {
    const int nq[4] = {5, 7, 6, 1}, nk[4] = {7, 5, 6, 9}; // causal but the last two
    for (int k = 0; k < 4; k++) {
        struct attn_problem p = problem(4, 2, nq[k], nk[k], 8, k < 2, ATTN_FP32);
        uint64_t q = attn_q_elements(&p), kv = attn_kv_elements(&p);
        struct inputs in = make(&p, DATA_NORMAL);
        struct reference r = refer_both(&p, &in);
        double *x = malloc((q + 2 * kv) * sizeof *x);
        for (uint64_t i = 0; i < q; i++) x[i] = in.Q[i];
        for (uint64_t i = 0; i < kv; i++) x[q + i] = in.K[i], x[q + kv + i] = in.V[i];
        expect_slopes(&p, r.dQ, x, 0, q, in.dO, "dQ");
        expect_slopes(&p, r.dK, x, q, kv, in.dO, "dK");
        expect_slopes(&p, r.dV, x, q + kv, kv, in.dO, "dV");
        free(x), inputs_free(&in), reference_free(&r);
    }
}

// One query, two keys, and only the first number of each row: every rounding can be written down.
Test(gradients, the_baseline_rounds_P_and_dS_but_not_S) {
    for (int dtype = 0; dtype < ATTN_DTYPES; dtype++) {
        struct attn_problem p = problem(1, 1, 1, 2, 8, false, dtype);
        float Q[8] = {3}, K[16] = {0.125f}, V[16] = {[0] = 1, [8] = -1}, dO[8] = {1.25f};
        float O[8] = {0.0625f}, LSE = 0.8f, dQ[8], dK[16], dV[16], scale = p.scale = 0.7f;
        struct inputs in = {Q, K, V, dO};
        baseline_backward(&p, &in, O, &LSE, dQ, dK, dV);
        float P0 = expf(scale * (3 * 0.125f) - LSE), P1 = expf(0 - LSE), D = 1.25f * 0.0625f;
        float dS0 = dtype_round(dtype, P0 * (1.25f - D)),
              dS1 = dtype_round(dtype, P1 * (-1.25f - D));
        cr_expect_eq(dV[0], dtype_round(dtype, dtype_round(dtype, P0) * 1.25f));
        cr_expect_eq(dV[8], dtype_round(dtype, dtype_round(dtype, P1) * 1.25f));
        cr_expect_eq(dQ[0], dtype_round(dtype, scale * (dS0 * 0.125f)));
        cr_expect_eq(dK[0], dtype_round(dtype, scale * (dS0 * 3)));
        cr_expect_eq(dK[8], dtype_round(dtype, scale * (dS1 * 3)));
        if (dtype != ATTN_FP32) cr_expect_neq(dS0, P0 * (1.25f - D));
    }
}

static double largest_error(const float *got, const double *want, uint64_t n) {
    double largest = 0;
    for (uint64_t i = 0; i < n; i++) largest = fmax(largest, fabs(got[i] - want[i]));
    return largest;
}

enum { SMALL_Q = 2 * 17 * 24, SMALL_KV = 29 * 24 };

// The errors of the two ways in which the baseline runs; returns which of them has the larger dV.
static int expect_larger_errors(const struct attn_problem *p, const struct inputs *in,
                                const struct reference *r) {
    struct output right = oracle_output(p, in);
    const float *O[2] = {r->base_O, right.O}, *LSE[2] = {r->base_LSE, right.LSE};
    float dQ[SMALL_Q], dK[SMALL_KV], dV[SMALL_KV];
    double error[2][3];
    for (int way = 0; way < 2; way++) {
        baseline_backward(p, in, O[way], LSE[way], dQ, dK, dV);
        error[way][0] = largest_error(dQ, r->dQ, SMALL_Q);
        error[way][1] = largest_error(dK, r->dK, SMALL_KV);
        error[way][2] = largest_error(dV, r->dV, SMALL_KV);
        cr_expect_eq(unrepresentable(p->dtype, dQ, SMALL_Q), 0);
        cr_expect_eq(unrepresentable(p->dtype, dK, SMALL_KV), 0);
        cr_expect_eq(unrepresentable(p->dtype, dV, SMALL_KV), 0);
    }
    cr_expect_eq(r->base_error_dQ, fmax(error[0][0], error[1][0]));
    cr_expect_eq(r->base_error_dK, fmax(error[0][1], error[1][1]));
    cr_expect_eq(r->base_error_dV, fmax(error[0][2], error[1][2]));
    output_free(&right);
    return error[1][2] > error[0][2];
}

static double row_length(const float *x) {
    double square = 0;
    for (int c = 0; c < 24; c++) square += pow(x[c], 2);
    return sqrt(square);
}

static void expect_longest(const struct reference *r, const struct inputs *in) {
    double q = 0, k = 0, dO = 0, v = 0;
    for (int i = 0; i < SMALL_Q; i++) q = fmax(q, fabsf(in->Q[i]));
    for (int i = 0; i < SMALL_KV; i++) k = fmax(k, fabsf(in->K[i]));
    for (int i = 0; i < SMALL_Q; i += 24) dO = fmax(dO, row_length(in->dO + i));
    for (int i = 0; i < SMALL_KV; i += 24) v = fmax(v, row_length(in->V + i));
    cr_expect_eq(r->max_q, q);
    cr_expect_eq(r->max_k, k);
    cr_expect_float_eq(r->long_dO, dO, 1e-12);
    cr_expect_float_eq(r->long_v, v, 1e-12);
}

static void expect_sizes(const struct attn_problem *p, const struct inputs *in,
                         const struct reference *r) {
    double q = 0, k = 0, max_dO = 0, max_dP = 0;
    struct inputs swapped = {in->dO, in->V, NULL, NULL}; // dP is a product like S
    for (int i = 0; i < SMALL_Q; i++) q += pow(in->Q[i], 2) / SMALL_Q;
    for (int i = 0; i < SMALL_KV; i++) k += pow(in->K[i], 2) / SMALL_KV;
    for (int i = 0; i < SMALL_Q; i++) max_dO = fmax(max_dO, fabsf(in->dO[i]));
    for (int row = 0; row < 2 * 17; row++) {
        for (int j = 0; j <= row % 17 + 12; j++)
            max_dP = fmax(max_dP, fabs(logit(p, &swapped, row, j)) / p->scale);
    }
    cr_expect_float_eq(r->rms_q, sqrt(q), 1e-13);
    cr_expect_float_eq(r->rms_k, sqrt(k), 1e-13);
    cr_expect_float_eq(r->max_dP, max_dP, 1e-12);
    expect_longest(r, in);
    cr_expect_eq(r->max_dO, max_dO);
}

Test(gradients, the_reference_knows_its_errors) {
    int larger[2] = {0};
    for (int k = 0; k < ATTN_DTYPES * DATA_RISING; k++) { // normal and large
        struct attn_problem p = problem(2, 1, 17, 29, 24, true, k % ATTN_DTYPES);
        struct inputs in = make(&p, k / ATTN_DTYPES);
        for (int i = 0; i < SMALL_Q; i++) in.dO[i] *= k % 2 ? 1 : -1;
        struct reference r = refer_both(&p, &in);
        larger[expect_larger_errors(&p, &in, &r)]++;
        expect_sizes(&p, &in, &r);
        inputs_free(&in), reference_free(&r);
        cr_expect_null(r.dQ);
    }
    cr_expect(larger[0] > 0 && larger[1] > 0, "neither way is always the larger");
}

Test(gradients, an_overflowing_baseline_is_refused) {
    struct attn_problem p = problem(1, 1, 2, 2, 8, false, ATTN_FP16);
    struct inputs in = make(&p, DATA_NORMAL);
    for (int i = 0; i < 16; i++) in.dO[i] = 6e4f, in.V[i] = i < 8 ? 6e4f : -6e4f;
    struct reference r = refer(&p, &in);
    char why[WHY] = "";
    cr_expect_not(reference_add_backward(&p, &in, &r, why, sizeof why));
    expect_line(why, "overflows fp16");
    cr_expect_eq(errno, EINVAL);
    cr_expect(!r.dQ && !r.dK && !r.dV && r.O);
    inputs_free(&in), reference_free(&r);
}

// ---- the oracle against NumPy ------------------------------------------------------------------

static double *read_array(const char *dir, const char *name, uint64_t count) {
    char path[512], why[WHY];
    int dims;
    uint64_t shape[NPY_MAX_DIMS], n = 1;
    double *data = NULL;
    snprintf(path, sizeof path, "%s/%s.npy", dir, name);
    cr_assert(npy_read(path, &dims, shape, &data, why, sizeof why), "%s", why);
    for (int i = 0; i < dims; i++) n *= shape[i];
    cr_assert_eq(n, count, "%s", path);
    return data;
}

// A tensor of the reference against the file of that name.
static void expect_as_in_file(const char *dir, const char *name, const double *got, uint64_t n,
                              double tolerance) {
    double *want = read_array(dir, name, n);
    double error = relative_error(got, want, n);
    cr_expect(error <= tolerance, "%s: %s differs by %g", dir, name, error);
    free(want);
}

static void expect_same_as_numpy(const char *dir) {
    struct attn_problem p = {.dtype = ATTN_FP32};
    struct inputs in;
    char why[WHY];
    cr_assert(inputs_load(dir, true, &p, &in, why, sizeof why), "%s", why);
    double *options = read_array(dir, "options", 2);
    p.causal = options[0] != 0;
    p.scale = (float)options[1];
    cr_assert_eq(attn_problem_check(&p, why, sizeof why), 0, "%s: %s", dir, why);
    struct reference r = refer_both(&p, &in);
    expect_as_in_file(dir, "O", r.O, attn_q_elements(&p), 1e-12);
    expect_as_in_file(dir, "LSE", r.LSE, attn_rows(&p), 1e-12);
    expect_as_in_file(dir, "dQ", r.dQ, attn_q_elements(&p), 1e-11);
    expect_as_in_file(dir, "dK", r.dK, attn_kv_elements(&p), 1e-11);
    expect_as_in_file(dir, "dV", r.dV, attn_kv_elements(&p), 1e-11);
    free(options);
    inputs_free(&in);
    reference_free(&r);
}

Test(numpy, oracle_agrees) {
    const char *cases = getenv("NUMPY_CASES") ? getenv("NUMPY_CASES") : "build/numpy_cases";
    DIR *dir = opendir(cases);
    int count = 0;
    cr_assert_not_null(dir, "%s: %s; make it with: make numpy-cases", cases, strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[400];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", cases, entry->d_name);
        expect_same_as_numpy(path);
        count++;
    }
    closedir(dir);
    cr_expect_geq(count, 11, "%s: only %d cases; make them again with: make numpy-cases", cases,
                  count);
}

// ---- the bar (that of FP8 is in test_fp8.c) -----------------------------------------------------

enum { BAR_TYPES = ATTN_FP8 };

Test(check, a_correct_output_passes) {
    const int nq[4] = {1, 33, 130, 20}, nk[4] = {1, 33, 64, 77};
    for (int k = 0; k < 4 * BAR_TYPES * DATA_FAMILIES; k++) {
        struct attn_problem p =
            problem(2, 1, nq[k % 4], nk[k % 4], 40, k % 3 > 0, k / 4 % BAR_TYPES);
        struct inputs in = make(&p, k / 4 / BAR_TYPES);
        struct reference r = refer(&p, &in);
        struct output out = oracle_output(&p, &in);
        struct check O = check_O(&p, &r, out.O), LSE = check_LSE(&p, &r, out.LSE);
        cr_expect(O.ok && O.bad == 0 && O.of_bar <= 0.5, "O: %g of the bar", O.of_bar);
        cr_expect(LSE.ok && LSE.bad == 0 && LSE.of_bar <= 0.5, "LSE: %g of the bar", LSE.of_bar);
        O = check_O(&p, &r, r.base_O), LSE = check_LSE(&p, &r, r.base_LSE);
        cr_expect(O.ok && LSE.ok && O.of_bar <= 0.5 && LSE.of_bar <= 0.5, "the baseline itself");
        inputs_free(&in), reference_free(&r), output_free(&out);
    }
}

// One head, and room for wrong answers to it.
struct trial {
    struct attn_problem p;
    struct inputs in;
    struct reference r;
    struct output right;
};

static struct trial start(int n, bool causal, enum attn_dtype dtype, enum data_family family) {
    struct trial t = {.p = problem(1, 1, n, n, 64, causal, dtype)};
    t.in = make(&t.p, family);
    t.r = refer(&t.p, &t.in);
    t.right = oracle_output(&t.p, &t.in);
    return t;
}

static void finish(struct trial *t) {
    inputs_free(&t->in), reference_free(&t->r), output_free(&t->right);
}

// The oracle of another problem on the same inputs, as the answer to this one. LSE is held to fp32,
// so it shows every mistake in the weights; O shows it in fp32 at least, and in each type with
// `in_O`.
static void expect_caught(const struct trial *t, const struct attn_problem *wrong, const char *what,
                          bool in_O) {
    struct output out = oracle_output(wrong, &t->in);
    struct check O = check_O(&t->p, &t->r, out.O), LSE = check_LSE(&t->p, &t->r, out.LSE);
    cr_expect_not(LSE.ok, "%s, %s: LSE passed", what, attn_dtype_name(t->p.dtype));
    if (in_O || t->p.dtype == ATTN_FP32) {
        cr_expect_not(O.ok, "%s, %s: O passed", what, attn_dtype_name(t->p.dtype));
        cr_expect(O.bad > 0 && O.of_bar > 1 && O.error > 0);
    }
    output_free(&out);
}

Test(check, a_wrong_scale_is_caught) {
    for (int dtype = 0; dtype < BAR_TYPES; dtype++) {
        struct trial t = start(130, false, dtype, DATA_NORMAL);
        struct attn_problem wrong = t.p;
        wrong.scale *= 1.0001f;
        expect_caught(&t, &wrong, "scale 0.01% too large", false);
        wrong.scale = t.p.scale * 1.1f;
        expect_caught(&t, &wrong, "scale 10% too large", true);
        wrong.scale = 1;
        expect_caught(&t, &wrong, "scale forgotten", true);
        finish(&t);
    }
}

// With Nq one larger (smaller) the mask of each query ends one key earlier (later). The last key of
// the last query is lost, or there is no row for it any more.
Test(check, a_mask_that_is_off_by_one_is_caught) {
    for (int dtype = 0; dtype < BAR_TYPES; dtype++) {
        for (int family = 0; family < DATA_FAMILIES; family++) {
            struct trial t = start(130, true, dtype, family);
            struct attn_problem wrong = t.p;
            t.in.Q = realloc(t.in.Q, 131 * 64 * sizeof(float)); // a row for the extra query
            memset(t.in.Q + 130 * 64, 0, 64 * sizeof(float));
            wrong.seqlen_q = 131;
            expect_caught(&t, &wrong, "one key too few", true);
            wrong.causal = false, wrong.seqlen_q = 130;
            // A query of one-hot data may see more keys: its own still wins.
            if (family != DATA_ONE_HOT) expect_caught(&t, &wrong, "no mask at all", true);
            finish(&t);
        }
    }
}

Test(check, a_mask_that_lets_one_more_key_through_is_caught) {
    for (int dtype = 0; dtype < BAR_TYPES; dtype++) {
        struct trial t = start(130, true, dtype, DATA_CONSTANT);
        struct attn_problem wrong = t.p;
        wrong.seqlen_q = 129;
        struct output out = oracle_output(&wrong, &t.in);
        memcpy(t.right.O, out.O, 129 * 64 * sizeof(float));
        memcpy(t.right.LSE, out.LSE, 129 * sizeof(float));
        struct check O = check_O(&t.p, &t.r, t.right.O), LSE = check_LSE(&t.p, &t.r, t.right.LSE);
        cr_expect(!O.ok && !LSE.ok, "%s", attn_dtype_name(dtype));
        cr_expect_eq(LSE.bad, 129, "every query but the last");
        output_free(&out);
        finish(&t);
    }
}

Test(check, a_skipped_tail_is_caught) {
    for (int dtype = 0; dtype < BAR_TYPES; dtype++) {
        struct trial t = start(130, false, dtype, DATA_CONSTANT);
        struct attn_problem wrong = t.p;
        wrong.seqlen_k = 129;
        expect_caught(&t, &wrong, "last key skipped", true);
        wrong.seqlen_k = 128;
        expect_caught(&t, &wrong, "last two keys skipped", true);
        finish(&t);
    }
}

Test(check, all_zeros_are_caught) {
    for (int k = 0; k < BAR_TYPES * DATA_FAMILIES; k++) {
        struct trial t = start(33, true, k % BAR_TYPES, k / BAR_TYPES);
        memset(t.right.O, 0, 33 * 64 * sizeof(float));
        memset(t.right.LSE, 0, 33 * sizeof(float));
        cr_expect_not(check_O(&t.p, &t.r, t.right.O).ok, "case %d", k);
        cr_expect_not(check_LSE(&t.p, &t.r, t.right.LSE).ok, "case %d", k);
        finish(&t);
    }
}

Test(check, nan_is_caught_and_named) {
    struct trial t = start(33, true, ATTN_FP16, DATA_NORMAL);
    const uint64_t places[3] = {0, 700, 33 * 64 - 1};
    for (int k = 0; k < 3; k++) {
        float right = t.right.O[places[k]];
        t.right.O[places[k]] = NAN;
        struct check O = check_O(&t.p, &t.r, t.right.O);
        cr_expect(!O.ok && O.bad == 1 && O.worst == places[k] && isnan(O.error) && isnan(O.got));
        cr_expect_eq(O.want, t.r.O[places[k]]);
        cr_expect_str_eq(O.tensor, "O");
        t.right.O[places[k]] = right;
    }
    for (int i = 0; i < 33; i++) t.right.LSE[i] = NAN;
    struct check LSE = check_LSE(&t.p, &t.r, t.right.LSE);
    cr_expect(!LSE.ok && LSE.bad == 33 && LSE.worst == 0 && isnan(LSE.error));
    cr_expect_str_eq(LSE.tensor, "LSE");
    finish(&t);
}

Test(check, one_wrong_element_is_found) {
    struct trial t = start(33, false, ATTN_FP32, DATA_NORMAL);
    t.right.O[100] += 1e-3f;
    t.right.O[200] -= 2e-3f;
    struct check O = check_O(&t.p, &t.r, t.right.O);
    cr_expect(!O.ok && O.bad == 2 && O.worst == 200 && O.got == t.right.O[200]);
    cr_expect_float_eq(O.error, 2e-3, 1e-6);
    finish(&t);
}

// Of queries that see no key (9 queries, 4 keys): -infinity, and nothing else.
Test(check, infinities_of_LSE) {
    struct attn_problem p = problem(1, 1, 9, 4, 8, true, ATTN_FP32);
    struct inputs in = make(&p, DATA_NORMAL);
    struct reference r = refer(&p, &in);
    struct output out = oracle_output(&p, &in);
    const float wrong[4] = {INFINITY, -FLT_MAX, 0, NAN};
    cr_expect(check_LSE(&p, &r, out.LSE).ok);
    for (int k = 0; k < 4; k++) {
        out.LSE[2] = wrong[k];
        struct check c = check_LSE(&p, &r, out.LSE);
        cr_expect(!c.ok && c.bad == 1 && c.worst == 2, "%g for -infinity", wrong[k]);
    }
    out.LSE[2] = -INFINITY;
    for (int sign = -1; sign <= 1; sign += 2) {
        out.LSE[7] = sign * INFINITY;
        struct check c = check_LSE(&p, &r, out.LSE);
        cr_expect(!c.ok && c.bad == 1 && c.worst == 7, "%g for a number", out.LSE[7]);
    }
    inputs_free(&in), reference_free(&r), output_free(&out);
}

// The formulas of check.h, at their edges.
Test(check, the_bar_stands_where_it_should) {
    struct attn_problem p = problem(1, 1, 1, 1, 8, false, ATTN_FP16);
    double want[8] = {1, 1, 1, 1, 1, 1, 1, 1}, lse = 1;
    struct reference r = {.O = want,
                          .LSE = &lse,
                          .max_logit = 3,
                          .max_v = 5,
                          .base_error_O = 0x1p-6,
                          .base_error_LSE = 0x1p-20};
    float got[8] = {1, 1, 1, 1, 1, 1, 1, 1}, got_lse;
    const double bar_O[BAR_TYPES] = {2 * 0x1p-6 + 2 * 0x1p-23 + 2 * 4 * 5 * 0x1p-24,
                                     2 * 0x1p-6 + 2 * 0x1p-10, 2 * 0x1p-6 + 2 * 0x1p-7};
    for (int dtype = 0; dtype < BAR_TYPES; dtype++) {
        p.dtype = dtype;
        got[3] = (float)(1 + bar_O[dtype]); // exact: the bar is a multiple of 2^-23
        cr_expect(check_O(&p, &r, got).ok, "%s", attn_dtype_name(dtype));
        cr_expect_eq(check_O(&p, &r, got).of_bar, 1);
        got[3] = nextafterf(got[3], 2);
        cr_expect_not(check_O(&p, &r, got).ok, "%s", attn_dtype_name(dtype));
        got_lse = (float)(1 + 2 * 0x1p-20 + 2 * 0x1p-23 + 2 * 4 * 0x1p-24);
        cr_expect(check_LSE(&p, &r, &got_lse).ok);
        got_lse = nextafterf(got_lse, 2);
        cr_expect_not(check_LSE(&p, &r, &got_lse).ok);
    }
}

// ---- the bar for gradients (FP8 has none)
// --------------------------------------------------------

// Gradients as a kernel would deliver them.
struct gradients {
    float *dQ, *dK, *dV;
};

static struct gradients gradients_new(const struct attn_problem *p) {
    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p);
    return (struct gradients){calloc(q, sizeof(float)), calloc(kv, sizeof(float)),
                              calloc(kv, sizeof(float))};
}

static void gradients_free(struct gradients *g) {
    free(g->dQ);
    free(g->dK);
    free(g->dV);
}

static struct gradients oracle_gradients(const struct attn_problem *p, const struct reference *r) {
    struct gradients g = gradients_new(p);
    for (uint64_t i = 0; i < attn_q_elements(p); i++)
        g.dQ[i] = dtype_round(p->dtype, (float)r->dQ[i]);
    for (uint64_t i = 0; i < attn_kv_elements(p); i++) {
        g.dK[i] = dtype_round(p->dtype, (float)r->dK[i]);
        g.dV[i] = dtype_round(p->dtype, (float)r->dV[i]);
    }
    return g;
}

static void expect_within(const struct attn_problem *p, const struct reference *r,
                          const struct gradients *g, double share, const char *what) {
    struct check c[3] = {check_dQ(p, r, g->dQ), check_dK(p, r, g->dK), check_dV(p, r, g->dV)};
    for (int k = 0; k < 3; k++)
        cr_expect(c[k].ok && c[k].bad == 0 && c[k].of_bar <= share, "%s: %s at %g of the bar", what,
                  c[k].tensor, c[k].of_bar);
}

Test(check, correct_gradients_pass) {
    const int nq[4] = {1, 33, 50, 20}, nk[4] = {1, 33, 24, 57};
    for (int k = 0; k < 4 * BAR_TYPES * DATA_FAMILIES; k++) {
        struct attn_problem p =
            problem(2, 1, nq[k % 4], nk[k % 4], 40, k % 3 > 0, k / 4 % BAR_TYPES);
        struct inputs in = make(&p, k / 4 / BAR_TYPES);
        struct reference r = refer_both(&p, &in);
        struct gradients g = oracle_gradients(&p, &r);
        expect_within(&p, &r, &g, 0.5, "the oracle, rounded");
        baseline_backward(&p, &in, r.base_O, r.base_LSE, g.dQ, g.dK, g.dV);
        expect_within(&p, &r, &g, 0.34, "the baseline itself");
        inputs_free(&in), reference_free(&r), gradients_free(&g);
    }
}

enum mistake {
    NO_MISTAKE,
    NO_D,     // dS = P * dP
    NO_SCALE, // in dQ and dK
    SCALE_TWICE,
    ONE_KEY_LESS, // the mask ends one key early
    ONE_KEY_MORE,
    ONE_QUERY_HEAD, // dK and dV from the last query head of a group only
    BASE_TWO,       // LSE taken for a binary logarithm
    TRANSPOSED,     // P and dS read with i and j exchanged, in dK and dV
    NEXT_ROWS_D,
    MISTAKES
};

static const struct {
    const char *name;
    bool in_dQ, in_dK, in_dV; // must the check fail?
} mistakes[MISTAKES] = {
    [NO_MISTAKE] = {"no mistake", false, false, false},
    [NO_D] = {"no D", true, true, false},
    [NO_SCALE] = {"no scale", true, true, false},
    [SCALE_TWICE] = {"scale twice", true, true, false},
    [ONE_KEY_LESS] = {"one key less", true, true, true},
    [ONE_KEY_MORE] = {"one key more", true, true, true},
    [ONE_QUERY_HEAD] = {"one query head", false, true, true},
    [BASE_TWO] = {"base two", true, true, true},
    [TRANSPOSED] = {"transposed", false, true, true},
    [NEXT_ROWS_D] = {"the next row's D", true, true, false},
};

// P and dS of one query head, the whole matrices: [Nq, Nk].
static void make_P_and_dS(const struct attn_problem *p, const struct inputs *in,
                          const struct reference *r, int head, enum mistake mistake, double *P,
                          double *dS) {
    int nq = p->seqlen_q, nk = p->seqlen_k, kv = head / (p->heads / p->kv_heads);
    struct inputs swapped = {in->dO, in->V, NULL, NULL}; // dP is a product like S
    double D[64] = {0};
    for (int i = 0; i < nq; i++) {
        uint64_t row = (uint64_t)head * nq + i, first = (uint64_t)kv * nk;
        double LSE = r->LSE[row] / (mistake == BASE_TWO ? log(2) : 1);
        int keys = attn_visible_keys(p, i) + (mistake == ONE_KEY_MORE) - (mistake == ONE_KEY_LESS);
        for (int j = 0; j < nk; j++) {
            P[i * nk + j] = j < keys ? exp(logit(p, in, row, first + j) - LSE) : 0;
            dS[i * nk + j] = logit(p, &swapped, row, first + j) / p->scale; // dP, for now
            D[i] += P[i * nk + j] * dS[i * nk + j];
        }
    }
    for (int ij = 0; ij < nq * nk; ij++) {
        int i = (ij / nk + (mistake == NEXT_ROWS_D)) % nq;
        dS[ij] = P[ij] * (dS[ij] - (mistake == NO_D ? 0 : D[i]));
    }
}

static struct gradients backward_with(const struct attn_problem *p, const struct inputs *in,
                                      const struct reference *r, enum mistake mistake) {
    int nq = p->seqlen_q, nk = p->seqlen_k, d = p->head_dim, group = p->heads / p->kv_heads;
    double P[64 * 64], dS[64 * 64];
    double scale = mistake == NO_SCALE ? 1 : pow(p->scale, mistake == SCALE_TWICE ? 2 : 1);
    struct gradients g = gradients_new(p);
    for (int h = 0; h < p->heads; h++) {
        make_P_and_dS(p, in, r, h, mistake, P, dS);
        bool summed = mistake != ONE_QUERY_HEAD || h % group == group - 1;
        for (int n = 0; n < nq * nk * d; n++) {
            int i = n / d / nk, j = n / d % nk, t = n % d;
            int ij = i * nk + j, turned = mistake == TRANSPOSED ? j * nk + i : ij;
            uint64_t q = ((uint64_t)h * nq + i) * d + t,
                     kv = ((uint64_t)h / group * nk + j) * d + t;
            g.dQ[q] += (float)(scale * dS[ij] * in->K[kv]);
            if (summed) g.dK[kv] += (float)(scale * dS[turned] * in->Q[q]);
            if (summed) g.dV[kv] += (float)(P[turned] * in->dO[q]);
        }
    }
    return g;
}

static void expect_mistakes_found(const struct attn_problem *p, const struct inputs *in,
                                  const char *data) {
    struct reference r = refer_both(p, in);
    for (int m = 0; m < MISTAKES; m++) {
        struct gradients g = backward_with(p, in, &r, m);
        bool dQ = check_dQ(p, &r, g.dQ).ok, dK = check_dK(p, &r, g.dK).ok,
             dV = check_dV(p, &r, g.dV).ok;
        const char *name = mistakes[m].name, *dtype = attn_dtype_name(p->dtype);
        cr_expect_eq(dQ, !mistakes[m].in_dQ, "%s, %s, %s: dQ", name, data, dtype);
        cr_expect_eq(dK, !mistakes[m].in_dK, "%s, %s, %s: dK", name, data, dtype);
        cr_expect_eq(dV, !mistakes[m].in_dV, "%s, %s, %s: dV", name, data, dtype);
        gradients_free(&g);
    }
    reference_free(&r);
}

Test(check, mistakes_in_gradients_are_caught) {
    const enum data_family families[3] = {DATA_NORMAL, DATA_LARGE, DATA_OUTLIERS};
    for (int k = 0; k < 3 * BAR_TYPES; k++) {
        struct attn_problem p = problem(4, 2, 40, 40, 16, true, k % BAR_TYPES);
        struct inputs in = make(&p, families[k / BAR_TYPES]);
        expect_mistakes_found(&p, &in, data_family_name(families[k / BAR_TYPES]));
        inputs_free(&in);
    }
}

// A loss that is a mean hands back a tiny dO: the bar has to shrink with it.
Test(check, mistakes_are_caught_at_a_small_dO) {
    struct attn_problem p = problem(4, 2, 40, 40, 16, true, ATTN_FP32);
    struct inputs in = make(&p, DATA_NORMAL);
    for (uint64_t i = 0; i < attn_q_elements(&p); i++) in.dO[i] *= 0x1p-30f;
    expect_mistakes_found(&p, &in, "small dO");
    inputs_free(&in);
}

Test(check, half_precision_is_caught_in_fp32) {
    for (int family = 0; family < DATA_FAMILIES; family++) {
        struct attn_problem p = problem(1, 1, 33, 33, 40, false, ATTN_FP32), half = p;
        half.dtype = ATTN_FP16;
        if (family == DATA_ONE_HOT) continue; // P is 1 or 0: nothing to round
        struct inputs in = make(&half, family);
        struct reference r = refer_both(&p, &in);
        struct gradients g = gradients_new(&p);
        baseline_backward(&half, &in, r.base_O, r.base_LSE, g.dQ, g.dK, g.dV);
        cr_expect_not(check_dK(&p, &r, g.dK).ok, "%s: dK", data_family_name(family));
        cr_expect_not(check_dV(&p, &r, g.dV).ok, "%s: dV", data_family_name(family));
        // With equal keys dQ is 0, and a sum of what is left: any error of P is multiplied by 0.
        if (family != DATA_CONSTANT)
            cr_expect_not(check_dQ(&p, &r, g.dQ).ok, "%s: dQ", data_family_name(family));
        inputs_free(&in), reference_free(&r), gradients_free(&g);
    }
}

Test(check, nan_and_zeros_in_gradients_are_caught) {
    for (int dtype = 0; dtype < BAR_TYPES; dtype++) {
        struct attn_problem p = problem(1, 1, 9, 9, 8, true, dtype);
        struct inputs in = make(&p, DATA_NORMAL);
        struct reference r = refer_both(&p, &in);
        struct gradients g = gradients_new(&p), right = oracle_gradients(&p, &r);
        cr_expect_not(check_dQ(&p, &r, g.dQ).ok || check_dK(&p, &r, g.dK).ok);
        cr_expect_not(check_dV(&p, &r, g.dV).ok);
        right.dQ[71] = right.dK[0] = right.dV[40] = NAN;
        struct check c[3] = {check_dQ(&p, &r, right.dQ), check_dK(&p, &r, right.dK),
                             check_dV(&p, &r, right.dV)};
        const uint64_t worst[3] = {71, 0, 40};
        for (int k = 0; k < 3; k++)
            cr_expect(!c[k].ok && c[k].bad == 1 && c[k].worst == worst[k] && isnan(c[k].error));
        inputs_free(&in), reference_free(&r), gradients_free(&g), gradients_free(&right);
    }
}

// The formulas of check.h, at their edges.
Test(check, the_bar_for_gradients_stands_where_it_should) {
    struct attn_problem p = problem(4, 1, 1, 1, 8, false, ATTN_FP32); // four weights to the key
    double want[32];
    struct reference r = {.dQ = want, .dK = want, .dV = want, .max_logit = 3};
    r.rms_q = 2, r.rms_k = 4, r.max_dO = 8, r.max_dP = 16;
    r.max_q = 8, r.max_k = 16, r.long_dO = 32, r.long_v = 64;
    r.base_error_dQ = 0x1p-16, r.base_error_dK = 0x1p-17, r.base_error_dV = 0x1p-18;
    p.scale = 0.5f;
    struct check (*const check[3])(const struct attn_problem *, const struct reference *,
                                   const float *) = {check_dQ, check_dK, check_dV};
    const double factor[3] = {0.5 * 4 * 16, 0.5 * 2 * 16, 8};
    const double base[3] = {0x1p-16, 0x1p-17, 0x1p-18};
    const double rest[3] = {0.5 * 16 * 32 * 64, 0.5 * 8 * 32 * 64 * 2, 0};
    for (int i = 0; i < 32; i++) want[i] = 1;
    for (int k = 0; k < 3 * BAR_TYPES; k++) {
        p.dtype = k / 3;
        double bar = 3 * base[k % 3] + 2 * dtype_ulp(p.dtype, 1) + 2 * rest[k % 3] * 0x1p-24;
        if (p.dtype == ATTN_FP32) bar += 2 * 4 * factor[k % 3] * 0x1p-24;
        float got[32];
        for (int i = 0; i < 32; i++) got[i] = 1;
        got[3] = (float)(1 + bar); // exact: the bar is a multiple of 2^-23
        cr_expect_eq(check[k % 3](&p, &r, got).of_bar, 1, "case %d", k);
        cr_expect(check[k % 3](&p, &r, got).ok);
        got[3] = nextafterf(got[3], 2);
        cr_expect_not(check[k % 3](&p, &r, got).ok, "case %d", k);
    }
}

// test_step06_fp8.c - FP8 attention, step by step: what the pre-pass writes, bit by bit; inputs
// that e4m3 holds exactly, of which O is exact, too; and all others against attention in double of
// what the pre-pass has made of them, so that only the rounding of P is left.

#include "dtype.h"
#include "fp8.h"
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
    if (machine.sm != 90) cr_skip_test("this step needs a Hopper GPU, or the simulator");
}

TestSuite(step06_fp8, .init = open_machine);

// ---- a problem, with its inputs and outputs -----------------------------------------------------

enum { Q, K, V };

struct fp8_case {
    struct attn_problem p;
    uint64_t size[3];   // elements of Q, K, V
    float *x[3];        // Q, K, V: bf16 values
    float *O, *LSE;     // of the kernel
    uint8_t *buffer[3]; // Q8, K8, V8, of the kernel
    uint8_t *x8[3];     // rows as they should be: of V, too
    struct attn_traffic asked;
    float *scale[3]; // of each row
};

static int rows_of(const struct attn_problem *p, int x) {
    return x == Q ? p->seqlen_q : p->seqlen_k;
}
static int heads_of(const struct attn_problem *p, int x) {
    return p->batch * (x == Q ? p->heads : p->kv_heads);
}
static uint64_t pitch_of(int columns) { return ((uint64_t)columns + 31) / 32 * 32; }

static struct fp8_case new_case(struct attn_problem p) {
    struct fp8_case c = {.p = p};
    c.p.dtype = ATTN_FP8, c.p.smem = machine.smem, c.p.sm = machine.sm;
    if (!c.p.sm_count) c.p.sm_count = machine.sm_count;
    if (c.p.scale == 0) c.p.scale = (float)(1 / sqrt(p.head_dim));
    for (int x = Q; x <= V; x++) {
        uint64_t rows = (uint64_t)heads_of(&p, x) * (uint64_t)rows_of(&p, x);
        c.size[x] = rows * (uint64_t)p.head_dim;
        c.x[x] = calloc(c.size[x], sizeof(float));
        c.x8[x] = calloc(c.size[x], 1);
        c.scale[x] = calloc(rows, sizeof(float));
    }
    c.O = calloc(c.size[Q], sizeof(float));
    c.LSE = calloc(attn_rows(&p), sizeof(float));
    return c;
}

static void free_case(struct fp8_case *c) {
    for (int x = Q; x <= V; x++) {
        free(c->x[x]), free(c->x8[x]), free(c->scale[x]), free(c->buffer[x]);
    }
    free(c->O), free(c->LSE);
}

static const char *name_of(const struct attn_problem *p) {
    static char text[200];
    static const char *const scales[] = {"tensor", "head", "block"};
    snprintf(text, sizeof text,
             "-b %d -H %d --kv-heads %d --seqlen-q %d --seqlen-k %d -d %d%s --fp8-scale %s%s, "
             "%d multiprocessors",
             p->batch, p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim,
             p->causal ? " --causal" : "", scales[p->fp8_scale], p->rotate ? " --rotate" : "",
             p->sm_count);
    return text;
}

// ---- random numbers -----------------------------------------------------------------------------

static uint64_t seed;
static uint32_t next_random(void) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    return (uint32_t)(seed >> 33);
}
static float normal(void) { // nearly: the sum of 12, less its mean
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += (float)next_random() / 2147483648.0f;
    return sum;
}

// ---- inputs -------------------------------------------------------------------------------------

static float bf16(float x) { return bf16_to_float(bf16_from_float(x)); }

// Where element i of Q, K or V is.
struct where {
    int head, row, column, block; // block of FP8_BLOCK rows
};
static struct where where_is(const struct fp8_case *c, int x, uint64_t i) {
    uint64_t d = (uint64_t)c->p.head_dim, rows = (uint64_t)rows_of(&c->p, x);
    int row = (int)(i / d % rows);
    return (struct where){(int)(i / d / rows), row, (int)(i % d), row / FP8_BLOCK};
}

// Heads, and blocks of rows, of different sizes, so that a wrong scale shows.
static float size_of(struct where at) {
    return (1 + 0.5f * (float)(at.head % 3)) * (at.block % 2 ? 0.4f : 1);
}

static float any_normal(const struct fp8_case *c, int x, struct where at) {
    (void)c, (void)x;
    return normal() * size_of(at);
}

// The first keys, which come last, have the largest logits: each tile raises the maximum.
static float rising(const struct fp8_case *c, int x, struct where at) {
    float first = 1 - (float)at.row / (float)c->p.seqlen_k;
    return normal() * (x == K ? 1 + 4 * first : 1);
}

// The product of the scales of Q and K is 0 in fp32.
static float tiny_logits(const struct fp8_case *c, int x, struct where at) {
    (void)c, (void)at;
    return normal() * (x == V ? 1 : 1e-25f);
}

static float zero(const struct fp8_case *c, int x, struct where at) {
    (void)c, (void)x, (void)at;
    return 0;
}

// Small integers times a power of two; the largest of each block is 7, and e4m3 holds all exactly,
// as 7 becomes 448.
static float exact_V(struct where at) {
    float unit = 1.0f / (float)(1 << (at.head + at.block) % 3);
    float integer = (float)(next_random() % 15) - 7;
    return unit * (at.column == 0 && at.row % FP8_BLOCK == 0 ? 7 : integer);
}

static float equal_logits(const struct fp8_case *c, int x, struct where at) {
    (void)c;
    return x == V ? exact_V(at) : 1;
}

// The key that a query selects: one that it sees.
static int target(const struct fp8_case *c, int i) {
    int seen = attn_visible_keys(&c->p, i);
    return seen ? i * 37 % seen : 0;
}

// A key is a row of random signs, and a query is that of its target.
static float one_hot(const struct fp8_case *c, int x, struct where at) {
    (void)c;
    if (x == V) return exact_V(at);
    if (x == K) return next_random() % 2 ? 1 : -1;
    return 0; // set below, when K is there
}
static void aim(struct fp8_case *c) {
    const uint64_t d = (uint64_t)c->p.head_dim, keys = (uint64_t)c->p.seqlen_k;
    for (uint64_t i = 0; i < c->size[Q]; i++) {
        struct where at = where_is(c, Q, i);
        uint64_t head = (uint64_t)(at.head / (c->p.heads / c->p.kv_heads));
        c->x[Q][i] = c->x[K][(head * keys + (uint64_t)target(c, at.row)) * d + i % d];
    }
}

typedef float filling(const struct fp8_case *, int x, struct where);

static void fill(struct fp8_case *c, filling *value) {
    seed = 42;
    for (int x = V; x >= Q; x--)
        for (uint64_t i = 0; i < c->size[x]; i++) c->x[x][i] = bf16(value(c, x, where_is(c, x, i)));
    if (value == one_hot) aim(c);
}

// ---- the kernels --------------------------------------------------------------------------------

// Only those that are linked in, and that KERNEL=name,name asks for, if it is set.
static bool is_asked_for(const struct attn_kernel *k) {
    const char *asked = getenv("KERNEL");
    char list[300], name[60];
    snprintf(list, sizeof list, ",%s,", asked ? asked : k->name);
    snprintf(name, sizeof name, ",%s,", k->name);
    return strstr(list, name) && (k->dtypes >> ATTN_FP8 & 1);
}

// NULL: a program with a fault planted in it has not all kernels.
static const struct attn_kernel *kernel_named(const char *name) {
    for (int i = 0; i < attn_kernel_count(); i++)
        if (!strcmp(attn_kernel_at(i)->name, name)) return attn_kernel_at(i);
    return NULL;
}

static void *upload_bf16(const char *name, const float *host, uint64_t elements) {
    uint16_t *packed = malloc(elements * 2);
    void *device = machine_alloc(name, elements * 2);
    cr_assert(packed && device);
    dtype_pack(ATTN_FP8, host, packed, elements);
    machine_write(device, packed, elements * 2);
    free(packed);
    return device;
}

static bool same_traffic(const struct attn_traffic *a, const struct attn_traffic *b) {
    return a->load == b->load && a->store == b->store && a->atomic == b->atomic &&
           a->tma_load == b->tma_load && a->tma_store == b->tma_store;
}

// Runs the kernel's forward once and fetches what it has written. False: it does not take this.
static bool run(const struct attn_kernel *k, struct fp8_case *c) {
    const struct attn_problem *p = &c->p;
    char why[300];
    struct attn_buffer buffers[ATTN_MAX_BUFFERS];
    struct attn_tensors t = {0};
    struct measurement m;
    if (!k->supports(p, ATTN_FORWARD, why, sizeof why)) return false;
    t.Q = upload_bf16("Q", c->x[Q], c->size[Q]);
    t.K = upload_bf16("K", c->x[K], c->size[K]);
    t.V = upload_bf16("V", c->x[V], c->size[V]);
    t.O = machine_alloc("O", c->size[Q] * 2);
    t.LSE = machine_alloc("LSE", attn_rows(p) * 4);
    machine_poison(t.O, c->size[Q] * 2);
    machine_poison(t.LSE, attn_rows(p) * 4);
    int count = k->buffers(p, buffers);
    for (int i = 0; i < count; i++) {
        t.buffer[i] = machine_alloc(buffers[i].name, buffers[i].bytes);
        machine_refill(t.buffer[i], &buffers[i]);
    }
    struct machine_work work = {k->forward, p, &t};
    machine_run(&work, &m);
    cr_expect(!m.error[0], "--kernel %s %s: %s", k->name, name_of(p), m.error);
    c->asked = m.asked;
    struct attn_traffic model = k->model(p, ATTN_FORWARD);
    if (machine.simulated && !m.error[0])
        cr_expect(k->redoes
                      ? m.asked.tma_load >= model.tma_load && m.asked.tma_store == model.tma_store
                      : same_traffic(&m.asked, &model),
                  "--kernel %s %s: asked is not the model", k->name, name_of(p));
    uint16_t *O = malloc(c->size[Q] * 2);
    machine_read(O, t.O, c->size[Q] * 2);
    dtype_unpack(ATTN_FP8, O, c->O, c->size[Q]);
    free(O);
    machine_read(c->LSE, t.LSE, attn_rows(p) * 4);
    for (int i = Q; i <= V; i++) {
        free(c->buffer[i]);
        c->buffer[i] = malloc(buffers[i].bytes);
        machine_read(c->buffer[i], t.buffer[i], buffers[i].bytes);
    }
    for (int i = 0; i < count; i++) {
        uint32_t left = 0;
        if (buffers[i].zeroed) machine_read(&left, t.buffer[i], sizeof left);
        cr_expect_eq(left, 0,
                     "--kernel %s %s: not all tiles, or some twice, have asked for another",
                     k->name, name_of(p));
        machine_free(t.buffer[i]);
    }
    machine_free((void *)t.Q), machine_free((void *)t.K), machine_free((void *)t.V);
    machine_free(t.O), machine_free(t.LSE);
    return true;
}

// ---- the pre-pass on the host -------------------------------------------------------------------

static void rotate_row(float *x, int d) {
    for (int e = 0; e < d; e++) x[e] *= fp8_sign(e);
    for (int n = 1; n < d; n *= 2)
        for (int e = 0; e < d; e++)
            if (!(e & n)) {
                float a = x[e], b = x[e + n];
                x[e] = a + b, x[e + n] = a - b;
            }
    for (int e = 0; e < d; e++) x[e] *= 1 / sqrtf((float)d);
}

// The number of the group of rows that a row shares its scale with.
static uint64_t group_of(const struct attn_problem *p, int x, uint64_t row) {
    uint64_t rows = (uint64_t)rows_of(p, x), head = row / rows, block = row % rows / FP8_BLOCK;
    return p->fp8_scale == FP8_SCALE_TENSOR ? 0
           : p->fp8_scale == FP8_SCALE_HEAD ? head
                                            : head * rows + block;
}

static void quantise_on_host(struct fp8_case *c, int x) {
    const uint64_t d = (uint64_t)c->p.head_dim, rows = c->size[x] / d;
    float *values = malloc(c->size[x] * sizeof(float)), *largest = calloc(rows, sizeof(float));
    memcpy(values, c->x[x], c->size[x] * sizeof(float));
    for (uint64_t row = 0; row < rows; row++) {
        if (c->p.rotate && x != V) rotate_row(values + row * d, (int)d);
        float *most = &largest[group_of(&c->p, x, row)];
        for (uint64_t e = 0; e < d; e++) *most = fmaxf(*most, fabsf(values[row * d + e]));
    }
    for (uint64_t row = 0; row < rows; row++) {
        float most = largest[group_of(&c->p, x, row)], factor = fp8_factor(most);
        c->scale[x][row] = fp8_scale_of(most);
        for (uint64_t e = 0; e < d; e++)
            c->x8[x][row * d + e] = e4m3_from_float(values[row * d + e] * factor);
    }
    free(values), free(largest);
}

// Rows of d bytes and zeros up to the pitch.
static void expect_rows(const struct attn_kernel *k, const struct fp8_case *c, int x) {
    const uint64_t d = (uint64_t)c->p.head_dim, pitch = pitch_of(c->p.head_dim);
    uint64_t wrong = 0;
    for (uint64_t row = 0; row < c->size[x] / d; row++)
        for (uint64_t e = 0; e < pitch; e++) {
            uint8_t byte = c->buffer[x][row * pitch + e]; // in the padding 0, or -0
            wrong += e < d ? byte != c->x8[x][row * d + e] : (byte & 0x7f) != 0;
        }
    cr_expect_eq(wrong, 0, "--kernel %s %s: %llu bytes of %c8", k->name, name_of(&c->p),
                 (unsigned long long)wrong, "QKV"[x]);
}

// In the order of quantize.h's table, and zeros where there is no key.
static void expect_transposed(const struct attn_kernel *k, const struct fp8_case *c) {
    static const int key_of_slot[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
    const uint64_t d = (uint64_t)c->p.head_dim, keys = (uint64_t)c->p.seqlen_k;
    const uint64_t pitch = pitch_of(c->p.seqlen_k);
    uint64_t wrong = 0;
    for (uint64_t head = 0; head < (uint64_t)heads_of(&c->p, V); head++)
        for (uint64_t e = 0; e < d; e++)
            for (uint64_t slot = 0; slot < pitch; slot++) {
                uint64_t key = slot / 16 * 16 + (uint64_t)key_of_slot[slot % 16];
                uint8_t right = key < keys ? c->x8[V][(head * keys + key) * d + e] : 0;
                wrong += c->buffer[V][(head * d + e) * pitch + slot] != right;
            }
    cr_expect_eq(wrong, 0, "--kernel %s %s: %llu bytes of V8", k->name, name_of(&c->p),
                 (unsigned long long)wrong);
}

// ---- attention in double, of Q8, K8, V8 ---------------------------------------------------------

static double value(const struct fp8_case *c, int x, uint64_t row, uint64_t e) {
    return (double)e4m3_to_float(c->x8[x][row * (uint64_t)c->p.head_dim + e]) *
           (double)c->scale[x][row];
}

struct row_of_O {
    double O[256];     // exact
    double most[256];  // by which rounding of P can move O, at most
    double usual[256]; // its square: what it does on average, at most
    double LSE, largest_logit;
};

// By how much rounding moves the smallest weights, at most: by 2^-10, below the normal e4m3, where
// P is 2^8 times the weight. In the optimistic rung it is 2^4 times that, or if a thread's sum of
// 24 to 48 weights was too large for that, at least 128 / 48 of the largest: more than 2.
static double least_step(const struct attn_kernel *k) {
    return strcmp(k->name, "fp8-optimistic") ? 0x1p-18 : 0x1p-11;
}

// An e4m3 is off by 2^-4 of itself at most, and by `least` for the smallest. On average its square
// is off by less than a third of that; over many, less than a sixth.
static void exact_row(const struct fp8_case *c, uint64_t query, double least, struct row_of_O *r) {
    const struct attn_problem *p = &c->p;
    const uint64_t d = (uint64_t)p->head_dim, keys = (uint64_t)p->seqlen_k;
    const uint64_t bh = query / (uint64_t)p->seqlen_q, b = bh / (uint64_t)p->heads;
    const uint64_t h = bh % (uint64_t)p->heads / (uint64_t)(p->heads / p->kv_heads);
    const uint64_t first = (b * (uint64_t)p->kv_heads + h) * keys;
    const int seen = attn_visible_keys(p, (int)(query % (uint64_t)p->seqlen_q));
    double *S = malloc((size_t)(seen + 1) * sizeof *S), m = -INFINITY, l = 0;
    *r = (struct row_of_O){.LSE = -INFINITY};
    for (int j = 0; j < seen; j++) {
        S[j] = 0;
        for (uint64_t e = 0; e < d; e++)
            S[j] += value(c, Q, query, e) * value(c, K, first + (uint64_t)j, e);
        S[j] *= (double)p->scale;
        m = fmax(m, S[j]);
        r->largest_logit = fmax(r->largest_logit, fabs(S[j]));
    }
    for (int j = 0; j < seen; j++) l += S[j] = exp(S[j] - m);
    for (int j = 0; j < seen; j++)
        for (uint64_t e = 0; e < d; e++) {
            double v = value(c, V, first + (uint64_t)j, e);
            double off = fmax(S[j] / 16, least) * fabs(v) / l;
            r->O[e] += S[j] * v / l;
            r->most[e] += off;
            r->usual[e] += off * off / 3;
        }
    if (seen) r->LSE = m + log(l);
    free(S);
}

// `independent`: weights are rounded up and down, as if by chance.
static void expect_right_O(const struct attn_kernel *k, const struct fp8_case *c,
                           bool independent) {
    const uint64_t d = (uint64_t)c->p.head_dim, rows = attn_rows(&c->p);
    double error = 0, usual = 0;
    uint64_t wrong_O = 0, wrong_LSE = 0;
    static struct row_of_O r;
    for (uint64_t i = 0; i < rows; i++) {
        exact_row(c, i, least_step(k), &r);
        double LSE = (double)c->LSE[i];
        bool dead = r.LSE == -INFINITY;
        wrong_LSE +=
            dead ? !(LSE == r.LSE) : !(fabs(LSE - r.LSE) <= 0x1p-20 * (4 + r.largest_logit));
        for (uint64_t e = 0; e < d; e++) {
            double off = (double)c->O[i * d + e] - r.O[e], bf16 = fabs(r.O[e]) * 0x1p-8;
            wrong_O += !(fabs(off) <= 1.01 * r.most[e] + bf16);
            error += off * off;
            usual += r.usual[e] + bf16 * bf16 / 3;
        }
    }
    cr_expect_eq(wrong_LSE, 0, "--kernel %s %s: %llu rows of LSE", k->name, name_of(&c->p),
                 (unsigned long long)wrong_LSE);
    cr_expect_eq(wrong_O, 0, "--kernel %s %s: %llu elements of O", k->name, name_of(&c->p),
                 (unsigned long long)wrong_O);
    // The largest weight of a row is a power of two, and exact; but not in the optimistic rung, and
    // where few keys count, that is most of the error.
    if (independent)
        cr_expect(error <= (k->redoes ? usual : usual / 2),
                  "--kernel %s %s: O is off by %.3g, should be %.3g", k->name, name_of(&c->p),
                  sqrt(error), sqrt(usual));
}

static void expect_all_right(struct attn_problem p, filling *value) {
    struct fp8_case c = new_case(p);
    fill(&c, value);
    for (int x = Q; x <= V; x++) quantise_on_host(&c, x);
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        if (!is_asked_for(k) || !run(k, &c)) continue;
        expect_rows(k, &c, Q);
        expect_rows(k, &c, K);
        expect_transposed(k, &c);
        expect_right_O(k, &c, value == any_normal || value == rising);
    }
    free_case(&c);
}

// ---- normal inputs ------------------------------------------------------------------------------

// Every way to scale; d that is padded, or not; the last blocks of rows and tiles of keys short.
Test(step06_fp8, every_scale_and_d) {
    static const int dims[] = {8, 40, 64, 80, 128, 136, 256};
    for (int i = 0; i < 21; i++)
        expect_all_right((struct attn_problem){.batch = 1,
                                               .heads = 2,
                                               .kv_heads = 2,
                                               .seqlen_q = 70 + 67 * (i % 2),
                                               .seqlen_k = i % 4 == 3 ? 33 : 270 - i,
                                               .head_dim = dims[i % 7],
                                               .causal = i / 2 % 2,
                                               .fp8_scale = (enum fp8_scale)(i % 3)},
                         any_normal);
}

Test(step06_fp8, rotation) {
    static const int dims[] = {8, 16, 32, 64, 128, 256};
    for (int i = 0; i < 6; i++)
        expect_all_right((struct attn_problem){.batch = 1,
                                               .heads = 2,
                                               .kv_heads = 1,
                                               .seqlen_q = 130,
                                               .seqlen_k = 140,
                                               .head_dim = dims[i],
                                               .causal = i % 2,
                                               .fp8_scale = (enum fp8_scale)(i % 3),
                                               .rotate = true},
                         any_normal);
}

// On one, two or three multiprocessors: as many blocks share the tiles, groups of heads share K.
Test(step06_fp8, blocks_take_one_tile_after_the_other) {
    static const int dims[] = {40, 128, 256};
    for (int i = 0; i < 6; i++)
        expect_all_right((struct attn_problem){.batch = 1,
                                               .heads = 4,
                                               .kv_heads = 2,
                                               .seqlen_q = 200,
                                               .seqlen_k = i < 3 ? 260 : 130,
                                               .head_dim = dims[i % 3],
                                               .causal = i % 2,
                                               .fp8_scale = (enum fp8_scale)((i + 2) % 3),
                                               .sm_count = 1 + i / 2},
                         rising);
}

// As in rung 5 (test_step06.c): as many heads as a multiprocessor's 512 KB of L2 has K and V for,
// of a byte an element; at most 16, or 64 where d is small; and no K and V for two groups.
Test(step06_fp8, groups_of_heads) {
    static const struct {
        int heads, kv_heads, k, d, sm_count, group;
    } cases[] = {{6, 3, 600, 256, 1, 2},     {6, 3, 512, 256, 1, 4},
                 {6, 3, 40, 256, 1, 12},     {96, 96, 100, 128, 132, 16},
                 {96, 96, 100, 64, 132, 64}, {96, 32, 100, 128, 132, 15},
                 {96, 1, 100, 128, 132, 96}};
    for (size_t n = 0; n < 2 * sizeof cases / sizeof *cases; n++) {
        struct attn_problem p = {.batch = 2,
                                 .heads = cases[n / 2].heads,
                                 .kv_heads = cases[n / 2].kv_heads,
                                 .seqlen_q = 140,
                                 .seqlen_k = cases[n / 2].k,
                                 .head_dim = cases[n / 2].d,
                                 .causal = n % 2,
                                 .dtype = ATTN_FP8,
                                 .smem = machine.smem,
                                 .sm_count = cases[n / 2].sm_count};
        char text[160], words[60];
        snprintf(words, sizeof words, "groups of %d heads", p.causal ? cases[n / 2].group : 1);
        for (int i = 0; i < attn_kernel_count(); i++) {
            const struct attn_kernel *k = attn_kernel_at(i);
            if (!is_asked_for(k) || !k->supports(&p, ATTN_FORWARD, text, sizeof text)) continue;
            k->describe(&p, ATTN_FORWARD, text, sizeof text);
            cr_expect(strstr(text, words), "--kernel %s: '%s', not %s", k->name, text, words);
        }
    }
}

// Just few enough keys for the tiles of few keys, enough for the widest tiles, and without a mask.
Test(step06_fp8, many_keys) {
    for (int i = 0; i < 3; i++)
        expect_all_right((struct attn_problem){.batch = 1,
                                               .heads = 1,
                                               .kv_heads = 1,
                                               .seqlen_q = 65,
                                               .seqlen_k = 1024 + 61 * i,
                                               .head_dim = 128,
                                               .causal = i < 2},
                         rising);
}

// A query that sees exactly so many whole tiles of keys, and none of the tile that comes first.
Test(step06_fp8, rows_without_a_key_in_the_first_tile) {
    for (int i = 0; i < 6; i++)
        expect_all_right((struct attn_problem){.batch = 1,
                                               .heads = 1,
                                               .kv_heads = 1,
                                               .seqlen_q = 128,
                                               .seqlen_k = 128 + 255 - i % 2 * 64,
                                               .head_dim = 64 << i / 2,
                                               .causal = true},
                         any_normal);
}

// Numbers that a scale cannot be made of, or whose product is nothing.
Test(step06_fp8, next_to_nothing) {
    for (int i = 0; i < 6; i++)
        expect_all_right((struct attn_problem){.batch = 1,
                                               .heads = 1,
                                               .kv_heads = 1,
                                               .seqlen_q = 100,
                                               .seqlen_k = 70,
                                               .head_dim = 64,
                                               .causal = true,
                                               .fp8_scale = (enum fp8_scale)(i % 3)},
                         i < 3 ? zero : tiny_logits);
}

// ---- inputs that e4m3 holds: O is exact ---------------------------------------------------------

static const struct {
    int batch, heads, kv_heads, q, k, d;
} shapes[] = {{1, 1, 1, 1, 1, 64},     {2, 2, 2, 1, 77, 40},   {1, 5, 1, 77, 1, 128},
              {2, 4, 2, 130, 130, 64}, {1, 2, 1, 37, 300, 80}, {1, 2, 2, 300, 37, 128},
              {1, 2, 1, 200, 200, 256}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static struct attn_problem shape(int i, bool causal, int scale) {
    return (struct attn_problem){.batch = shapes[i].batch,
                                 .heads = shapes[i].heads,
                                 .kv_heads = shapes[i].kv_heads,
                                 .seqlen_q = shapes[i].q,
                                 .seqlen_k = shapes[i].k,
                                 .head_dim = shapes[i].d,
                                 .causal = causal,
                                 .fp8_scale = (enum fp8_scale)scale};
}

// The mean of the V that a query sees, or that of its target: rounded once.
static double exact_O(const struct fp8_case *c, filling *value, uint64_t i) {
    const uint64_t d = (uint64_t)c->p.head_dim, keys = (uint64_t)c->p.seqlen_k;
    struct where at = where_is(c, Q, i);
    const float *V_head = c->x[V] + (uint64_t)(at.head / (c->p.heads / c->p.kv_heads)) * keys * d;
    int seen = attn_visible_keys(&c->p, at.row);
    double sum = 0;
    if (seen && value == one_hot) return (double)V_head[(uint64_t)target(c, at.row) * d + i % d];
    for (int j = 0; j < seen; j++) sum += (double)V_head[(uint64_t)j * d + i % d];
    return seen ? sum / seen : 0;
}

static void expect_exact(struct attn_problem p, filling *value) {
    struct fp8_case c = new_case(p);
    fill(&c, value);
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        uint64_t wrong = 0;
        if (!is_asked_for(k) || !run(k, &c)) continue;
        for (uint64_t e = 0; e < c.size[Q]; e++) {
            double right = exact_O(&c, value, e);
            wrong += value == one_hot ? !((double)c.O[e] == right)
                                      : !(fabs((double)c.O[e] - right) <= 0x1.01p-8 * fabs(right));
        }
        cr_expect_eq(wrong, 0, "--kernel %s %s: %llu elements are not exact", k->name,
                     name_of(&c.p), (unsigned long long)wrong);
        for (uint64_t row = 0; row < attn_rows(&c.p); row++)
            if (!attn_visible_keys(&c.p, (int)(row % (uint64_t)p.seqlen_q)))
                cr_expect(c.LSE[row] == -INFINITY, "--kernel %s %s: LSE of a row without keys",
                          k->name, name_of(&c.p));
    }
    free_case(&c);
}

Test(step06_fp8, equal_logits_give_the_mean) {
    for (int i = 0; i < 2 * SHAPES; i++) expect_exact(shape(i / 2, i % 2, i % 3), equal_logits);
}

Test(step06_fp8, one_hot_gives_a_row_of_V) {
    for (int i = 0; i < 2 * SHAPES; i++) {
        struct attn_problem p = shape(i / 2, i % 2, i % 3);
        p.scale = 20;
        expect_exact(p, one_hot);
    }
}

// ---- P has to stay below 448 --------------------------------------------------------------------

// The first 192 keys come after the others, and their logits are larger: by 2^growth, as weights.
// Nothing but rounding may happen to them.
static float grown(const struct fp8_case *c, int x, struct where at) {
    (void)c;
    if (x == V) return at.row < 192;
    return at.column ? 0 : x == Q || at.row < 192 ? 448 : 416;
}

Test(step06_fp8, weights_grow_without_being_cut) {
    for (int growth = 1; growth <= 24; growth++) // in units of 0.1
        expect_all_right((struct attn_problem){.batch = 1,
                                               .heads = 1,
                                               .kv_heads = 1,
                                               .seqlen_q = 3,
                                               .seqlen_k = 384,
                                               .head_dim = growth % 2 ? 128 : 64,
                                               .scale = (float)(growth * 0.1 * log(2) / 448 / 32)},
                         grown);
}

// ---- the same bits in every run -----------------------------------------------------------------

Test(step06_fp8, runs_give_the_same_bits) {
    struct fp8_case c = new_case((struct attn_problem){.batch = 1,
                                                       .heads = 3,
                                                       .kv_heads = 1,
                                                       .seqlen_q = 150,
                                                       .seqlen_k = 150,
                                                       .head_dim = 64,
                                                       .causal = true,
                                                       .sm_count = 2});
    float *O = malloc(c.size[Q] * sizeof(float));
    fill(&c, any_normal);
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        if (!is_asked_for(k) || !run(k, &c)) continue;
        memcpy(O, c.O, c.size[Q] * sizeof(float));
        run(k, &c);
        cr_expect(!memcmp(O, c.O, c.size[Q] * sizeof(float)), "--kernel %s", k->name);
    }
    free(O);
    free_case(&c);
}

// ---- what rung 8 is for -------------------------------------------------------------------------

static float positive_V(const struct fp8_case *c, int x, struct where at) {
    (void)c, (void)at;
    return x == V ? fabsf(normal()) : 1;
}

// The largest error of an element, in units of its value, if sums are cut to 14 bits.
static double relative_error(const char *kernel, struct fp8_case *c) {
    const uint64_t d = (uint64_t)c->p.head_dim;
    static struct row_of_O r;
    double most = 0;
    cr_assert(run(kernel_named(kernel), c));
    for (uint64_t row = 0; row < attn_rows(&c->p); row++) {
        exact_row(c, row, 0, &r);
        for (uint64_t e = 0; e < d; e++)
            most = fmax(most, fabs((double)c->O[row * d + e] / r.O[e] - 1));
    }
    return most;
}

// The accumulator of rung 7 grows with the keys, and what is added to it is cut to its 14 bits.
// That of rung 8 never has more than the sum of a tile.
Test(step06_fp8, sums_of_14_bits) {
    char why[300];
    if (!machine.simulated || !kernel_named("fp8") || !kernel_named("fp8-two-level")) return;
    cr_assert(
        machine_open(&(struct machine_options){.fp8_14_bits = true}, &machine, why, sizeof why));
    double error[2][2];
    for (int i = 0; i < 2; i++) {
        struct fp8_case c = new_case((struct attn_problem){.batch = 1,
                                                           .heads = 1,
                                                           .kv_heads = 1,
                                                           .seqlen_q = 2,
                                                           .seqlen_k = i ? 3000 : 300,
                                                           .head_dim = 64});
        fill(&c, positive_V);
        for (int x = Q; x <= V; x++) quantise_on_host(&c, x);
        error[0][i] = relative_error("fp8", &c);
        error[1][i] = relative_error("fp8-two-level", &c);
        free_case(&c);
    }
    // Rounding of O to bf16 is 2^-8 at most.
    cr_expect(error[0][0] < 0x1p-7 && error[1][0] < 0x1p-7, "%g, %g", error[0][0], error[1][0]);
    cr_expect(error[1][1] < 0x1p-7, "%g", error[1][1]);
    cr_expect(error[0][1] > 4 * error[1][1], "%g, %g", error[0][1], error[1][1]);
}

// ---- bytes, counted by hand, and what is refused ------------------------------------------------

// 2 heads of 256 rows of 64 elements: 4 blocks of rows for each tensor. Tiles of 192 queries and
// 128 keys: two of each a head.
Test(step06_fp8, bytes_of_one_shape) {
    const struct attn_kernel *k = kernel_named("fp8");
    if (!machine.simulated || !k || !is_asked_for(k)) return;
    struct fp8_case c = new_case((struct attn_problem){
        .batch = 1, .heads = 2, .kv_heads = 2, .seqlen_q = 256, .seqlen_k = 256, .head_dim = 64});
    const uint64_t elements = 2 * 256 * 64, sector = 32;
    fill(&c, any_normal);
    cr_assert(run(k, &c));
    // Q, K and V twice; 4 sectors of blocks' maxima, as they do not begin with a sector; a number
    // for each of a block's 4 warps; 3 scales of Q for a tile of queries, and one of K and V for
    // each of its tiles of keys.
    uint64_t load = 2 * 3 * elements * 2 + 4 * sector + 12 * 4 * sector + 4 * (3 + 2 * 2) * sector;
    cr_expect_eq(c.asked.load, load, "%llu bytes", (unsigned long long)c.asked.load);
    // Maxima of 12 blocks and 3 tensors; Q8, K8, V8; LSE.
    cr_expect_eq(c.asked.store, (12 + 3) * sector + 3 * elements + 2 * 256 * 4);
    cr_expect_eq(c.asked.atomic, 0);
    cr_expect_eq(c.asked.tma_load, 4 * (192 + 2 * 2 * 128) * 64);
    cr_expect_eq(c.asked.tma_store, elements * 2);
    free_case(&c);
    // With a mask, and 320 keys: the first 192 queries see 256 of them, two tiles, the others
    // three.
    c = new_case((struct attn_problem){.batch = 1,
                                       .heads = 1,
                                       .kv_heads = 1,
                                       .seqlen_q = 256,
                                       .seqlen_k = 320,
                                       .head_dim = 64,
                                       .causal = true});
    fill(&c, any_normal);
    cr_assert(run(k, &c));
    cr_expect_eq(c.asked.tma_load, (2 * 192 + 2 * (2 + 3) * 128) * 64);
    cr_expect_eq(c.asked.atomic, 2 * sector);
    free_case(&c);
}

Test(step06_fp8, refusals_say_why) {
    const struct attn_kernel *k = kernel_named("fp8-two-level");
    char why[300] = "";
    struct attn_problem p = {.seqlen_k = 1, .head_dim = 136, .smem = machine.smem};
    if (!k) return;
    cr_expect(!k->supports(&p, ATTN_FORWARD, why, sizeof why));
    cr_expect_str_eq(why, "d = 136: this rung takes 8 to 128; --kernel fp8 takes all");
    p.head_dim = 128, p.smem = 1000;
    cr_expect(!k->supports(&p, ATTN_FORWARD, why, sizeof why));
    cr_expect(strstr(why, "at d = 128, and this machine gives 1000; try"), "%s", why);
}

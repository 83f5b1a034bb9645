// wgmma.c - the matrix product of a warpgroup, from shared memory, in the background.
//
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". The 128 threads meet at each
// product. Its operands are looked at when it is started: whether they hold values that this
// warpgroup may see. The product itself is made in the wait for its group, after everybody else has
// gone as far as possible: until then the accumulators are NaN, and operands in shared memory must
// not change.

#include "dtype.h"
#include "sm90.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HERE __builtin_return_address(0)

// ---- one product --------------------------------------------------------------------------------

// Accumulators on their way: from the first product that was started on them to the last.
struct accumulators {
    float *D[128];
    int N, products;      // that are not complete
    float value[64][256]; // [row][column]
};

struct product {
    struct product *next;
    struct operand A, B; // A.name NULL: it came from registers
    enum sim_element element;
    bool accumulate;
    uint32_t group, started, step; // the time, and the timeline's
    struct sim_place place;
    struct accumulators *accumulators;
    uint16_t a[64][16], b[256][16]; // of e4m3, pairs
};

// Register i of a thread: row and column of D.
static void element_of(int thread, int i, int *row, int *column) {
    int warp = thread / 32, lane = thread % 32;
    *row = 16 * warp + lane / 4 + (i / 2 % 2 ? 8 : 0);
    *column = i / 4 * 8 + lane % 4 * 2 + i % 2;
}

static struct accumulators *take_accumulators(struct warpgroup *g, int N) {
    struct accumulators *a = sim_memory(malloc(sizeof *a));
    a->N = N;
    a->products = 0;
    for (int t = 0; t < 128; t++) {
        a->D[t] = ((const struct sim_wgmma *)g->argument[t])->D;
        for (int i = 0, row, column; i < N / 2; i++) {
            element_of(t, i, &row, &column);
            a->value[row][column] = a->D[t][i];
        }
        memset(a->D[t], 0xff, (size_t)N / 2 * sizeof(float));
    }
    return a;
}

static struct accumulators *accumulators_of(struct warpgroup *g, const struct sim_wgmma *first) {
    for (struct product *p = g->first; p; p = p->next)
        if (p->accumulators->D[0] == first->D) {
            if (p->accumulators->N == first->N) return p->accumulators;
            sim_fail(
                "wgmma: products of %d and of %d columns on the same accumulators, the first "
                "started at %s:%d and not waited for; only products of one shape may follow each "
                "other",
                p->accumulators->N, first->N, p->place.file, p->place.line);
        }
    return take_accumulators(g, first->N);
}

// A from registers: as the a of mma, 16 rows for each warp. For e4m3 each of its 16-bit elements is
// a pair: register 0 has bytes 4 t to 4 t + 3 of a row, register 2 those 16 further on.
static void gather_registers(const struct warpgroup *g, uint16_t (*to)[16]) {
    for (int t = 0; t < 128; t++) {
        const uint32_t *A = ((const struct sim_wgmma *)g->argument[t])->A;
        for (int i = 0; i < 8; i++) {
            int row = t / 32 * 16 + t % 32 / 4 + (i / 2 % 2 ? 8 : 0);
            int k = t % 4 * 2 + i % 2 + (i >= 4 ? 8 : 0);
            to[row][k] = (uint16_t)(A[i / 2] >> i % 2 * 16);
        }
    }
}

static bool start(struct warpgroup *g) {
    const struct sim_wgmma *first = g->argument[0];
    int bytes = first->element == SIM_E4M3 ? 1 : 2;
    struct operand B = {"B", first->smem_B, first->N, bytes, first->B_mn_major};
    struct operand A = {first->A ? NULL : "A", first->smem_A, 64, bytes, first->A_mn_major};
    operand_inspect(g, &B, first->pc);
    if (A.name) operand_inspect(g, &A, first->pc);
    struct accumulators *accumulators = accumulators_of(g, first);
    struct product *p = sim_memory(calloc(1, sizeof *p));
    p->A = A;
    p->B = B;
    p->element = first->element;
    p->accumulate = first->accumulate;
    p->place = g->place;
    p->group = g->groups;
    p->step = sim_worker->step;
    p->started = sim_worker->clock++; // what later products read is read later
    p->accumulators = accumulators;
    accumulators->products++;
    operand_gather(&B, p->b);
    if (A.name)
        operand_gather(&A, p->a);
    else
        gather_registers(g, p->a);
    *(g->last ? &g->last->next : &g->first) = p;
    g->last = p;
    return true;
}

// ---- completing one -----------------------------------------------------------------------------

static int depth(const struct product *p) { return p->element == SIM_E4M3 ? 32 : 16; }

// A row of an operand.
static void convert(enum sim_element element, const uint16_t from[16], double to[32]) {
    for (int i = 0; i < 16; i++) {
        if (element == SIM_FP16) to[i] = (double)fp16_to_float(from[i]);
        if (element == SIM_BF16) to[i] = (double)bf16_to_float(from[i]);
        if (element == SIM_E4M3) {
            to[2 * i] = (double)e4m3_to_float((uint8_t)from[i]);
            to[2 * i + 1] = (double)e4m3_to_float((uint8_t)(from[i] >> 8));
        }
    }
}

// As for mma (tensor.c): exact products. How many of them the hardware adds at once is not known to
// us; here all 16 (of e4m3 32) and the accumulator, with one rounding. One row of D, its columns
// side by side, so that the compiler makes vector instructions of it.
static void add_products(const double *a, double (*b)[256], int depth, int columns, double *sum) {
    for (int k = 0; k < depth; k++)
        for (int n = 0; n < columns; n += 8)
            for (int i = n; i < n + 8; i++) sum[i] += a[k] * b[k][i];
}

// e4m3 with sim_options.fp8_14_bits: a model of what others have measured on Hopper, not NVIDIA's
// word. DeepSeek-V3's report (arXiv:2412.19437, 3.5.2) finds that the products are shifted to the
// largest exponent among them and that 14 bits of each are kept; SageAttention2 (arXiv:2411.10958)
// that the accumulator has 1 + 8 + 13 bits: sign, exponent, fraction. So here each product and the
// accumulator is cut, towards zero, to a multiple of 2^(e - 13), where 2^e is the largest power of
// two in any of them; then they are added exactly, and the sum, too, is cut to 14 bits.
static double add_in_14_bits(const double products[32], double d) {
    double largest = fabs(d), whole = d;
    for (int k = 0; k < 32; k++) {
        largest = fmax(largest, fabs(products[k]));
        whole += products[k];
    }
    if (largest == 0 || isinf(largest)) return whole; // there is nothing to cut
    int unit = ilogb(largest) - 13;
    double units = ldexp(1, -unit), sum = trunc(d * units);
    for (int k = 0; k < 32; k++) sum += trunc(products[k] * units);
    int more = sum == 0 || isnan(sum) ? 0 : ilogb(sum) - 13; // bits that it has too many
    if (more > 0) sum = ldexp(trunc(ldexp(sum, -more)), more);
    return ldexp(sum, unit);
}

static void multiply(struct product *p) {
    bool in_14_bits = p->element == SIM_E4M3 && sim_worker->fp8_14_bits;
    double(*b)[256] = sim_worker->sm90->converted, a[32], sum[256], products[32];
    for (int n = 0; n < p->B.rows; n++) {
        convert(p->element, p->b[n], a);
        for (int k = 0; k < depth(p); k++) b[k][n] = a[k];
    }
    for (int m = 0; m < 64; m++) {
        float *d = p->accumulators->value[m];
        convert(p->element, p->a[m], a);
        for (int n = 0; n < p->B.rows; n++) sum[n] = p->accumulate ? (double)d[n] : 0;
        if (!in_14_bits) add_products(a, b, depth(p), p->B.rows, sum);
        for (int n = 0; n < p->B.rows && in_14_bits; n++) {
            for (int k = 0; k < 32; k++) products[k] = a[k] * b[k][n];
            sum[n] = add_in_14_bits(products, sum[n]);
        }
        for (int n = 0; n < p->B.rows; n++) d[n] = (float)sum[n];
    }
}

// ---- registers that belong to a product ---------------------------------------------------------

// Arrays of a thread that wgmma has been given. Stores to them between a fence and a product are
// noticed in two ways: the compiler's hooks show them (memory.c; clang instruments only some
// accesses to local arrays), and the values are no longer those that the fence saw.
enum { MAX_ARRAYS = 32 };
struct array {
    uintptr_t start;
    uint32_t bytes, stored_pc; // where it was stored to since the last fence; 0: nowhere
    int products;              // under way
    struct sim_place place;    // of the last
    bool fenced;               // `value` is what the last fence saw
    unsigned char value[512];
};
struct registers {
    int arrays;
    struct array array[MAX_ARRAYS];
};

static struct array *array_at(struct thread *t, const void *p, size_t bytes) {
    if (!t->registers) t->registers = sim_memory(calloc(1, sizeof *t->registers));
    struct registers *r = t->registers;
    for (int i = 0; i < r->arrays; i++)
        if (r->array[i].start == (uintptr_t)p && r->array[i].bytes == bytes) return &r->array[i];
    int i = 0; // when all places are taken, the first that is not in use
    while (i < r->arrays && (r->arrays < MAX_ARRAYS || r->array[i].products)) i++;
    if (i == MAX_ARRAYS) i = 0;
    if (i == r->arrays) r->arrays++;
    r->array[i] = (struct array){.start = (uintptr_t)p, .bytes = (uint32_t)bytes};
    return &r->array[i];
}

void wgmma_touch(struct thread *t, uintptr_t address, unsigned size, int kind, uint32_t pc) {
    for (int i = 0; i < t->registers->arrays; i++) {
        struct array *a = &t->registers->array[i];
        if (address + size <= a->start || address >= a->start + a->bytes) continue;
        if (a->products)
            sim_fail(
                "accumulators in use: %s at %s, and the wgmma that was started at %s:%d may still "
                "write them; wgmma_wait() for its group first",
                memory_verb(kind), symbols_place(pc), a->place.file, a->place.line);
        if (kind != SIM_LOAD) a->stored_pc = pc;
    }
}

static void fence_array(struct array *a) {
    a->stored_pc = 0;
    bool gone = a->start < (uintptr_t)__builtin_frame_address(0); // its function has returned
    a->fenced = !a->products && !gone;
    if (a->fenced) memcpy(a->value, (const void *)a->start, a->bytes);
}

// `used`: the product depends on the values, so the array must have held them at the fence.
static void expect_fenced(const struct thread *t, const struct array *a, const char *what,
                          bool used, struct sim_place place) {
    if (a->products) return; // follows another product on the same accumulators
    bool changed = used && a->fenced && memcmp(a->value, (const void *)a->start, a->bytes);
    if (!t->wgmma_fenced)
        sim_fail("wgmma_fence() missing: before the first wgmma (at %s:%d) on registers, and again "
                 "after each wait",
                 place.file, place.line);
    if (a->stored_pc || changed)
        sim_fail(
            "wgmma_fence() missing: registers of %s were written%s%s, and the wgmma at %s:%d might "
            "see what was in them before",
            what, a->stored_pc ? " at " : " after the last fence",
            a->stored_pc ? symbols_place(a->stored_pc) : "", place.file, place.line);
}

static const unsigned char poison[4] = {0xff, 0xff, 0xff, 0xff}; // what take_accumulators left

static void write_back(struct warpgroup *g, struct product *p) {
    struct accumulators *a = p->accumulators;
    for (int t = 0; t < 128; t++) {
        struct thread *thread = &sim_worker->thread[128 * g->number + t];
        if ((char *)a->D[t] < (char *)thread->fiber.stack_pointer && thread != sim_worker->self)
            sim_fail_at(
                thread,
                "accumulators gone: the array given to wgmma at %s:%d no longer exists when its "
                "wait comes",
                p->place.file, p->place.line);
        for (int i = 0, row, column; i < a->N / 2; i++) {
            if (memcmp(&a->D[t][i], poison, sizeof poison))
                sim_fail_at(
                    thread,
                    "accumulators in use: written while the wgmma that was started at %s:%d "
                    "could still write them; wgmma_wait() for its group first",
                    p->place.file, p->place.line);
            element_of(t, i, &row, &column);
            a->D[t][i] = a->value[row][column];
        }
        array_at(thread, a->D[t], (size_t)a->N / 2 * sizeof(float))->products = 0;
    }
    free(a);
}

static void complete(struct warpgroup *g) {
    struct product *p = g->first;
    if (p->A.name) operand_expect_unchanged(g, &p->A, p->a, p->place);
    operand_expect_unchanged(g, &p->B, p->b, p->place);
    multiply(p);
    char what[40];
    snprintf(what, sizeof what, "m64n%dk%d", p->B.rows, depth(p));
    timeline_add("tensor cores", g->number, "product", p->step, what, p->place);
    if (--p->accumulators->products == 0) write_back(g, p);
    g->first = p->next;
    if (!g->first) g->last = NULL;
    free(p);
}

// From now on its threads know that what their tensor cores read before the oldest product under
// way was started has been read.
static void learn(const struct warpgroup *g) {
    struct worker *w = sim_worker;
    uint32_t time = g->first ? g->first->started : ++w->clock;
    for (int i = 0; i < 128; i++) {
        struct thread *t = &w->thread[128 * g->number + i];
        order_learn_of(t->known, WGMMA_AGENT + g->number, time);
        t->wgmma_fenced = false;
    }
}

bool wgmma_complete(struct worker *w) {
    for (int i = 0; i < WARPGROUPS; i++) {
        struct warpgroup *g = &w->sm90->warpgroup[i];
        if (!g->wait_until) continue;
        while (g->first && g->first->group < g->wait_until) complete(g);
        g->wait_until = 0;
        learn(g);
        warpgroup_go_on(g);
        return true;
    }
    return false;
}

// ---- what kernels call --------------------------------------------------------------------------

void sim_wgmma_fence(void) {
    struct thread *t = sim_worker->self;
    sm90_use();
    t->wgmma_fenced = true;
    for (int i = 0; t->registers && i < t->registers->arrays; i++)
        fence_array(&t->registers->array[i]);
}

void sim_wgmma_start(struct sim_wgmma *mine, struct sim_place place) {
    struct thread *t = sim_worker->self;
    sm90_use();
    mine->pc = symbols_pc(HERE);
    if (mine->A) {
        struct array *A = array_at(t, mine->A, 16);
        expect_fenced(t, A, "A", false, place);
    }
    struct array *D = array_at(t, mine->D, (size_t)mine->N / 2 * sizeof(float));
    expect_fenced(t, D, "the accumulators", mine->accumulate, place);
    D->products++;
    D->place = place;
    warpgroup_meet(start, mine, mine->element == SIM_E4M3 ? "wgmma_m64k32()" : "wgmma_m64k16()",
                   place);
}

static bool commit(struct warpgroup *g) {
    g->groups++;
    return true;
}
void sim_wgmma_commit(struct sim_place place) {
    warpgroup_meet(commit, NULL, "wgmma_commit()", place);
}

static bool wait_for_groups(struct warpgroup *g) {
    uint32_t pending = *(uint32_t *)g->argument[0];
    uint32_t end = g->groups > pending ? g->groups - pending : 0;
    if (!end) return true;
    g->wait_until = end;
    return false;
}
void sim_wgmma_wait(int pending, struct sim_place place) {
    uint32_t groups = (uint32_t)pending;
    warpgroup_meet(wait_for_groups, &groups, "wgmma_wait()", place);
}

// The wait has been told of these accumulators, so the program is going to use them.
void sim_wgmma_expect_complete(const float *D, struct sim_place place) {
    const struct registers *r = sim_worker->self->registers;
    for (int i = 0; r && i < r->arrays; i++)
        if (r->array[i].start == (uintptr_t)D && r->array[i].products)
            sim_fail("wait too short: wgmma_wait() at %s:%d leaves the group pending in which the "
                     "product of %s:%d is, on the accumulators that it is given",
                     place.file, place.line, r->array[i].place.file, r->array[i].place.line);
}

void wgmma_thread_exits(struct thread *t) {
    struct warpgroup *g = &sim_worker->sm90->warpgroup[t->id / 128];
    if (g->first)
        sim_fail(
            "wgmma not waited for: the product that was started at %s:%d is under way when the "
            "thread exits",
            g->first->place.file, g->first->place.line);
}

void wgmma_forget(struct sm90 *s) {
    for (int i = 0; i < WARPGROUPS; i++) {
        struct warpgroup *g = &s->warpgroup[i];
        for (struct product *p = g->first, *next; p; p = next) {
            next = p->next;
            if (--p->accumulators->products == 0) free(p->accumulators);
            free(p);
        }
        g->first = g->last = NULL;
    }
}

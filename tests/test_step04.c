// test_step04.c - what step04 promises beyond right results: sums over the heads of a group, the
// same bits in every run, memory of O(N), the least shared memory; and that its gradients train.
//
// The kernel is looked up by name and asked through the contract (attn.h), as the harness does. The
// programs are those of $BUILD/sim (default build/sim).
#include "../common/inputs.h"
#include "../common/machine.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static struct machine machine;

static void open_machine(void) {
    char why[300];
    cr_assert(machine_open(&(struct machine_options){0}, &machine, why, sizeof why), "%s", why);
}

TestSuite(step04, .init = open_machine);

// NULL if it is not linked in: a program with a fault planted in it has the kernels of one step.
static const struct attn_kernel *recompute(void) {
    for (int i = 0; i < attn_kernel_count(); i++)
        if (!strcmp(attn_kernel_at(i)->name, "recompute")) return attn_kernel_at(i);
    return NULL;
}

static struct attn_problem problem(int heads, int kv_heads, int seqlen_q, int seqlen_k, int d,
                                   size_t smem) {
    return (struct attn_problem){.batch = 1,
                                 .heads = heads,
                                 .kv_heads = kv_heads,
                                 .seqlen_q = seqlen_q,
                                 .seqlen_k = seqlen_k,
                                 .head_dim = d,
                                 .causal = true,
                                 .scale = 1 / sqrtf((float)d),
                                 .smem = smem ? smem : machine.smem,
                                 .sm = machine.sm,
                                 .sm_count = machine.sm_count};
}

// ---- both passes on given inputs ----------------------------------------------------------------

static float *copy_of(const float *x, uint64_t count) {
    float *copy = malloc(count * sizeof *copy);
    memcpy(copy, x, count * sizeof *copy);
    return copy;
}

static float *upload(const char *name, const float *x, uint64_t count) {
    float *device = machine_alloc(name, count * sizeof *device);
    machine_write(device, x, count * sizeof *device);
    return device;
}

static float *blank(const char *name, uint64_t count) {
    float *device = machine_alloc(name, count * sizeof *device);
    machine_poison(device, count * sizeof *device);
    return device;
}

static float *download(float *device, uint64_t count) {
    float *x = malloc(count * sizeof *x);
    machine_read(x, device, count * sizeof *x);
    machine_free(device);
    return x;
}

struct gradients {
    float *dQ, *dK, *dV; // on the host
    uint64_t conflicts;  // of both passes
    uint64_t wavefronts; // likewise; 0 unless the machine was opened with a profile
};

static void run(void (*pass)(const struct attn_problem *, const struct attn_tensors *),
                const struct attn_problem *p, const struct attn_tensors *t, struct gradients *g) {
    static struct measurement m;
    machine_run(&(struct machine_work){pass, p, t}, &m);
    cr_assert_str_empty(m.error, "%s", m.error);
    g->conflicts += m.bank_conflicts;
    struct profile_line *lines;
    int count = machine_profile(&lines);
    for (int i = 0; i < count; i++)
        if (lines[i].shared) g->wavefronts += lines[i].cost;
    free(lines);
}

static struct gradients train_once(const struct attn_problem *p, const struct inputs *in) {
    const struct attn_kernel *k = recompute();
    uint64_t q = attn_q_elements(p), kv = attn_kv_elements(p);
    struct attn_buffer buffer[ATTN_MAX_BUFFERS];
    struct attn_tensors t = {.O = blank("O", q), .LSE = blank("LSE", attn_rows(p))};
    float *Q = upload("Q", in->Q, q), *K = upload("K", in->K, kv), *V = upload("V", in->V, kv);
    float *dO = upload("dO", in->dO, q);
    t.Q = Q, t.K = K, t.V = V, t.dO = dO;
    t.dQ = blank("dQ", q), t.dK = blank("dK", kv), t.dV = blank("dV", kv);
    for (int i = k->buffers(p, buffer) - 1; i >= 0; i--)
        t.buffer[i] = blank(buffer[i].name, buffer[i].bytes / sizeof(float));
    struct gradients g = {0};
    run(k->forward, p, &t, &g);
    run(k->backward, p, &t, &g);
    g.dQ = download(t.dQ, q), g.dK = download(t.dK, kv), g.dV = download(t.dV, kv);
    void *rest[] = {Q, K, V, dO, t.O, t.LSE, t.buffer[0]};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) machine_free(rest[i]);
    return g;
}

static void free_gradients(struct gradients *g) { free(g->dQ), free(g->dK), free(g->dV); }

static struct inputs make(const struct attn_problem *p) {
    struct inputs in;
    char why[300];
    cr_assert(inputs_make(p, DATA_NORMAL, 7, true, &in, why, sizeof why), "%s", why);
    return in;
}

// ---- heads that share keys and values -----------------------------------------------------------

// [2, Nk, d] to [6, Nk, d]: each key/value head three times.
static float *repeated(const float *x, uint64_t head) {
    float *out = malloc(6 * head * sizeof *out);
    for (uint64_t h = 0; h < 6; h++) memcpy(out + h * head, x + h / 3 * head, head * sizeof *out);
    return out;
}

static void expect_sum_of_three(const char *name, const float *shared, const float *each,
                                uint64_t head) {
    for (uint64_t i = 0; i < 2 * head; i++) {
        const float *first = each + i / head * 3 * head + i % head;
        double sum = (double)first[0] + first[head] + first[2 * head];
        cr_assert_float_eq(shared[i], sum, 1e-5, "%s, element %llu: %g, not %g", name,
                           (unsigned long long)i, shared[i], sum);
    }
}

// Six query heads on two key/value heads do what six on six do whose keys and values are the same
// three times; but dK and dV are then the sums of three.
Test(step04, gradients_of_a_shared_head_are_sums) {
    if (!recompute()) return;
    struct attn_problem shared = problem(6, 2, 37, 50, 40, 49152);
    struct attn_problem each = shared;
    each.kv_heads = 6;
    uint64_t head = 50 * 40;
    struct inputs in = make(&shared), more = {.Q = in.Q, .dO = in.dO};
    more.K = repeated(in.K, head), more.V = repeated(in.V, head);
    struct gradients few = train_once(&shared, &in), many = train_once(&each, &more);
    expect_sum_of_three("dK", few.dK, many.dK, head);
    expect_sum_of_three("dV", few.dV, many.dV, head);
    cr_expect_arr_eq(few.dQ, many.dQ, attn_q_elements(&shared) * sizeof(float), "dQ differs");
    free_gradients(&few), free_gradients(&many);
    free(more.K), free(more.V);
    inputs_free(&in);
}

// ---- the same bits, whatever it is
// ----------------------------------------------------------------

Test(step04, two_runs_give_the_same_bits) {
    if (!recompute()) return;
    struct attn_problem p = problem(4, 2, 100, 130, 64, 49152);
    struct inputs in = make(&p);
    struct gradients first = train_once(&p, &in), second = train_once(&p, &in);
    cr_expect_arr_eq(first.dQ, second.dQ, attn_q_elements(&p) * sizeof(float), "dQ differs");
    cr_expect_arr_eq(first.dK, second.dK, attn_kv_elements(&p) * sizeof(float), "dK differs");
    cr_expect_arr_eq(first.dV, second.dV, attn_kv_elements(&p) * sizeof(float), "dV differs");
    free_gradients(&first), free_gradients(&second);
    inputs_free(&in);
}

// What is far away has no part in it: a query whose dO is 0 moves nothing, and its dQ is 0.
Test(step04, a_row_without_a_gradient_changes_nothing) {
    if (!recompute()) return;
    struct attn_problem p = problem(1, 1, 40, 40, 16, 8192);
    struct inputs in = make(&p);
    float *Q = copy_of(in.Q, attn_q_elements(&p));
    memset(in.dO + 39 * 16, 0, 16 * sizeof(float)); // the last query, which sees all keys
    struct gradients one = train_once(&p, &in);
    for (int c = 0; c < 16; c++) in.Q[39 * 16 + c] = Q[c] + 1; // and whatever it is
    struct gradients other = train_once(&p, &in);
    for (int c = 0; c < 16; c++) cr_expect_eq(other.dQ[39 * 16 + c], 0);
    cr_expect_arr_eq(one.dK, other.dK, attn_kv_elements(&p) * sizeof(float), "dK differs");
    cr_expect_arr_eq(one.dV, other.dV, attn_kv_elements(&p) * sizeof(float), "dV differs");
    free_gradients(&one), free_gradients(&other);
    free(Q);
    inputs_free(&in);
}

// ---- tiles --------------------------------------------------------------------------------------

// The bytes of a block, counted once more: rows of Q and dO; of K, V, dK, dV; of P and dS with
// their padding; two numbers for each query of a tile.
static size_t bytes(int Br, int Bc, int d) {
    int pitch = Bc % 16 == 0 ? Bc + 8 : Bc;
    return 4 * (size_t)((2 * Br + 4 * Bc) * (d + 4) + 2 * Br * pitch + 2 * Br);
}

static int round_up_8(int x) { return (x + 7) / 8 * 8; }
static int min(int a, int b) { return a < b ? a : b; }

Test(step04, tiles_are_the_largest_that_fit) {
    static const int dims[] = {8, 40, 64, 128, 256};
    static const int lengths[][2] = {{1, 1}, {60, 60}, {1000, 1000}, {33, 1000}, {1000, 33}};
    static const size_t smem[] = {49152, 65536, 101376, 232448};
    if (!recompute()) return;
    for (int n = 0; n < 5 * 5 * 4; n++) {
        int d = dims[n % 5], Nq = lengths[n / 5 % 5][0], Nk = lengths[n / 5 % 5][1], Br, Bc;
        struct attn_problem p = problem(1, 1, Nq, Nk, d, smem[n / 25]);
        size_t taken;
        char text[200];
        recompute()->describe(&p, ATTN_BACKWARD, text, sizeof text);
        cr_assert_eq(sscanf(text, "Br %d, Bc %d take %zu of", &Br, &Bc, &taken), 3);
        cr_expect_eq(Br, min(min(Bc, d), round_up_8(Nq)), "%s", text);
        cr_expect_eq(taken, bytes(Br, Bc, d), "%s", text);
        cr_expect_leq(taken, p.smem);
        int Br_next = min(min(Bc + 8, d), round_up_8(Nq));
        cr_expect(Bc == round_up_8(Nk) || bytes(Br_next, Bc + 8, d) > p.smem, "%s", text);
    }
}

// ---- bank conflicts -----------------------------------------------------------------------------

// Trains once with each size of tile that this length has and that fits.
static void with_every_tile(int length, int d,
                            void (*expect)(const struct gradients *, const char *)) {
    for (int Bc = 8; recompute() && Bc <= round_up_8(length); Bc += 8) {
        struct attn_problem p = problem(1, 1, length, length, d, bytes(min(Bc, d), Bc, d));
        if (p.smem > machine.smem) break;
        struct inputs in = make(&p);
        struct gradients g = train_once(&p, &in);
        char what[80];
        snprintf(what, sizeof what, "%llu conflicts at d = %d, Bc = %d",
                 (unsigned long long)g.conflicts, d, Bc);
        expect(&g, what);
        free_gradients(&g);
        inputs_free(&in);
    }
}

static void expect_no_conflicts(const struct gradients *g, const char *what) {
    cr_expect_eq(g->conflicts, 0, "%s", what);
}

Test(step04, no_bank_conflicts) {
    if (!machine.simulated) return;
    for (int d = 64; d <= 128; d += 64) with_every_tile(72, d, expect_no_conflicts);
}

static void expect_few_conflicts(const struct gradients *g, const char *what) {
    cr_expect_leq(100 * g->conflicts, 5 * g->wavefronts, "%s, in %llu wavefronts", what,
                  (unsigned long long)g->wavefronts);
}

// No pitch avoids all where a row is no multiple of 128 bytes: see tests/test_step03.c.
Test(step04, few_bank_conflicts_at_an_uneven_d) {
    char why[300];
    struct machine_options profile = {.profile = true};
    if (!machine.simulated) return;
    cr_assert(machine_open(&profile, &machine, why, sizeof why), "%s", why);
    for (int d = 40; d <= 72; d += 32) with_every_tile(72, d, expect_few_conflicts);
}

// ---- work and memory ----------------------------------------------------------------------------

// With a causal mask half of the tiles lie behind it. Those that straddle it are counted whole.
Test(step04, tiles_that_see_nothing_are_skipped) {
    if (!recompute()) return;
    struct attn_problem masked = problem(1, 1, 1000, 1000, 64, 49152), plain = masked;
    plain.causal = false;
    double half = (double)recompute()->model(&masked, ATTN_BACKWARD).load,
           all = (double)recompute()->model(&plain, ATTN_BACKWARD).load;
    cr_expect(0.5 < half / all && half / all < 0.55, "%g of %g", half, all);
}

Test(step04, needs_one_number_a_row_besides_the_tensors) {
    if (!recompute()) return;
    struct attn_problem p = problem(4, 2, 1000, 3000, 64, 0);
    struct attn_buffer buffer[ATTN_MAX_BUFFERS];
    cr_assert_eq(recompute()->buffers(&p, buffer), 1);
    cr_expect_eq(buffer[0].bytes, 4 * 1000 * sizeof(float));
    cr_expect_not(buffer[0].kept, "the forward leaves nothing but O and LSE");
    cr_expect_not(buffer[0].matrix);
}

// ---- the programs -------------------------------------------------------------------------------

struct output {
    int status;
    char out[1 << 15], err[1 << 10];
};

static void read_text(FILE *file, char *text, size_t size) {
    text[fread(text, 1, size - 1, file)] = '\0';
}

// Runs $BUILD/sim/NAME with these arguments.
static struct output *program(const char *arguments) {
    static struct output o; // large
    const char *build = getenv("BUILD");
    char command[600], name[] = "/tmp/test_step04_XXXXXX";
    int errors = mkstemp(name);
    cr_assert_geq(errors, 0);
    snprintf(command, sizeof command, "'%s'/sim/%s 2>%s", build ? build : "build", arguments, name);
    FILE *pipe = popen(command, "r"), *file = fdopen(errors, "r");
    cr_assert(pipe && file);
    read_text(pipe, o.out, sizeof o.out);
    int status = pclose(pipe);
    o.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    read_text(file, o.err, sizeof o.err);
    fclose(file);
    remove(name);
    return &o;
}

static int count(const char *text, const char *word) {
    int found = 0;
    for (; (text = strstr(text, word)); text++) found++;
    return found;
}

Test(programs_of_step04, both_passes_and_the_backward_alone) {
    struct output *o = program(
        "step04 -n 70 -H 4 --kv-heads 2 --causal --kernel recompute --repeat 3 --pass both");
    cr_expect_eq(o->status, 0, "%s%s", o->out, o->err);
    cr_expect_eq(count(o->out, "forward"), 1);
    cr_expect_eq(count(o->out, "  ok\n"), 2, "%s", o->out);
    o = program("step04 -n 70 -H 2 --kernel recompute --repeat 3 --pass backward --format csv");
    cr_expect_eq(o->status, 0, "%s%s", o->out, o->err);
    cr_expect_eq(count(o->out, ",backward,"), 1, "%s", o->out);
    cr_expect_eq(count(o->out, ",forward,"), 0, "%s", o->out);
}

Test(programs_of_step04, too_little_shared_memory_is_refused_with_the_least) {
    struct output *o =
        program("step04 -n 70 -d 64 --kernel recompute --pass backward --sram 13631");
    cr_expect_eq(o->status, 2);
    cr_expect_eq(count(o->err, "\n"), 1, "%s", o->err);
    cr_expect(strstr(o->err, "13631") && strstr(o->err, "13632") && strstr(o->err, "--sram"), "%s",
              o->err);
    o = program("step04 -n 70 -d 64 --kernel recompute --pass backward --sram 13632");
    cr_expect_eq(o->status, 0, "%s%s", o->out, o->err);
    cr_expect(strstr(o->out, "Br 8, Bc 8 take 13632 of 13632 bytes"), "%s", o->out);
}

// ---- training -----------------------------------------------------------------------------------

enum { STEPS = 150 };
struct curve {
    double loss[STEPS], right[STEPS];
};

// Reads the lines of one kernel; they are numbered from 1.
static void read_curve(const char *csv, const char *kernel, struct curve *out) {
    char line[40];
    for (int n = 1; n <= STEPS; n++) {
        snprintf(line, sizeof line, "\n%s,%d,", kernel, n);
        const char *at = strstr(csv, line);
        cr_assert_not_null(at, "no step %d of %s", n, kernel);
        cr_assert_eq(sscanf(at + strlen(line), "%lf,%lf\n", &out->loss[n - 1], &out->right[n - 1]),
                     2);
    }
}

static void read_committed_curve(const char *kernel, struct curve *out) {
    static char text[1 << 15];
    FILE *file = fopen("notes/results/sim_training.csv", "r");
    cr_assert_not_null(file);
    read_text(file, text, sizeof text);
    fclose(file);
    read_curve(text, kernel, out);
}

// What the chapter draws is what the program prints, to what another compiler or libm may change.
static void expect_committed(const char *kernel, const struct curve *now) {
    static struct curve then;
    read_committed_curve(kernel, &then);
    for (int n = 0; n < STEPS; n++)
        cr_expect_float_eq(now->loss[n], then.loss[n], 1e-4, "%s step %d: %g, %g", kernel, n + 1,
                           now->loss[n], then.loss[n]);
}

// Both kernels sum the same products, in other orders; so do the curves agree, to rounding. Over
// 100 steps we allow 1e-5 of a loss that begins at 2.8; they were 1e-6 apart, the last digit
// printed.
Test(training, is_the_same_with_both_kernels_and_as_committed) {
    static struct curve naive, tiled;
    struct output *o = program("train --csv");
    cr_assert_eq(o->status, 0, "%s", o->err);
    cr_expect_eq(strncmp(o->out, "kernel,step,loss,right\n", 23), 0);
    read_curve(o->out, "naive", &naive);
    read_curve(o->out, "recompute", &tiled);
    for (int n = 0; n < 100; n++)
        cr_expect_float_eq(naive.loss[n], tiled.loss[n], 1e-5, "step %d: %g, %g", n + 1,
                           naive.loss[n], tiled.loss[n]);
    cr_expect_float_eq(naive.loss[0], log(16), 0.1, "it begins at chance");
    cr_expect_lt(naive.loss[STEPS - 1], 0.02);
    cr_expect_lt(tiled.loss[STEPS - 1], 0.02);
    cr_expect_eq(tiled.right[STEPS - 1], 1, "%g", tiled.right[STEPS - 1]);
    expect_committed("naive", &naive);
    expect_committed("recompute", &tiled);
}

// Step05's kernel gets its inputs in bf16. We allow one unit in the last place that bf16 has for
// the loss at the start, 2.8; they were 0.0011 apart, where the loss falls fastest.
Test(training, in_16_bits_it_is_the_same_to_rounding) {
    static struct curve naive, fused;
    read_committed_curve("naive", &naive);
    struct output *o = program("train --csv --kernel fa2-fused");
    cr_assert_eq(o->status, 0, "%s", o->err);
    read_curve(o->out, "fa2-fused", &fused);
    for (int n = 0; n < STEPS; n++)
        cr_expect_float_eq(naive.loss[n], fused.loss[n], 1. / 64, "step %d: %g, %g", n + 1,
                           naive.loss[n], fused.loss[n]);
    cr_expect_eq(fused.right[STEPS - 1], 1, "%g", fused.right[STEPS - 1]);
}

Test(training, names_its_kernel_and_its_memory) {
    struct output *o = program("train --kernel recompute");
    cr_expect_eq(o->status, 0);
    cr_expect(strstr(o->out, "recompute: tensors 65920 bytes, workspace 384\n"), "%s", o->out);
    cr_expect_null(strstr(o->out, "naive"));
    o = program("train --kernel naive");
    cr_expect(strstr(o->out, "naive: tensors 65920 bytes, workspace 36864\n"), "%s", o->out);
    cr_expect_null(strstr(o->out, "recompute"));
}

Test(training, refuses_what_it_does_not_know) {
    static const char *const wrong[] = {"--kernel", "--kernel fused",   "--kernel ''", "--steps 4",
                                        "stray",    "--csv --kernel x", "--csv stray"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char arguments[80];
        snprintf(arguments, sizeof arguments, "train %s", wrong[i]);
        struct output *o = program(arguments);
        cr_expect_eq(o->status, 2, "%s", wrong[i]);
        cr_expect_str_empty(o->out, "%s", o->out);
        cr_expect_eq(count(o->err, "\n"), 1, "%s: %s", wrong[i], o->err);
        cr_expect(strstr(o->err, "--kernel recompute"), "%s", o->err);
    }
}

// train.c - do the gradients train? One attention layer learns to recall, by gradient descent.
//
// A sequence is a list of pairs (key, value), drawn anew at each step, and of queries, each of
// which repeats one of the keys; the answer is the value beside it. The rows of Q, K and V come
// from three tables, which are all that is learned. A row of O is taken as the 16 values' logits.
// For a kernel that does not compute in fp32 its inputs are rounded to bf16; the tables stay fp32.
// Run:     make train ARGS="--kernel naive"      or recompute; ARGS=--csv prints each step
//          make train ARGS="--kernel fa2-fused"  or fa2-deterministic, step05's
#include "dtype.h"
#include "machine.h"
#include "run.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 8, PAIRS = 20, QUERIES = 12, KEYS = 32, VALUES = 16, DIM = VALUES, STEPS = 150 };
static const float RATE = 20, START = 0.5f; // of descent; the tables start within -START .. START
enum { Q, K, V, INPUTS };
static float table[INPUTS][KEYS][DIM];
static int which[INPUTS][BATCH * PAIRS]; // row n of Q is row which[Q][n] of table[Q]
static int answer[BATCH * QUERIES];
static const int rows[INPUTS] = {[Q] = BATCH * QUERIES, [K] = BATCH * PAIRS, [V] = BATCH * PAIRS};
static float O[BATCH * QUERIES][DIM], copy[BATCH * PAIRS][DIM]; // O; copy: of any other tensor
static float loss, right; // of one step: the mean loss, and the share of right answers
static struct attn_tensors tensors;
static struct attn_problem problem = {.batch = BATCH,
                                      .heads = 1,
                                      .kv_heads = 1,
                                      .seqlen_q = QUERIES,
                                      .seqlen_k = PAIRS,
                                      .head_dim = DIM,
                                      .scale = 0.25};
enum { LITTLE = 6144 }; // shared memory of a block: so little that fp32 takes several tiles

static _Noreturn void stop(int status, const char *what, const char *why) {
    fprintf(stderr, "train: %s: %s\n", what, why);
    exit(status); // 1: a fault was found; 2: bad usage; 3: this machine cannot
}

static void *allocate(const char *name, size_t bytes) {
    void *memory = machine_alloc(name, bytes);
    if (!memory) stop(3, name, "there is no memory for it");
    return memory;
}

// Tensors of `count` rows, fp32 here and in the problem's type on the device.
static char packed[sizeof copy];
static void to_device(const void *device, float x[][DIM], int count) {
    dtype_pack(problem.dtype, *x, packed, (uint64_t)count * DIM);
    machine_write((void *)device, packed, count * DIM * attn_dtype_bytes(problem.dtype));
}

static void from_device(float x[][DIM], const void *device, int count) {
    machine_read(packed, device, count * DIM * attn_dtype_bytes(problem.dtype));
    dtype_unpack(problem.dtype, packed, *x, (uint64_t)count * DIM);
}

static uint64_t random_state;
static int draw(int below) { // a linear congruential generator: the same numbers everywhere
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)below);
}

static void draw_sequences(void) {
    for (int b = 0; b < BATCH; b++) {
        int *key = &which[K][b * PAIRS], *value = &which[V][b * PAIRS];
        int first = draw(KEYS), apart = 2 * draw(KEYS / 2) + 1; // odd, so that no key comes twice
        for (int j = 0; j < PAIRS; j++) key[j] = (first + j * apart) % KEYS;
        for (int j = 0; j < PAIRS; j++) value[j] = draw(VALUES);
        for (int i = b * QUERIES; i < (b + 1) * QUERIES; i++) {
            int j = draw(PAIRS);
            which[Q][i] = key[j], answer[i] = value[j];
        }
    }
}

// Sets loss (cross-entropy) and right. In place of O it leaves the loss's gradient.
static void grade(void) {
    float share = 1.f / (BATCH * QUERIES);
    loss = right = 0;
    for (int n = 0; n < BATCH * QUERIES; n++) {
        float *S = O[n], of_answer = S[answer[n]], m = of_answer, l = 0; // as in a softmax
        for (int v = 0; v < VALUES; v++) m = fmaxf(m, S[v]);
        for (int v = 0; v < VALUES; v++) l += expf(S[v] - m);
        for (int v = 0; v < VALUES; v++) S[v] = share * (expf(S[v] - m) / l - (v == answer[n]));
        loss += share * (logf(l) + m - of_answer);
        right += of_answer == m;
    }
    right /= BATCH * QUERIES;
}

static void run(void (*pass)(const struct attn_problem *, const struct attn_tensors *)) {
    static struct measurement m;
    machine_run(&(struct machine_work){pass, &problem, &tensors}, &m);
    if (m.error[0]) stop(1, "a fault", m.error);
}

static void step(const struct attn_kernel *kernel) {
    const void *tensor[] = {tensors.Q, tensors.K, tensors.V};
    const void *gradient[] = {tensors.dQ, tensors.dK, tensors.dV};
    draw_sequences();
    for (int x = Q; x <= V; x++) {
        for (int n = 0; n < rows[x]; n++) memcpy(copy[n], table[x][which[x][n]], sizeof *copy);
        to_device(tensor[x], copy, rows[x]);
    }
    run(kernel->forward);
    from_device(O, tensors.O, BATCH * QUERIES);
    grade();
    to_device(tensors.dO, O, BATCH * QUERIES);
    run(kernel->backward);
    for (int x = Q; x <= V; x++) {
        from_device(copy, gradient[x], rows[x]);
        for (int n = 0; n < rows[x]; n++)
            for (int c = 0; c < DIM; c++) table[x][which[x][n]][c] -= RATE * copy[n][c];
    }
}

static bool is_fp32(const struct attn_kernel *kernel) { return kernel->dtypes >> ATTN_FP32 & 1; }

static void must_run(const struct attn_kernel *kernel) {
    static struct result r; // large
    for (r.pass = ATTN_FORWARD; r.pass <= ATTN_BACKWARD; r.pass *= 2)
        if (!can_run(kernel, &problem, &r))
            stop(r.outcome == NOT_POSSIBLE ? 3 : 2, kernel->name, r.why);
}

static void train(const struct attn_kernel *kernel, const struct machine *machine, bool csv) {
    struct attn_buffer buffer[ATTN_MAX_BUFFERS];
    problem.dtype = is_fp32(kernel) ? ATTN_FP32 : ATTN_BF16;
    problem.smem = is_fp32(kernel) ? LITTLE : machine->smem;
    must_run(kernel);
    size_t workspace = 0, of_tensors = attn_compulsory_bytes(&problem, ATTN_BACKWARD); // each once
    int buffers = kernel->buffers(&problem, buffer);
    for (int i = 0; i < buffers; i++) {
        tensors.buffer[i] = allocate(buffer[i].name, buffer[i].bytes);
        workspace += buffer[i].bytes;
    }
    if (!csv) printf("%s: tensors %zu bytes, workspace %zu\n", kernel->name, of_tensors, workspace);
    random_state = 1;
    for (int x = Q; x <= V; x++)
        for (int n = 0; n < KEYS; n++)
            for (int c = 0; c < DIM; c++) table[x][n][c] = START * ((float)draw(2001) / 1000 - 1);
    for (int n = 1; n <= STEPS; n++) {
        step(kernel);
        const char *line = csv ? "%s,%d,%.7g,%.7g\n" : "%-9s  step %3d  loss %.4f  right %.3f\n";
        if (csv || n == 1 || n % 10 == 0) printf(line, kernel->name, n, loss, right);
    }
}

// NULL: no such kernel, or it has no backward.
static const struct attn_kernel *find(const char *name) {
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        if (!strcmp(name, k->name) && k->passes & ATTN_BACKWARD) return k;
    }
    return NULL;
}

int main(int argc, char **argv) {
    const char *name = NULL, *known = "not one of --kernel naive, --kernel recompute, "
                                      "--kernel fa2-deterministic, --kernel fa2-fused, --csv";
    struct machine machine;
    char why[200];
    bool csv = false;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--csv"))
            csv = true;
        else if (!strcmp(argv[i], "--kernel") && i + 1 < argc)
            name = argv[++i];
        else
            stop(2, argv[i], known);
    const struct attn_kernel *named = name ? find(name) : NULL;
    if (name && !named) stop(2, name, known);
    if (!machine_open(&(struct machine_options){.fast = true}, &machine, why, sizeof why))
        stop(3, "no machine", why);
    problem.sm = machine.sm, problem.sm_count = machine.sm_count;
    tensors.Q = allocate("Q", sizeof O), tensors.dQ = allocate("dQ", sizeof O);
    tensors.K = allocate("K", sizeof copy), tensors.dK = allocate("dK", sizeof copy);
    tensors.V = allocate("V", sizeof copy), tensors.dV = allocate("dV", sizeof copy);
    tensors.O = allocate("O", sizeof O), tensors.dO = allocate("dO", sizeof O);
    tensors.LSE = allocate("LSE", sizeof O / DIM); // one number for each row of O
    if (csv) puts("kernel,step,loss,right");
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        if (named ? k == named : is_fp32(k) && k->passes & ATTN_BACKWARD) train(k, &machine, csv);
    }
    if (fflush(stdout)) stop(3, "stdout", "cannot write; is the disk full?");
}

// train.c - do the gradients train? One attention layer learns to recall, by plain gradient
// descent.
//
// The task, associative recall: a sequence is a list of pairs (key, value), drawn anew at each
// step, and of queries, each of which repeats one of the keys; the answer is the value beside it.
// The rows of Q, K and V are looked up in three tables, which are all that is learned. The 16
// numbers in a row of O are taken as logits of the 16 values: softmax, cross-entropy.
//
//     build/sim/train                  with step00's kernels, then with step03's and step04's
//     build/sim/train --kernel naive   with one of them
//     build/sim/train --csv            each step: kernel,step,loss,right
#include "machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 8, PAIRS = 20, QUERIES = 12, KEYS = 32, VALUES = 16, DIM = VALUES, STEPS = 150 };
static const float RATE = 20, START = 0.5f; // of descent; the tables start within -START .. START

typedef float row[DIM];
enum { Q, K, V };
static struct {
    const char *name, *d_name;
    int count;                // rows of the tensor
    int which[BATCH * PAIRS]; // row n of the tensor is row which[n] of the table
    row table[KEYS], on_host[BATCH * PAIRS];
    void *tensor, *gradient; // on the machine
} in[] = {{.name = "Q", .d_name = "dQ", .count = BATCH * QUERIES},
          {.name = "K", .d_name = "dK", .count = BATCH * PAIRS},
          {.name = "V", .d_name = "dV", .count = BATCH * PAIRS}};
static row O[BATCH * QUERIES];
static int answer[BATCH * QUERIES];

// 6 KB of shared memory for a block: so little that even these short sequences take several tiles.
static struct attn_problem problem = {BATCH,         1,           1, QUERIES, PAIRS, DIM,
                                      .scale = 0.25, .smem = 6144};
static struct attn_tensors tensors;

static _Noreturn void stop(int status, const char *what, const char *why) {
    fprintf(stderr, "train: %s: %s\n", what, why);
    exit(status); // 1: a fault was found; 2: bad usage; 3: this machine cannot
}

// ---- the task -----------------------------------------------------------------------------------

static uint64_t random_state;
static int draw(int below) { // a linear congruential generator: the same numbers everywhere
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)below);
}

static void draw_sequences(void) {
    for (int b = 0; b < BATCH; b++) {
        int *key = in[K].which + b * PAIRS, *value = in[V].which + b * PAIRS;
        int first = draw(KEYS), apart = 2 * draw(KEYS / 2) + 1; // odd, so that no key comes twice
        for (int j = 0; j < PAIRS; j++)
            key[j] = (first + j * apart) % KEYS, value[j] = draw(VALUES);
        for (int i = b * QUERIES; i < (b + 1) * QUERIES; i++) {
            int j = draw(PAIRS);
            in[Q].which[i] = key[j], answer[i] = value[j];
        }
    }
}

// The mean loss, and the share of right answers. In place of O it leaves the loss's gradient.
static float grade(float *right) {
    float loss = 0, share = 1.f / (BATCH * QUERIES);
    *right = 0;
    for (int n = 0; n < BATCH * QUERIES; n++) {
        float *logit = O[n], of_answer = logit[answer[n]], sum = 0, largest = of_answer;
        for (int v = 0; v < VALUES; v++) largest = fmaxf(largest, logit[v]);
        for (int v = 0; v < VALUES; v++) sum += expf(logit[v] - largest);
        for (int v = 0; v < VALUES; v++)
            logit[v] = share * (expf(logit[v] - largest) / sum - (v == answer[n]));
        loss += share * (logf(sum) + largest - of_answer);
        *right += of_answer == largest;
    }
    *right /= BATCH * QUERIES;
    return loss;
}

// ---- descent ------------------------------------------------------------------------------------

static void run(void (*pass)(const struct attn_problem *, const struct attn_tensors *)) {
    static struct measurement m;
    machine_run(&(struct machine_work){pass, &problem, &tensors}, &m);
    if (m.error[0]) stop(1, "a fault", m.error);
}

static float step(const struct attn_kernel *kernel, float *right) {
    draw_sequences();
    for (int x = Q; x <= V; x++) {
        for (int n = 0; n < in[x].count; n++)
            memcpy(in[x].on_host[n], in[x].table[in[x].which[n]], sizeof(row));
        machine_write(in[x].tensor, in[x].on_host, in[x].count * sizeof(row));
    }
    run(kernel->forward);
    machine_read(O, tensors.O, sizeof O);
    float loss = grade(right);
    machine_write((void *)tensors.dO, O, sizeof O);
    run(kernel->backward);
    for (int x = Q; x <= V; x++) {
        machine_read(in[x].on_host, in[x].gradient, in[x].count * sizeof(row));
        for (int n = 0; n < in[x].count; n++)
            for (int c = 0; c < DIM; c++)
                in[x].table[in[x].which[n]][c] -= RATE * in[x].on_host[n][c];
    }
    return loss;
}

static void *allocate(const char *name, size_t bytes) {
    void *memory = machine_alloc(name, bytes);
    return memory ? memory : (stop(3, name, "there is no memory for it"), NULL);
}

static void train(const struct attn_kernel *kernel, bool csv) {
    struct attn_buffer buffer[ATTN_MAX_BUFFERS];
    size_t bytes = 0, of_tensors = attn_compulsory_bytes(&problem, ATTN_BACKWARD); // each one once
    for (int i = kernel->buffers(&problem, buffer) - 1; i >= 0; bytes += buffer[i--].bytes)
        tensors.buffer[i] = allocate(buffer[i].name, buffer[i].bytes);
    if (!csv) printf("%s: tensors %zu bytes, workspace %zu\n", kernel->name, of_tensors, bytes);
    random_state = 1;
    for (int x = Q; x <= V; x++)
        for (int n = 0; n < KEYS * DIM; n++)
            in[x].table[n / DIM][n % DIM] = START * ((float)draw(2001) / 1000 - 1);
    for (int n = 1; n <= STEPS; n++) {
        float right, loss = step(kernel, &right);
        const char *line = csv ? "%s,%d,%.7g,%.7g\n" : "%-9s  step %3d  loss %.4f  right %.3f\n";
        if (csv || n == 1 || n % 10 == 0) printf(line, kernel->name, n, loss, right);
    }
}

int main(int argc, char **argv) {
    const char *name = NULL;
    char why[200];
    bool csv = false;
    for (int i = 1; i < argc; i++) {
        bool names = !strcmp(argv[i], "--kernel") && i + 1 < argc;
        if (names) name = argv[++i];
        csv |= !strcmp(argv[i], "--csv");
        if (names ? strcmp(name, "naive") && strcmp(name, "recompute") : strcmp(argv[i], "--csv"))
            stop(2, argv[i], "not one of --kernel naive, --kernel recompute, --csv");
    }
    struct machine machine;
    if (!machine_open(&(struct machine_options){.fast = true}, &machine, why, sizeof why))
        stop(3, "no machine", why);
    problem.sm = machine.sm, problem.sm_count = machine.sm_count;
    for (int x = Q; x <= V; x++) {
        in[x].tensor = allocate(in[x].name, in[x].count * sizeof(row));
        in[x].gradient = allocate(in[x].d_name, in[x].count * sizeof(row));
    }
    tensors.Q = in[Q].tensor, tensors.K = in[K].tensor, tensors.V = in[V].tensor;
    tensors.dQ = in[Q].gradient, tensors.dK = in[K].gradient, tensors.dV = in[V].gradient;
    tensors.O = allocate("O", sizeof O), tensors.dO = allocate("dO", sizeof O);
    tensors.LSE = allocate("LSE", sizeof O / DIM); // one number for each row of O
    if (csv) puts("kernel,step,loss,right");
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        if (name ? !strcmp(name, k->name) : k->passes & ATTN_BACKWARD) train(k, csv);
    }
    if (fflush(stdout)) stop(3, "stdout", "cannot write; is the disk full?");
    return 0;
}

// test_step06.c - what step06 promises beyond right results on the shapes of test_kernels.c: blocks
// that take many tiles of queries, in any order, rings that go round, groups of heads, and what it
// refuses.

#include "run.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct machine machine;

static void open_machine(void) {
    char why[300];
    cr_assert(machine_open(&(struct machine_options){0}, &machine, why, sizeof why), "%s", why);
    if (machine.sm != 90) cr_skip_test("this step needs a Hopper GPU, or the simulator");
}

TestSuite(step06, .init = open_machine);

// Only those that are linked in, and that KERNEL=name,name asks for, if it is set. FP8 has tests of
// its own.
static bool is_asked_for(const struct attn_kernel *k) {
    const char *asked = getenv("KERNEL");
    char list[300], name[60];
    snprintf(list, sizeof list, ",%s,", asked ? asked : k->name);
    snprintf(name, sizeof name, ",%s,", k->name);
    return strstr(list, name) && !strcmp(k->step, "step06_hopper_tma_fp8") &&
           !(k->dtypes >> ATTN_FP8 & 1);
}

// NULL: a program with a fault planted in it has not all kernels.
static const struct attn_kernel *kernel_named(const char *name) {
    for (int i = 0; i < attn_kernel_count(); i++)
        if (!strcmp(attn_kernel_at(i)->name, name)) return attn_kernel_at(i);
    return NULL;
}

// All kernels of the step, or only this one; the model's bytes are compared with those asked for,
// as always. What a kernel does not take is none of its faults. Returns the bytes that were asked
// for, in the simulator.
static struct attn_traffic expect_right(const char *only, struct attn_problem p,
                                        enum data_family family) {
    char why[300];
    struct attn_traffic asked = {0};
    struct prepared in;
    struct source source = {NULL, family, 42};
    p.dtype = p.causal ? ATTN_FP16 : ATTN_BF16;
    p.smem = machine.smem;
    p.sm = machine.sm;
    if (!p.sm_count) p.sm_count = machine.sm_count;
    cr_assert_eq(prepare(&p, ATTN_FORWARD, &source, &in, why, sizeof why), RAN_RIGHT, "%s", why);
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        if (!is_asked_for(k) || (only && strcmp(k->name, only))) continue;
        struct result r[2];
        run_kernel(k, &in, ATTN_FORWARD, 1, NULL, r);
        cr_expect(r->outcome == RAN_RIGHT || r->outcome == NOT_SUPPORTED,
                  "--kernel %s -b %d -H %d --kv-heads %d --seqlen-q %d --seqlen-k %d -d %d%s, "
                  "%d multiprocessors: %s",
                  k->name, p.batch, p.heads, p.kv_heads, p.seqlen_q, p.seqlen_k, p.head_dim,
                  p.causal ? " --causal" : "", p.sm_count, r->why);
        asked = r->measured.asked;
    }
    prepared_free(&in);
    return asked;
}

// The two rungs that take every shape, and many tiles with each block.
static const char *const last_rungs[] = {"fa3", "fa3-optimistic"};
enum { LAST_RUNGS = sizeof last_rungs / sizeof *last_rungs };

static bool takes_part(const char *name) {
    const struct attn_kernel *k = kernel_named(name);
    return k && is_asked_for(k);
}

// ---- longer than the shapes that all kernels are tested with ------------------------------------

// More tiles of keys than there are buffers, so that each is filled again; each tile with larger
// logits than the one before, or with one key more than queries, which only the last query of a
// tile sees in its last tile of keys.
Test(step06, rings_go_round) {
    for (int d = 64; d <= 128; d += 64) {
        struct attn_problem p = {.batch = 1, .heads = 1, .kv_heads = 1, .head_dim = d};
        p.seqlen_q = 150, p.seqlen_k = 600;
        expect_right(NULL, p, DATA_RISING);
        p.seqlen_q = 129, p.seqlen_k = 130, p.causal = true;
        expect_right(NULL, p, DATA_NORMAL);
        p.seqlen_q = 450, p.seqlen_k = 384; // the last tile of keys is full
        expect_right(NULL, p, DATA_RISING);
    }
}

// ---- bytes: whole boxes, and none that the mask hides -------------------------------------------

// Counted once more: each tile of queries loads itself and the tiles of keys up to the last key
// that its last query sees. A row is loaded in panels of 128 bytes, and each counts 4 sectors, or 5
// where every other row begins in the middle of a sector.
static uint64_t loaded(const struct attn_problem *p, int Br, int Bc) {
    uint64_t rows = 0;
    for (int first = 0; first < p->seqlen_q; first += Br) {
        int end = first + Br < p->seqlen_q ? first + Br : p->seqlen_q;
        int keys = p->causal ? end + p->seqlen_k - p->seqlen_q : p->seqlen_k;
        rows += (uint64_t)(Br + (keys > 0 ? 2 * ((keys + Bc - 1) / Bc) * Bc : 0));
    }
    int panels = p->head_dim <= 64 ? 1 : p->head_dim <= 128 ? 2 : 4; // padded with zeros
    return rows * (uint64_t)(p->heads * panels * (p->head_dim % 16 ? 5 : 4) * 32);
}

// O, once: of each row, the sectors that each panel touches.
static uint64_t stored(const struct attn_problem *p) {
    uint64_t sectors = 0, row_bytes = (uint64_t)p->head_dim * 2;
    for (uint64_t row = 0; row < (uint64_t)p->heads * (uint64_t)p->seqlen_q; row++)
        for (uint64_t byte = 0; byte < row_bytes; byte += 128) {
            uint64_t end = byte + 128 < row_bytes ? byte + 128 : row_bytes;
            sectors += (row * row_bytes + end - 1) / 32 - (row * row_bytes + byte) / 32 + 1;
        }
    return 32 * sectors;
}

Test(step06, hidden_tiles_are_not_loaded) {
    if (!machine.simulated) return;
    static const int lengths[][2] = {{300, 260}, {200, 384}, {300, 40}};
    for (int n = 0; n < 4; n++) {
        struct attn_problem p = {.batch = 1,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .seqlen_q = lengths[n % 3][0],
                                 .seqlen_k = lengths[n % 3][1],
                                 .head_dim = 64,
                                 .causal = n < 3};
        for (int i = 0; i < attn_kernel_count(); i++) {
            const struct attn_kernel *k = attn_kernel_at(i);
            if (!is_asked_for(k)) continue;
            uint64_t bytes = expect_right(k->name, p, DATA_NORMAL).tma_load;
            bool wide = !strcmp(k->name, "fa3-optimistic");
            int Br = wide ? 256 : !strcmp(k->name, "fa3") ? 192 : 128;
            cr_expect_eq(bytes, loaded(&p, Br, wide ? 64 : 128), "--kernel %s: %llu bytes", k->name,
                         (unsigned long long)bytes);
        }
    }
}

// Rows that begin in the middle of a sector, a second panel that has few columns, a fourth one that
// has none and is not stored at all.
static void expect_bytes(const char *name, int d, int Br, int Bc) {
    struct attn_problem p = {
        .batch = 1, .heads = 2, .kv_heads = 2, .seqlen_q = 67, .seqlen_k = 45, .head_dim = d};
    struct attn_traffic asked = expect_right(name, p, DATA_NORMAL);
    cr_expect_eq(asked.tma_load, loaded(&p, Br, Bc), "%s, d = %d: %llu bytes", name, d,
                 (unsigned long long)asked.tma_load);
    cr_expect_eq(asked.tma_store, stored(&p), "%s, d = %d: %llu bytes", name, d,
                 (unsigned long long)asked.tma_store);
}

Test(step06, rows_that_are_no_whole_panels) {
    for (int i = 0; i < LAST_RUNGS; i++) {
        if (!machine.simulated || !takes_part(last_rungs[i])) continue;
        int Br = i == 0 ? 192 : 256, Bc = i == 0 ? 128 : 64; // where d is padded to 64
        expect_bytes(last_rungs[i], 8, Br, Bc);
        expect_bytes(last_rungs[i], 40, Br, Bc);
        expect_bytes(last_rungs[i], 80, 128, 128);
        expect_bytes(last_rungs[i], 104, 128, 128);
        expect_bytes(last_rungs[i], 136, 128, 80);
    }
}

// ---- the last rungs: a block takes many tiles ---------------------------------------------------

// On one, two or three multiprocessors: as many blocks share 8 to 12 tiles.
Test(step06, blocks_take_one_tile_after_the_other) {
    static const int dims[] = {40, 128, 256};
    for (int i = 0; i < 6 * LAST_RUNGS; i++)
        expect_right(last_rungs[i / 6],
                     (struct attn_problem){.batch = 2,
                                           .heads = 2,
                                           .kv_heads = 1,
                                           .seqlen_q = 260,
                                           .seqlen_k = i % 6 < 3 ? 260 : 140,
                                           .head_dim = dims[i % 3],
                                           .causal = i % 2,
                                           .sm_count = 1 + i % 6 / 2},
                     DATA_RISING);
}

// Where d = 64, the optimistic rung cuts longer inputs as rung 5 cuts all.
Test(step06, long_inputs_have_a_tiling_of_their_own) {
    for (int causal = 0; causal < 2 && takes_part("fa3-optimistic"); causal++) {
        struct attn_problem p = {.batch = 1,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .seqlen_q = causal ? 4100 : 1100,
                                 .seqlen_k = causal ? 450 : 300,
                                 .head_dim = 64,
                                 .causal = causal,
                                 .sm_count = 2};
        uint64_t bytes = expect_right("fa3-optimistic", p, DATA_NORMAL).tma_load;
        if (machine.simulated)
            cr_expect_eq(bytes, loaded(&p, 192, 128), "%llu bytes", (unsigned long long)bytes);
    }
}

// A query that sees exactly so many whole tiles of keys, and none of the tile that comes first.
Test(step06, rows_without_a_key_in_the_first_tile) {
    for (int i = 0; i < 2 * LAST_RUNGS; i++)
        for (int d = 64; d <= 256; d *= 2) {
            int Bc = d == 256 ? 80 : 128, first = i % 2 * 64; // of a warpgroup
            expect_right(last_rungs[i / 2],
                         (struct attn_problem){.batch = 1,
                                               .heads = 1,
                                               .kv_heads = 1,
                                               .seqlen_q = 128,
                                               .seqlen_k = 128 + 2 * Bc - 1 - first,
                                               .head_dim = d,
                                               .causal = true},
                         DATA_NORMAL);
        }
}

// Of each row, the one key that counts is in another tile of keys than the first that comes, at
// least for some rows of every tile: every tile fails, and is done twice; O leaves once. With one
// block all of them follow each other; with as many blocks as tiles none has another to wait for.
static void expect_twice(int Nq, int Nk, int d, int sm_count) {
    struct attn_problem p = {.batch = 1,
                             .heads = 2,
                             .kv_heads = 1,
                             .seqlen_q = Nq,
                             .seqlen_k = Nk,
                             .head_dim = d,
                             .sm_count = sm_count};
    struct attn_traffic asked = expect_right("fa3-optimistic", p, DATA_ONE_HOT),
                        model = kernel_named("fa3-optimistic")->model(&p, ATTN_FORWARD);
    if (!machine.simulated) return;
    cr_expect_eq(asked.tma_load, 2 * model.tma_load, "d = %d: %llu", d,
                 (unsigned long long)asked.tma_load);
    cr_expect_eq(asked.store, 2 * model.store, "d = %d: %llu", d, (unsigned long long)asked.store);
    cr_expect_eq(asked.tma_store, model.tma_store, "d = %d: %llu", d,
                 (unsigned long long)asked.tma_store);
}

Test(step06, a_lost_bet_costs_a_second_time) {
    if (!takes_part("fa3-optimistic")) return;
    for (int d = 64; d <= 256; d *= 2)
        for (int sm_count = 1; sm_count <= 6; sm_count += 5) expect_twice(270, 140, d, sm_count);
}

// Of these few queries the first eight select a key of the tile that comes first, and of the others
// one does not: the second of a thread's two rows, whose first row is content.
Test(step06, one_row_is_enough_to_lose) {
    if (!takes_part("fa3-optimistic")) return;
    expect_twice(11, 113, 64, 1);
    expect_twice(10, 163, 128, 1);
    expect_twice(14, 103, 256, 1);
}

// Some tiles fail and others do not; logits of tens, and 24 times that: beyond what bf16 has.
Test(step06, bets_are_won_and_lost) {
    for (int i = 0; i < 8; i++)
        expect_right("fa3-optimistic",
                     (struct attn_problem){.batch = 1,
                                           .heads = 2,
                                           .kv_heads = 2,
                                           .seqlen_q = 200,
                                           .seqlen_k = i % 3 ? 260 : 330,
                                           .head_dim = i % 2 ? 128 : 64,
                                           .causal = i / 2 % 2,
                                           .scale = i < 4 ? 0 : 3,
                                           .sm_count = 1 + i % 3},
                     DATA_LARGE);
}

static void expect_groups_of(int heads, struct attn_problem p) {
    char text[160], words[60];
    snprintf(words, sizeof words, "groups of %d heads", p.causal ? heads : 1);
    for (int i = 0; i < LAST_RUNGS; i++) {
        if (!takes_part(last_rungs[i])) continue;
        kernel_named(last_rungs[i])->describe(&p, ATTN_FORWARD, text, sizeof text);
        cr_expect(strstr(text, words), "--kernel %s: '%s', not %s", last_rungs[i], text, words);
    }
}

// K and V of a head take 1 KB for each key at d = 256, and a multiprocessor's share of L2 is 512
// KB: so a group has heads that share one K and V, or two of those (the last one then fewer), or
// all six.
Test(step06, groups_of_heads) {
    static const int keys[] = {600, 256, 40}, heads[] = {2, 4, 6};
    for (int i = 0; i < 6; i++) {
        struct attn_problem p = {.batch = 1,
                                 .heads = 6,
                                 .kv_heads = 3,
                                 .seqlen_q = 140,
                                 .seqlen_k = keys[i % 3],
                                 .head_dim = 256,
                                 .causal = i < 3,
                                 .sm_count = 1};
        if (p.causal) expect_right("fa3", p, DATA_NORMAL);
        expect_groups_of(heads[i % 3], p);
    }
}

// With an L2 for all: at most 16 heads, 64 where d is small, and no K and V for two groups.
Test(step06, groups_are_not_too_large) {
    for (int i = 0; i < 4; i++)
        expect_groups_of(i == 0   ? 16
                         : i == 1 ? 64
                         : i == 2 ? 15
                                  : 96,
                         (struct attn_problem){.batch = 2,
                                               .heads = 96,
                                               .kv_heads = i < 2    ? 96
                                                           : i == 2 ? 32
                                                                    : 1,
                                               .seqlen_q = 100,
                                               .seqlen_k = 100,
                                               .head_dim = i == 1 ? 64 : 128,
                                               .causal = true,
                                               .sm_count = 132});
}

// Some tiles see no key, and some blocks have no other tile.
Test(step06, tiles_without_keys) {
    for (int sm_count = 1; sm_count <= 4; sm_count += 3)
        expect_right(NULL,
                     (struct attn_problem){.batch = 1,
                                           .heads = 2,
                                           .kv_heads = 1,
                                           .seqlen_q = 450,
                                           .seqlen_k = 60,
                                           .head_dim = 64,
                                           .causal = true,
                                           .sm_count = sm_count},
                     DATA_NORMAL);
}

// ---- what is refused ----------------------------------------------------------------------------

static void expect_refused(const char *name, struct attn_problem p, enum outcome outcome,
                           const char *words) {
    char why[300];
    struct prepared in;
    struct result r[2];
    const struct attn_kernel *k = kernel_named(name);
    struct source source = {NULL, DATA_NORMAL, 42};
    if (!k) return;
    cr_assert_eq(prepare(&p, ATTN_FORWARD, &source, &in, why, sizeof why), RAN_RIGHT, "%s", why);
    run_kernel(k, &in, ATTN_FORWARD, 1, NULL, r);
    cr_expect_eq(r->outcome, outcome, "--kernel %s: %s", name, r->why);
    cr_expect(strstr(r->why, words), "--kernel %s: '%s' does not say '%s'", name, r->why, words);
    prepared_free(&in);
}

Test(step06, refusals_say_why) {
    struct attn_problem p = {.batch = 1,
                             .heads = 1,
                             .kv_heads = 1,
                             .seqlen_q = 9,
                             .seqlen_k = 9,
                             .head_dim = 64,
                             .dtype = ATTN_BF16,
                             .smem = machine.smem,
                             .sm = machine.sm,
                             .sm_count = machine.sm_count};
    static const char *const on_the_way[] = {"tma-wgmma", "producer", "ping-pong", "overlap"};
    for (int i = 0; i < 4; i++) {
        p.head_dim = 96, p.sm = 90;
        expect_refused(on_the_way[i], p, NOT_SUPPORTED,
                       "d = 96: this rung takes 64 and 128; --kernel fa3 takes all");
        p.head_dim = 64, p.sm = 100; // wgmma is Hopper's alone
        expect_refused(on_the_way[i], p, NOT_POSSIBLE, "needs compute capability 9.0, this GPU");
    }
    expect_refused("fa3", p, NOT_POSSIBLE, "needs compute capability 9.0, this GPU has 10.0");
    p.sm = 80;
    expect_refused("fa3", p, NOT_POSSIBLE, "needs compute capability 9.0, this GPU has 8.0");
}

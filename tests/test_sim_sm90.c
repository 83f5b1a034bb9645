// test_sim_sm90.c - what the simulator says when the instructions of ptx_sm90.h are misused, and
// that it accuses nobody else. What they compute is tested in test_instructions_sm90.c.

#include "dtype.h"
#include "sim/sim.h"
#include "sim_sm90.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENTS = 512 * 64 };
static uint16_t *a;
static float *b;
static struct sim_counts counts;

static void setup(void) {
    a = sim_alloc("a", ELEMENTS * sizeof *a);
    b = sim_alloc("b", ELEMENTS * sizeof *a);
    for (int i = 0; i < ELEMENTS; i++) a[i] = fp16_from_float((float)(i % 7));
    sim_set_written(a, true);
}

TestSuite(sim_sm90, .init = setup);

static void run(const char *kernel) {
    sim_reset(&(struct sim_options){0});
    sim_poison(b);
    sim_sm90_run(kernel, a, b);
    sim_counts(&counts);
}

static void expect_fault(const char *kernel, const char *words) {
    run(kernel);
    char place[100];
    snprintf(place, sizeof place, "tests/sim_sm90.cu:%d", sim_sm90_line(kernel));
    const char *error = sim_error();
    cr_expect(!strncmp(error, kernel, strlen(kernel)), "%s: names the kernel first: '%s'", kernel,
              error);
    cr_expect(strstr(error, words), "%s: says '%s': '%s'", kernel, words, error);
    cr_expect(strstr(error, place), "%s: at %s: '%s'", kernel, place, error);
    cr_expect_null(strchr(error, '\n'), "one line");
}

Test(sim_sm90, mbarriers) {
    expect_fault("never_initialised", "no mbarrier: mbarrier_arrive()");
    expect_fault("used_before_the_barrier", "race in shared memory on smem + 65536: atomic");
    expect_fault("waited_for_before_the_barrier", "race in shared memory on smem + 65536: atomic");
    expect_fault("not_fenced", "fence missing: tma_load_2d()");
    expect_fault("overwritten", "mbarrier overwritten");
    expect_fault("initialised_twice", "smem + 65536 is one already");
    expect_fault("too_many_arrivals",
                 "comes to phase 0 of the mbarrier smem + 65536 after all 1 have arrived");
}

Test(sim_sm90, deadlocks_say_which_phase_of_which_barrier_waits_for_what) {
    expect_fault("too_many_bytes_expected",
                 "deadlock: no thread of the block can go on (64 wait in mbarrier_wait()");
    cr_expect(strstr(sim_error(), "mbarrier smem + 65536 (initialised at tests/sim_sm90.cu:"), "%s",
              sim_error());
    cr_expect(strstr(sim_error(), "is in phase 0, parity 0: 0 of 1 arrivals are missing, 16 bytes "
                                  "that were announced have not come"),
              "%s", sim_error());
    expect_fault("too_few_bytes_expected", "4096 bytes came that nobody announced");
    expect_fault("empty_with_the_wrong_parity",
                 "mbarrier smem + 65544 (initialised at tests/sim_sm90.cu:");
    expect_fault("one_arrival_short", "1 of 64 arrivals are missing");
    expect_fault("nobody_arrives", "named barrier 3 has 32 of 64 threads");
    expect_fault("a_warp_is_missing", "waits for 32 more threads of warpgroup 0");
    expect_fault("more_registers_than_there_are",
                 "has 168 registers a thread and wants 240, and the block's pool has");
    expect_fault("registers_of_one_warp", "setmaxnreg_dec()");
}

Test(sim_sm90, loads) {
    expect_fault("tile_read_at_once", "too early: load of smem + 0 (shared memory)");
    cr_expect(isnan(b[0]) && isnan(b[63]), "poison");
    expect_fault("full_with_the_wrong_parity", "waits for another barrier or parity");
    expect_fault("another_tile", "too early: load of smem + 8192");
    expect_fault("only_one_warp_waits", "this thread has not waited for that phase of it");
    expect_fault("tile_filled_again", "race in shared memory");
    expect_fault("tile_misaligned", "SWIZZLE_128B needs a multiple of 1024");
    expect_fault("column_misaligned", "from column -3, and TMA needs a multiple of 8");
    expect_fault("misaligned_64", "SWIZZLE_64B needs a multiple of 512");
    expect_fault("misaligned_32", "SWIZZLE_32B needs a multiple of 256");
    expect_fault("tile_outside", "out of bounds: tma_load_2d()");
    expect_fault("another_rank", "the tensor map has 2 dimensions, not 3");
    expect_fault("no_map", "not a tensor map");
}

Test(sim_sm90, stores) {
    expect_fault("store_without_fence", "proxy fence missing: smem + 0");
    expect_fault("fence_of_another_thread", "must execute fence_proxy_async()");
    expect_fault("source_overwritten", "source changed: smem + 20");
    expect_fault("store_not_waited_for", "TMA store not waited for");
    expect_fault("store_before_the_tensor", "TMA stores from column 0 or later");
    expect_fault("store_not_committed", "TMA store not waited for");
    expect_fault("store_to_an_input", "writes its input: tma_store_2d()");
}

Test(sim_sm90, matrices_to_shared_memory) {
    expect_fault("matrix_row_in_hbm", "stmatrix_x4(): the row is not in shared memory");
    expect_fault("matrix_row_misaligned", "misaligned: store");
    expect_fault("matrix_without_syncwarp", "race in shared memory");
    expect_fault("matrix_without_fence", "proxy fence missing: smem + 0");
    run("matrix_rows_dense");
    cr_expect_eq(counts.ideal_wavefronts, 4, "one for each matrix");
    cr_expect_eq(counts.wavefronts, 32);
    run("matrix_rows_swizzled");
    cr_expect_eq(counts.wavefronts, 4);
}

Test(sim_sm90, products) {
    expect_fault("accumulators_read_at_once", "accumulators in use: load");
    cr_expect(isnan(b[0]), "poison");
    expect_fault("group_not_committed", "accumulators in use: load");
    expect_fault("one_group_too_few", "accumulators in use: load");
    expect_fault("wait_too_short", "wait too short: wgmma_wait()");
    expect_fault("no_fence", "wgmma_fence() missing: before the first wgmma");
    expect_fault("fence_too_early", "wgmma_fence() missing: registers of the accumulators");
    expect_fault("operand_not_waited_for", "too early: load of smem + 8192");
    expect_fault("operand_without_fence", "proxy fence missing: smem + ");
    expect_fault("freed_too_early", "load by wgmma at");
    expect_fault("past_the_panel", "in the middle of its first 8 rows of 128 bytes");
    expect_fault("no_leading_offset", "the leading byte offset, from one panel to the next, is 0");
    expect_fault("descriptor_outside", "of B lies at smem + 73728");
    expect_fault("never_waited_for", "wgmma not waited for");
}

Test(sim_sm90, products_of_e4m3) {
    expect_fault("fp8_read_at_once", "accumulators in use: load");
    cr_expect(isnan(b[0]), "poison");
    expect_fault("fp8_mn_major", "FP8 operands are K-major, and the descriptor of B has a leading "
                                 "byte offset of 8192");
    expect_fault("fp8_past_the_panel", "in the middle of its first 8 rows of 64 bytes");
    expect_fault("fp8_half_a_step", "less than 32 elements before the end of a row of 128 bytes");
    expect_fault("fp8_outside", "element (0, 16) of A lies at smem + 73728");
    expect_fault("fp8_operand_changed", "operand changed: element (0, 5) of B, in smem + 8192");
}

Test(sim_sm90, named_barriers_and_registers) {
    expect_fault("two_counts", "named barrier 1 is for 64 threads at tests/sim_sm90.cu:");
    expect_fault("barrier_zero", "0 is __syncthreads()");
    expect_fault("dec_that_increases", "to 240 registers, and the warpgroup has 168");
}

Test(sim_sm90, nobody_is_accused_wrongly) {
    static const char *const innocent[] = {"two_groups", "own_operand", "copied_operand",
                                           "ring_of_loads", "store_again_and_again"};
    for (unsigned i = 0; i < sizeof innocent / sizeof *innocent; i++) {
        run(innocent[i]);
        cr_expect_str_empty(sim_error(), "%s", sim_error());
        cr_expect_str_empty(sim_warning(), "%s", sim_warning());
        if (i < 3)
            for (int k = 0; k < 32 * 128; k++) cr_assert_eq(b[k], 0.f, "%s: %d", innocent[i], k);
    }
    cr_expect_eq(counts.buffer[1].bytes[SIM_TMA_STORE], 4 * 8192);
    cr_expect_eq(counts.buffer[1].sectors[SIM_TMA_STORE], 4 * 8192 / 32);
    cr_expect_eq(counts.buffer[1].distinct[SIM_TMA_STORE], 4 * 8192 / 32);
}

// Without the race detector, what the product would have read is compared with what it has.
Test(sim_sm90, operands_that_change_are_noticed_in_any_case) {
    sim_reset(&(struct sim_options){.fast = true});
    sim_sm90_run("freed_too_early", a, b);
    cr_expect(strstr(sim_error(), "operand changed: element (0, 0) of B, in smem + 8192"), "%s",
              sim_error());
    sim_reset(&(struct sim_options){.fast = true});
    sim_sm90_run("fp8_operand_changed", a, b);
    cr_expect(strstr(sim_error(), "operand changed: element (0, 5) of B, in smem + 8192"), "%s",
              sim_error());
}

// ---- the timeline -------------------------------------------------------------------------------

Test(sim_sm90, the_timeline_has_copies_and_waits) {
    char path[200], line[600];
    snprintf(path, sizeof path, "%s/timeline.csv", getenv("BUILD") ? getenv("BUILD") : "build");
    cr_assert(sim_timeline(path));
    run("ring_of_loads");
    cr_assert(sim_timeline(NULL));
    FILE *f = fopen(path, "r");
    cr_assert(f && fgets(line, sizeof line, f));
    cr_expect_str_eq(line, "launch,kernel,block,who,event,from,to,what,file,line\n");
    int copies = 0, waits = 0, exits = 0;
    unsigned from, to, last = 0;
    while (fgets(line, sizeof line, f)) {
        char who[40], event[20];
        cr_assert_eq(
            sscanf(line, "1,\"ring_of_loads\",0,%39[^,],%19[^,],%u,%u,", who, event, &from, &to), 4,
            "%s", line);
        cr_expect(to >= last && from <= to, "in order: %s", line);
        last = to;
        copies += !strcmp(who, "tma 0") && !strcmp(event, "copy") && to > from;
        waits += !strcmp(event, "wait") && strstr(line, "\"mbarrier_wait()\",tests/sim_sm90.cu,");
        exits += !strcmp(event, "exit");
    }
    fclose(f);
    cr_expect_eq(copies, 8);
    cr_expect_geq(waits, 2 * 8, "two warps wait for each tile");
    cr_expect_eq(exits, 3);
    cr_expect(!sim_timeline("/nowhere/at/all"));
}

Test(sim_sm90, fast_computes_the_same) {
    sim_reset(&(struct sim_options){.fast = true});
    sim_poison(b);
    sim_sm90_run("two_groups", a, b);
    cr_expect_str_empty(sim_error(), "%s", sim_error());
    for (int k = 0; k < 32 * 128; k++) cr_assert_eq(b[k], 0.f);
}

// test_simulator.c - does the simulator count, meet and complain as a GPU does?
//
// Counts are exact: each expectation below was worked out by hand from the kernel's source.

#include "hardware.h"
#include "sim/internal.h"
#include "sim/sim.h"
#include "sim_kernels.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 4096 };
static float *a, *b;
static struct sim_counts counts;

static void setup(void) {
    a = sim_alloc("a", WORDS * sizeof *a);
    b = sim_alloc("b", WORDS * sizeof *b);
    for (int i = 0; i < WORDS; i++) a[i] = (float)i;
    sim_set_written(a, false);
    sim_reset(&(struct sim_options){0});
}

static void run(const char *kernel, int n) {
    sim_run(kernel, (struct sim_arguments){.a = a, .b = b, .n = n});
    sim_counts(&counts);
}

static void run_well(const char *kernel, int n) {
    run(kernel, n);
    cr_assert_str_empty(sim_error(), "%s", sim_error());
}

static const struct sim_buffer_counts *of(const char *name) {
    for (int i = 0; i < counts.buffers; i++)
        if (!strcmp(counts.buffer[i].name, name)) return &counts.buffer[i];
    cr_assert_fail("no counts for %s", name);
    return NULL;
}

TestSuite(simulator, .init = setup);

// ---- threads ------------------------------------------------------------------------------------

Test(simulator, every_thread_knows_its_indices) {
    run_well("indices", 0);
    for (int block = 0; block < 12; block++)
        for (int t = 0; t < 24; t++)
            cr_assert_eq(a[block * 24 + t], 1000.f * (float)block + (float)t);
    cr_assert(a[12 * 24] == 12 * 24, "and nobody wrote beyond them");
    cr_assert_eq(counts.launches, 1);
    cr_assert_str_eq(counts.launch_name[0], "indices");
}

// ---- sectors ------------------------------------------------------------------------------------

// Bytes that threads ask for, and sectors that the warp's request has.
static void expect(const char *buffer, int kind, uint64_t bytes, uint64_t sectors,
                   uint64_t distinct) {
    const struct sim_buffer_counts *c = of(buffer);
    cr_expect_eq(c->bytes[kind], bytes, "%s: %lu bytes, not %lu", buffer, c->bytes[kind], bytes);
    cr_expect_eq(c->sectors[kind], sectors, "%s: %lu sectors, not %lu", buffer, c->sectors[kind],
                 sectors);
    cr_expect_eq(c->distinct[kind], distinct, "%s: %lu distinct, not %lu", buffer,
                 c->distinct[kind], distinct);
}

Test(simulator, coalesced_words_are_four_sectors) {
    run_well("copy4", 0);
    expect("a", SIM_LOAD, 128, 4, 4);
    expect("b", SIM_STORE, 128, 4, 4);
    expect("a", SIM_STORE, 0, 0, 0);
    for (int i = 0; i < 32; i++) cr_assert_eq(b[i], (float)i);
    cr_assert(isnan(b[32]), "what nobody wrote is NaN");
}

Test(simulator, wide_accesses_are_single_requests) {
    run_well("copy16", 0);
    expect("a", SIM_LOAD, 512, 16, 16);
    expect("b", SIM_STORE, 512, 16, 16);
    sim_reset(&(struct sim_options){0});
    run_well("copy8", 0);
    expect("a", SIM_LOAD, 256, 8, 8);
    sim_reset(&(struct sim_options){0});
    run_well("copy2", 0);
    expect("a", SIM_LOAD, 64, 2, 2);
}

Test(simulator, broadcast_is_one_sector) {
    run_well("broadcast", 0);
    expect("a", SIM_LOAD, 128, 1, 1);
}

Test(simulator, a_stride_spreads_the_request) {
    run_well("strided", 8);
    expect("a", SIM_LOAD, 128, 32, 32);
    sim_reset(&(struct sim_options){0});
    run_well("strided", 2);
    expect("a", SIM_LOAD, 128, 8, 8);
}

Test(simulator, order_of_lanes_does_not_matter) {
    run_well("reversed", 0);
    expect("a", SIM_LOAD, 128, 4, 4);
}

Test(simulator, a_shift_by_one_word_costs_a_sector) {
    run_well("shifted", 0);
    expect("a", SIM_LOAD, 128, 5, 5);
}

Test(simulator, only_active_lanes_count) {
    run_well("first_lanes", 9);
    expect("a", SIM_LOAD, 36, 2, 2);
    expect("b", SIM_STORE, 36, 2, 2);
}

Test(simulator, atomics_are_counted_apart) {
    memset(b, 0, WORDS * sizeof *b);
    sim_set_written(b, false);
    run_well("add_atomically", 0);
    // 4 blocks of 2 warps: one sector, once for each of the 32 lanes that add to one word.
    expect("a", SIM_ATOMIC, 4 * 64 * 4, 4 * 2 * 32, 1);
    expect("b", SIM_ATOMIC, 4 * 64 * 4, 4 * 8, 8);
    expect("a", SIM_LOAD, 0, 0, 0);
    cr_assert_eq(a[0], 256.f);
}

Test(simulator, read_modify_write_is_a_load_and_a_store) {
    run_well("read_and_write", 0);
    expect("a", SIM_LOAD, 128, 4, 4);
    expect("a", SIM_STORE, 128, 4, 4);
}

Test(simulator, distinct_sectors_are_per_launch) {
    run_well("copy4", 0);
    run_well("copy4", 0);
    expect("a", SIM_LOAD, 256, 8, 8);
}

Test(simulator, lanes_that_skip_a_turn_stay_in_step) {
    run_well("skipping", 4);
    // 4 turns: all lanes, then every other lane; in both cases all 4 sectors of the row.
    expect("a", SIM_LOAD, 4 * (128 + 64), 4 * (4 + 4), 32);
}

Test(simulator, ragged_inner_loops_reconverge) {
    run_well("ragged", 4);
    // In each outer turn 32, 24, 16 and 8 lanes make the inner turns 0 to 3; in each every fourth
    // lane at least, so always all 4 sectors.
    expect("a", SIM_LOAD, 4 * 4 * (32 + 24 + 16 + 8), 4 * 4 * 4, 64);
}

Test(simulator, branches_reconverge) {
    run_well("branching", 0);
    // 24 lanes load row 0 (4 sectors), 8 lanes row 1 (4), then all together row 2 (4).
    expect("a", SIM_LOAD, 128 + 128, 12, 12);
}

// ---- shared memory ------------------------------------------------------------------------------

static uint64_t conflicts(const char *kernel, int n) {
    sim_reset(&(struct sim_options){0});
    run_well(kernel, n);
    return counts.wavefronts - counts.ideal_wavefronts;
}

Test(simulator, bank_conflicts_of_words) {
    cr_expect_eq(conflicts("bank_stride", 0), 0, "a broadcast");
    cr_expect_eq(conflicts("bank_stride", 1), 0);
    cr_expect_eq(conflicts("bank_stride", 2), 1);
    cr_expect_eq(conflicts("bank_stride", 33), 0, "padding by one word");
    cr_expect_eq(conflicts("bank_stride", 8), 7);
    cr_expect_eq(conflicts("bank_stride", 32), 31);
}

Test(simulator, bank_conflicts_of_16_byte_accesses) {
    cr_expect_eq(conflicts("bank_stride16", 4), 0);
    cr_expect_eq(counts.ideal_wavefronts, 1200 / 32 + 1 + 4, "a quarter of the warp at a time");
    cr_expect_eq(conflicts("bank_stride16", 8), 4);
    cr_expect_eq(conflicts("bank_stride16", 32), 28);
    cr_expect_eq(conflicts("bank_stride16", 36), 0, "padding by 16 bytes");
}

Test(simulator, blocks_have_shared_memory_of_their_own) {
    run_well("exchange", 0);
    for (int i = 0; i < 64; i++) cr_assert_eq(b[i], (float)(63 - i));
    cr_expect_eq(counts.shared_bytes[SIM_STORE], 256);
    cr_expect_eq(counts.shared_bytes[SIM_LOAD], 256);
    cr_expect_eq(counts.smem_per_block, 256);
}

Test(simulator, static_and_dynamic_bytes_add_up) {
    run_well("static_bytes", 0);
    cr_expect_eq(counts.smem_per_block, 100 * sizeof(float) + 10 * sizeof(double) + 1000);
}

// ---- collectives --------------------------------------------------------------------------------

Test(simulator, shuffles_as_documented) {
    run_well("shuffles", 0);
    for (int lane = 0; lane < 32; lane++) {
        int s = lane / 8 * 8;
        cr_expect_eq(b[lane], 5.f);
        cr_expect_eq(b[32 + lane], (float)(lane ^ 3));
        cr_expect_eq(b[64 + lane], (float)(lane + 4 < 32 ? lane + 4 : lane));
        cr_expect_eq(b[96 + lane], (float)(lane >= 4 ? lane - 4 : lane));
        cr_expect_eq(b[128 + lane], (float)(s + 5));
        cr_expect_eq(b[160 + lane], (float)(lane + 3 < s + 8 ? lane + 3 : lane));
        cr_expect_eq(b[192 + lane], (float)(lane - 3 >= s ? lane - 3 : lane));
        cr_expect_eq(b[224 + lane], (float)(lane < 16 ? lane : lane - 16),
                     "xor into a later segment: own value");
    }
}

Test(simulator, votes_as_documented) {
    run_well("votes", 0);
    for (int i = 0; i < 96; i++) cr_expect_eq(b[i], 1.f, "%d", i);
}

Test(simulator, parts_of_a_warp_meet_apart) {
    run_well("half_warps", 0);
    for (int lane = 0; lane < 32; lane++) cr_expect_eq(b[lane], lane < 16 ? 120.f : 376.f);
}

Test(simulator, block_wide_votes) {
    run_well("block_votes", 0);
    for (int t = 0; t < 70; t++) {
        cr_expect_eq(b[t], 14.f);
        cr_expect_eq(b[70 + t], 1.f);
        cr_expect_eq(b[140 + t], 1.f);
    }
}

Test(simulator, atomics_in_shared_memory) {
    run_well("integer_atomics", 0);
    int times[7] = {0};
    for (int t = 0; t < 100; t++) {
        cr_expect_eq(b[t], 200.f);
        cr_assert(b[100 + t] >= 0 && b[100 + t] < 7);
        times[(int)b[100 + t]]++;
        cr_expect_eq(b[200 + t], 100 % 7);
    }
    for (int i = 0; i < 7; i++) cr_expect_eq(times[i], i < 100 % 7 ? 15 : 14);
}

// ---- limits -------------------------------------------------------------------------------------

Test(simulator, dynamic_memory_needs_opting_in) {
    run_well("dynamic_not_allowed", 48 << 10);
    run("dynamic_not_allowed", (48 << 10) + 4);
    cr_expect(strstr(sim_error(), "cudaFuncSetAttribute"), "%s", sim_error());
    sim_reset(&(struct sim_options){0});
    run_well("dynamic_allowed", 227 << 10);
    cr_expect_eq(b[0], 1.f);
    sim_reset(&(struct sim_options){0});
    run_well("dynamic_allowed", (227 << 10) + 1);
    cr_expect_eq(b[0], -1.f, "refused by cudaFuncSetAttribute");
}

Test(simulator, the_limit_can_be_lowered) {
    sim_reset(&(struct sim_options){.smem_limit = 20000});
    run_well("dynamic_not_allowed", 20000);
    run("dynamic_not_allowed", 20004);
    cr_expect(strstr(sim_error(), "a block may use 20000"), "%s", sim_error());
}

// ---- faults: one line, with the kernel, what, where, which thread -------------------------------

static void expect_fault(const char *kernel, int n, const char *words, const char *thread) {
    run(kernel, n);
    char place[100];
    snprintf(place, sizeof place, "tests/sim_kernels.cu:%d", sim_marked_line(kernel));
    const char *error = sim_error();
    cr_expect(!strncmp(error, kernel, strlen(kernel)), "names the kernel first: '%s'", error);
    cr_expect(strstr(error, words), "says '%s': '%s'", words, error);
    cr_expect(strstr(error, place), "at %s: '%s'", place, error);
    cr_expect(strstr(error, thread), "in %s: '%s'", thread, error);
    cr_expect_null(strchr(error, '\n'), "one line");
}

Test(simulator, out_of_bounds_after) {
    expect_fault(
        "past_the_end", WORDS - 100,
        "out of bounds: store of 4 bytes, 16384 bytes after the start of a, which has 16384",
        "thread (36,0,0) of block (1,0,0)");
}
Test(simulator, out_of_bounds_before) {
    expect_fault("before_the_start", 0,
                 "out of bounds: load of 4 bytes, 8 bytes before the start of a",
                 "thread (0,0,0) of block (0,0,0)");
}
Test(simulator, misaligned) {
    expect_fault("misaligned", 0, "misaligned: load of 16 bytes at an address that is 4 modulo 16",
                 "thread (0,0,0)");
}
Test(simulator, null_pointer) {
    expect_fault("null_pointer", 0, "null pointer: load of 4 bytes at address 0", "thread (0,0,0)");
}
Test(simulator, divergent_barrier) {
    expect_fault("divergent_barrier", 0,
                 "divergent barrier: not all 64 threads of the block reach __syncthreads()",
                 "24 have exited");
}
Test(simulator, two_barriers) {
    expect_fault("two_barriers", 0, "divergent barrier: one part of the block waits",
                 "thread (32,0,0)");
}
Test(simulator, early_exit_before_a_collective) {
    expect_fault("early_exit", 0, "lanes missing: __shfl_xor_sync()",
                 "waits for lanes 0x80000000 of mask 0xffffffff");
}
Test(simulator, lane_not_in_the_mask) {
    expect_fault("left_out", 0, "lane 16 calls __shfl_xor_sync()", "thread (16,0,0)");
}
Test(simulator, two_collectives) {
    expect_fault("two_collectives", 0, "two different collectives", "thread (16,0,0)");
}
Test(simulator, dynamic_shared_out_of_bounds) {
    expect_fault(
        "touch_dynamic", 1024,
        "out of bounds: store of 4 bytes of shared memory, 4096 bytes after the start of smem",
        "thread (0,0,0)");
}
Test(simulator, static_shared_out_of_bounds) {
    expect_fault("static_past_the_end", 1000, "out of bounds: load of 4 bytes of shared memory",
                 "thread (0,0,0)");
    sim_reset(&(struct sim_options){0});
    expect_fault("static_past_the_end", -100000, "out of bounds: load of 4 bytes of shared memory",
                 "thread (0,0,0)");
}

Test(simulator, memory_of_the_host) {
    expect_fault("host_pointer", 0, "host memory: store of 4 bytes", "thread (0,0,0)");
}
Test(simulator, division_by_zero) {
    expect_fault("divide_by_zero", 0, "division by zero", "thread (3,0,0)");
}
Test(simulator, an_array_is_called_by_its_own_name) {
    expect_fault("own_name", 0, "128 bytes after the start of tile, which has 128",
                 "thread (31,0,0)");
}
Test(simulator, a_reset_must_come_before_the_atomics) {
    expect_fault("reset_races_with_atomic", 0, "race in shared memory on sum + 0",
                 "thread (32,0,0)");
    cr_expect(strstr(sim_error(), "a __syncthreads() is missing"), "%s", sim_error());
}

Test(simulator, a_barrier_of_the_block_is_named_although_lanes_of_a_warp_race_first) {
    char call[100];
    expect_fault("fill_without_barrier", 0, "a __syncthreads() is missing", "thread (32,0,0)");
    snprintf(call, sizeof call, " (called at tests/sim_kernels.cu:%d), load by thread 31 at ",
             sim_marked_line("the call of fill"));
    cr_expect(strstr(sim_error(), call), "%s is missing in: %s", call, sim_error());
}

Test(simulator, a_race_of_one_warp_alone_is_found_at_the_next_barrier) {
    expect_fault("warps_without_syncwarp", 0, "a __syncwarp() is missing", "thread (0,0,0)");
}

Test(simulator, an_atomic_races_with_a_plain_load) {
    expect_fault("read_races_with_atomic", 0, "race in shared memory on sum + 0", "by thread");
    cr_expect(strstr(sim_error(), "a __syncthreads() is missing"), "%s", sim_error());
}

Test(simulator, nobody_is_accused_wrongly) {
    static const char *const innocent[] = {
        "update_in_place", "running_value", "halves_in_place", "halves_across_blocks",
        "producer_below",  "last_block",    "by_turns",        "exchange",
        "half_warps",      "zero_then_add", "mixed_widths"};
    for (int round = 0; round < 20; round++) // blocks meet in other orders each time
        for (unsigned i = 0; i < sizeof innocent / sizeof *innocent; i++) {
            memset(b, 0, WORDS * sizeof *b);
            sim_set_written(b, false);
            sim_reset(&(struct sim_options){0});
            run_well(innocent[i], 0);
            cr_expect_str_empty(sim_warning(), "%s", sim_warning());
        }
}

Test(simulator, long_stretches_without_a_meeting_are_counted_exactly) {
    run_well("long_and_uneven", 30000);
    // Each turn: all lanes load row 0 (4 sectors); a third of them row 1 and row 2, every third
    // lane: 4 each.
    const struct sim_buffer_counts *c = of("a");
    cr_expect_eq(c->bytes[SIM_LOAD], 30000ull * 128 + 2 * 4 * 320000ull);
    cr_expect_eq(c->sectors[SIM_LOAD], 30000ull * (4 + 4 + 4));
}

static void expect_refusal(const char *kernel, const char *words) {
    run(kernel, 0);
    cr_expect(strstr(sim_error(), "cannot launch at tests/sim_kernels.cu:"), "'%s'", sim_error());
    cr_expect(strstr(sim_error(), words), "'%s'", sim_error());
    cr_expect_eq(counts.launches, 0);
}

Test(simulator, impossible_launches) {
    expect_refusal("empty_launch", "empty launch");
    sim_reset(&(struct sim_options){0});
    expect_refusal("too_many_threads", "has 1025 threads; a block has at most 1024");
    sim_reset(&(struct sim_options){0});
    expect_refusal("too_many_blocks", "the limits are 2147483647, 65535 and 65535");
    sim_reset(&(struct sim_options){0});
    expect_refusal("too_much_static", "49156 bytes of __shared__ arrays; the limit is 49152");
}

Test(simulator, an_error_sticks_and_later_launches_do_nothing) {
    run("null_pointer", 0);
    char first[700];
    snprintf(first, sizeof first, "%s", sim_error());
    run("copy4", 0);
    cr_expect_str_eq(sim_error(), first);
    cr_expect(isnan(b[5]));
    sim_reset(&(struct sim_options){0});
    run_well("copy4", 0);
    cr_expect_eq(b[5], 5.f);
}

// ---- memory -------------------------------------------------------------------------------------

Test(simulator, memory_is_aligned_apart_and_reused) {
    void *p = sim_alloc("p", 1), *q = sim_alloc("q", 100000);
    cr_expect_eq((uintptr_t)p % 256, 0);
    cr_expect_eq((uintptr_t)q % 256, 0);
    cr_expect_geq((uintptr_t)q - (uintptr_t)p, 65536);
    sim_free(p);
    cr_expect_eq(sim_alloc("p again", 1), p);
    cr_expect_null(sim_alloc("more than there is", (size_t)1 << 50));
}

// ---- --fast, and several workers ----------------------------------------------------------------

Test(simulator, fast_counts_the_same_bytes_and_no_sectors) {
    sim_reset(&(struct sim_options){.fast = true});
    run_well("copy16", 0);
    expect("a", SIM_LOAD, 512, 0, 0);
    expect("b", SIM_STORE, 512, 0, 0);
}

Test(simulator, counts_do_not_depend_on_the_number_of_workers) {
    uint64_t first[3] = {0};
    for (int workers = 1; workers <= 4; workers++) {
        sim_reset(&(struct sim_options){.workers = workers});
        hardware_flash(a, a, a, b, 60, true, 32);
        sim_counts(&counts);
        cr_assert_str_empty(sim_error(), "%s", sim_error());
        uint64_t now[3] = {of("a")->sectors[SIM_LOAD], of("a")->distinct[SIM_LOAD],
                           counts.wavefronts};
        if (workers == 1) memcpy(first, now, sizeof first);
        cr_expect_arr_eq(now, first, sizeof first);
    }
}

// Without memory for its notes the simulator ends as a machine that cannot, and does not crash.
Test(simulator, memory_for_notes_runs_out, .exit_code = 3, .init = cr_redirect_stderr) {
    sim_memory(NULL);
}

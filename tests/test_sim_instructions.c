// test_sim_instructions.c - how the simulator counts the instructions of ptx.h, and what it says
// when they are misused. What they compute is tested in test_instructions.c, on both machines.

#include "sim/sim.h"
#include "sim_instructions.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WORDS = 4096 };
static float *a, *b;
static struct sim_counts counts;

static void setup(void) {
    a = sim_alloc("a", WORDS * sizeof *a);
    b = sim_alloc("b", WORDS * sizeof *b);
    for (int i = 0; i < WORDS; i++) a[i] = (float)i;
    sim_set_written(a, true);
}

TestSuite(sim_instructions, .init = setup);

static void run(const char *kernel, int n) {
    sim_reset(&(struct sim_options){0});
    sim_instruction_run(kernel, a, b, n);
    sim_counts(&counts);
}

static void run_well(const char *kernel, int n) {
    run(kernel, n);
    cr_assert_str_empty(sim_error(), "%s: %s", kernel, sim_error());
}

static uint64_t conflicts(void) { return counts.wavefronts - counts.ideal_wavefronts; }

// ---- counts -------------------------------------------------------------------------------------

Test(sim_instructions, a_copy_is_one_load_request_and_one_store_request) {
    run_well("copy_pieces", 1632); // 16 bytes apart, all 32 lanes
    cr_expect_eq(counts.buffer[0].bytes[SIM_LOAD], 512);
    cr_expect_eq(counts.buffer[0].sectors[SIM_LOAD], 16);
    cr_expect_eq(counts.shared_bytes[SIM_STORE], 512);
    cr_expect_eq(counts.wavefronts, 4);
    cr_expect_eq(conflicts(), 0);
    cr_expect_eq(counts.accesses, 64);
}

Test(sim_instructions, a_copy_counts_where_it_is_stored) {
    run_well("copy_pieces", 12832);
    cr_expect_eq(counts.buffer[0].sectors[SIM_LOAD], 32, "halves of sectors to 32 places");
    cr_expect_eq(counts.buffer[0].distinct[SIM_LOAD], 16);
    for (int n = 0; n < 4; n++) {
        run_well("copy_often", n);
        cr_expect_eq(counts.buffer[0].sectors[SIM_LOAD], 3000 * 32, "%d stores before", n);
    }
}

Test(sim_instructions, what_is_filled_with_zeros_is_not_asked_for) {
    run_well("copy_pieces", 1607);
    cr_expect_eq(counts.buffer[0].sectors[SIM_LOAD], 4, "7 pieces are 3.5 sectors");
    cr_expect_eq(counts.shared_bytes[SIM_STORE], 512, "zeros are stored as well");
    run_well("copy_pieces", 1600);
    cr_expect_eq(counts.buffer[0].sectors[SIM_LOAD], 0);
}

Test(sim_instructions, copies_into_one_column_conflict) {
    run_well("copy_pieces", 12832);
    cr_expect_eq(counts.ideal_wavefronts, 4);
    cr_expect_eq(conflicts(), 28, "8 rows of 128 bytes begin in one bank");
}

// Conflicts of one ldmatrix; the stores before it have none.
static uint64_t conflicts_of(const char *kernel, int n, uint64_t ideal) {
    run_well("only_fill", 0);
    uint64_t before = counts.wavefronts;
    cr_expect_eq(conflicts(), 0);
    run_well(kernel, n);
    cr_expect_eq(counts.ideal_wavefronts, before + ideal, "%s: a wavefront for each matrix",
                 kernel);
    return conflicts();
}

Test(sim_instructions, bank_conflicts_of_ldmatrix) {
    cr_expect_eq(conflicts_of("load_rows", 128, 4), 28, "rows of 128 bytes: 8 wavefronts a matrix");
    cr_expect_eq(conflicts_of("load_rows", 64, 4), 12, "of 64: 4");
    cr_expect_eq(conflicts_of("load_rows", 32, 4), 4, "of 32: 2");
    cr_expect_eq(conflicts_of("load_rows", 16, 4), 0, "dense");
    cr_expect_eq(conflicts_of("load_rows", 144, 4), 0, "padded by 16 bytes");
    for (int c = 0; c < 8; c++)
        cr_expect_eq(conflicts_of("load_swizzled", c, 4), 0, "column %d", c);
    cr_expect_eq(conflicts_of("load_one", 128, 1), 7, "x1");
    cr_expect_eq(conflicts_of("load_one", 144, 1), 0);
    cr_expect_eq(conflicts_of("load_two", 128, 2), 14, "x2");
}

Test(sim_instructions, red_is_one_atomic_request) {
    memset(b, 0, WORDS * sizeof *b);
    sim_set_written(b, false);
    run_well("add_neighbours", 0);
    cr_expect_eq(counts.buffer[1].bytes[SIM_ATOMIC], 512);
    cr_expect_eq(counts.buffer[1].sectors[SIM_ATOMIC], 16);
    for (int i = 0; i < 128; i++)
        cr_expect_eq(b[i], i % 4 == 3 ? (float)(i / 4) : (float)(i % 4 + 1));
}

Test(sim_instructions, fast_computes_the_same) {
    sim_reset(&(struct sim_options){.fast = true});
    sim_instruction_run("two_stages", a, b, 4);
    cr_assert_str_empty(sim_error());
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 256; k++)
            cr_expect_eq(b[256 * i + k], a[256 * i + 252 - k / 4 * 4 + k % 4]);
}

// ---- misuse -------------------------------------------------------------------------------------

static void expect_fault_at(const char *kernel, const char *mark, int n, const char *words) {
    run(kernel, n);
    char place[100];
    snprintf(place, sizeof place, "tests/sim_instructions.cu:%d", sim_instruction_line(mark));
    const char *error = sim_error();
    cr_expect(!strncmp(error, kernel, strlen(kernel)), "names the kernel first: '%s'", error);
    cr_expect(strstr(error, words), "%s: says '%s': '%s'", kernel, words, error);
    cr_expect(strstr(error, place), "at %s: '%s'", place, error);
    cr_expect_null(strchr(error, '\n'), "one line");
}

static void expect_fault(const char *kernel, const char *words) {
    expect_fault_at(kernel, kernel, 20, words);
}

Test(sim_instructions, copies_nobody_waited_for) {
    expect_fault("not_waited_for", "too early: load of smem + 0 (shared memory)");
    cr_expect(isnan(b[0]), "and the value is poison");
    expect_fault("not_committed", "or the copy was never committed");
    expect_fault("one_too_few", "leaves one group too many pending");
    expect_fault("other_has_not_waited", "the copy that thread 32 started");
    expect_fault("stored_into", "too early: store of smem + 0");
    expect_fault("matrix_too_early", "too early: load of smem + ");
}

Test(sim_instructions, a_wait_is_no_barrier) {
    expect_fault("wait_without_barrier", "race in shared memory");
    expect_fault("barrier_before_wait", "for other threads after a barrier behind that wait");
    expect_fault("filled_too_early", "race in shared memory");
}

Test(sim_instructions, addresses) {
    expect_fault("copy_misaligned",
                 "misaligned: load of 16 bytes at an address that is 8 modulo 16");
    expect_fault("copy_past_the_end", "out of bounds: load of 16 bytes");
    expect_fault("copy_to_hbm", "the destination is not in shared memory");
    expect_fault("copy_from_smem", "the source is not in global memory");
    expect_fault("row_misaligned",
                 "misaligned: load of 16 bytes at an address that is 8 modulo 16");
    expect_fault("row_in_hbm", "ldmatrix_x4(): the row is not in shared memory");
    expect_fault("red_misaligned", "misaligned: atomic of 16 bytes");
}

Test(sim_instructions, ldmatrix_reads_for_the_whole_warp) {
    expect_fault("row_unwritten", "uninitialised: load of smem + 80 (shared memory)");
    expect_fault("row_without_syncwarp", "a __syncwarp() is missing");
    expect_fault("row_overwritten", "a __syncwarp() is missing");
}

Test(sim_instructions, all_lanes_take_part) {
    expect_fault("product_in_a_branch",
                 "lanes missing: mma_m16n8k16() at tests/sim_instructions.cu");
    expect_fault("two_products", "lanes of one warp come to mma_m16n8k16() from two places");
    expect_fault("half_a_warp", "needs a warp of 32 threads, and the block's last has 16");
}

Test(sim_instructions, a_ring_of_tiles_is_innocent) {
    for (int n = 1; n <= 8; n++) run_well("two_stages", n);
    cr_expect_str_empty(sim_warning());
}

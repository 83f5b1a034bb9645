// test_profile.c - does the profile tell each source line what it asks for, and no other?
//
// Counts are exact: each expectation below was worked out by hand from the kernel's source.

#include "hardware.h"
#include "profile.h"
#include "sim/sim.h"
#include "sim_kernels.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 4096 };
static float *a, *b, *c;
static struct profile_line *lines;
static int count;

static float *zeros(const char *name) {
    float *p = sim_alloc(name, WORDS * sizeof *p);
    memset(p, 0, WORDS * sizeof *p);
    sim_set_written(p, false);
    return p;
}

static void setup(void) {
    a = zeros("a"), b = zeros("b"), c = zeros("c");
    sim_reset(&(struct sim_options){.profile = true});
}

static void take_lines(void) {
    free(lines);
    count = sim_profile(&lines);
}

static void run(const char *kernel, int n) {
    sim_run(kernel, (struct sim_arguments){.a = a, .b = b, .c = c, .n = n});
    cr_assert_str_empty(sim_error(), "%s", sim_error());
    take_lines();
}

TestSuite(profile, .init = setup);

// The line of this kernel, kind and buffer or array at the mark; any line when `mark` is NULL.
static const struct profile_line *find(const char *kernel, const char *kind, const char *name,
                                       const char *mark) {
    int line = mark ? sim_marked_line(mark) : 0;
    for (int i = 0; i < count; i++) {
        const struct profile_line *l = &lines[i];
        if (!strcmp(l->kernel, kernel) && !strcmp(l->kind, kind) && !strcmp(l->name, name) &&
            (!mark || l->line == line))
            return l;
    }
    cr_assert_fail("%s: no %s of %s at mark %s", kernel, kind, name, mark ? mark : "any");
    return NULL;
}

static void expect(const struct profile_line *l, uint64_t requests, uint64_t lanes, uint64_t cost,
                   uint64_t ideal, uint64_t used) {
    cr_expect_str_eq(l->file, "tests/sim_kernels.cu");
    cr_expect_eq(l->requests, requests, "%s %s: %lu requests, not %lu", l->kind, l->name,
                 l->requests, requests);
    cr_expect_eq(l->lanes, lanes, "%s %s: %lu lanes, not %lu", l->kind, l->name, l->lanes, lanes);
    cr_expect_eq(l->cost, cost, "%s %s: cost %lu, not %lu", l->kind, l->name, l->cost, cost);
    cr_expect_eq(l->ideal, ideal, "%s %s: ideal %lu, not %lu", l->kind, l->name, l->ideal, ideal);
    cr_expect_eq(l->used, used, "%s %s: %lu bytes used, not %lu", l->kind, l->name, l->used, used);
}

// ---- one request --------------------------------------------------------------------------------

Test(profile, coalesced) {
    run("copy4", 0);
    cr_expect_eq(count, 2);
    expect(find("copy4", "load", "a", NULL), 1, 32, 4, 4, 128);
    expect(find("copy4", "store", "b", NULL), 1, 32, 4, 4, 128);
}

Test(profile, wide) {
    run("copy16", 0);
    expect(find("copy16", "load", "a", NULL), 1, 32, 16, 16, 512);
}

Test(profile, strided) {
    run("strided", 8);
    expect(find("strided", "load", "a", NULL), 1, 32, 32, 4, 128);
}

Test(profile, a_broadcast_wants_four_bytes_once) {
    run("broadcast", 0);
    expect(find("broadcast", "load", "a", NULL), 1, 32, 1, 1, 4);
}

// 128 bytes that begin 4 bytes after a sector's start: they would fit in 4 sectors.
Test(profile, shifted) {
    run("shifted", 0);
    expect(find("shifted", "load", "a", NULL), 1, 32, 5, 4, 128);
}

Test(profile, atomics) {
    run("add_atomically", 0);
    cr_expect_eq(count, 2);
    expect(find("add_atomically", "atomic", "a", NULL), 8, 256, 8 * 32, 8, 8 * 4);
    expect(find("add_atomically", "atomic", "b", NULL), 8, 256, 8 * 4, 8 * 4, 8 * 128);
}

// ---- loops whose turns some lanes skip ----------------------------------------------------------

Test(profile, turns_that_half_of_the_lanes_skip) {
    run("skipping", 4);
    // Every other lane: 64 bytes out of 4 sectors.
    expect(find("skipping", "load", "a", "skipping"), 4, 4 * 16, 4 * 4, 4 * 2, 4 * 64);
}

Test(profile, turns_that_fewer_and_fewer_lanes_make) {
    run("leaving", 0);
    expect(find("leaving", "load", "a", "leaving"), 3 * 4, 3 * (32 + 24 + 16 + 8),
           3 * (4 + 3 + 2 + 1), 3 * 10, 3 * 10 * 32);
}

// ---- what is kept apart, and what is put together -----------------------------------------------

Test(profile, buffers_of_one_line_are_kept_apart) {
    run("three_loads", 0);
    cr_expect_eq(count, 3);
    // a[lane * 8]: 32 sectors for 4; a[7]: 1 sector.
    expect(find("three_loads", "load", "a", "three_loads"), 2, 64, 33, 5, 132);
    expect(find("three_loads", "load", "b", "three_loads"), 1, 32, 4, 4, 128);
    expect(find("three_loads", "store", "c", "three_loads"), 1, 32, 4, 4, 128);
    cr_expect_str_eq(lines[0].name, "a", "the most expensive line comes first");
}

Test(profile, kinds_of_one_line_are_kept_apart) {
    run("read_and_write", 0);
    cr_expect_eq(count, 2);
    expect(find("read_and_write", "load", "a", NULL), 1, 32, 4, 4, 128);
    expect(find("read_and_write", "store", "a", NULL), 1, 32, 4, 4, 128);
}

Test(profile, one_request_to_two_buffers) {
    run("two_buffers", 0);
    expect(find("two_buffers", "load", "a", "two_buffers"), 1, 16, 16, 2, 64);
    expect(find("two_buffers", "load", "b", "two_buffers"), 1, 16, 16, 2, 64);
}

Test(profile, kernels_that_share_a_line_are_kept_apart) {
    run("helped", 0);
    expect(find("first_caller", "load", "a", "helped"), 1, 32, 4, 4, 128);
    expect(find("second_caller", "load", "a", "helped"), 2, 64, 8, 8, 256);
}

// The same instructions, launched under two names.
Test(profile, launches_of_two_names_are_kept_apart) {
    run("two_names", 0);
    expect(find("copy4", "load", "a", NULL), 1, 32, 4, 4, 128);
    expect(find("same", "load", "a", NULL), 1, 32, 4, 4, 128);
}

// ---- shared memory ------------------------------------------------------------------------------

Test(profile, arrays_of_one_line_are_kept_apart) {
    run("two_tiles", 0);
    expect(find("two_tiles", "load", "straight", "two_tiles"), 2, 64, 2, 2, 0);
    expect(find("two_tiles", "load", "twice", "two_tiles"), 2, 64, 4, 2, 0);
    expect(find("two_tiles", "store", "b", "two_tiles"), 2, 64, 8, 8, 256);
    cr_expect(!lines[0].shared && lines[count - 1].shared, "global memory before shared");
}

Test(profile, dynamic_memory_is_called_smem) {
    run("bank_stride", 32);
    // 1200 words are filled by 38 requests, the last with 16 lanes; then all lanes want one bank.
    expect(find("bank_stride", "store", "smem", NULL), 38, 1200, 38, 38, 0);
    expect(find("bank_stride", "load", "smem", NULL), 1, 32, 32, 1, 0);
}

// A quarter of the warp at a time.
Test(profile, ideal_of_16_byte_accesses) {
    run("bank_stride16", 8);
    expect(find("bank_stride16", "load", "smem", NULL), 1, 32, 8, 4, 0);
}

// ---- all together -------------------------------------------------------------------------------

// Requires that the lines add up to what the simulator counts without them.
static void expect_sums(void) {
    static struct sim_counts counts;
    uint64_t sectors = 0, lanes = 0, wavefronts = 0, ideal = 0;
    sim_counts(&counts);
    for (int i = 0; i < counts.buffers; i++)
        for (int k = 0; k < SIM_KINDS; k++) sectors += counts.buffer[i].sectors[k];
    for (int i = 0; i < count; i++) {
        lanes += lines[i].lanes;
        if (!lines[i].shared)
            sectors -= lines[i].cost;
        else
            wavefronts += lines[i].cost, ideal += lines[i].ideal;
    }
    cr_expect_eq(sectors, 0);
    cr_expect_eq(lanes, counts.accesses);
    cr_expect_eq(wavefronts, counts.wavefronts);
    cr_expect_eq(ideal, counts.ideal_wavefronts);
}

Test(profile, lines_add_up_for_any_number_of_workers) {
    struct profile_line first[64];
    int of_one = 0;
    for (int workers = 1; workers <= 4; workers++) {
        sim_reset(&(struct sim_options){.profile = true, .workers = workers});
        hardware_flash(a, a, a, b, 60, true, 32);
        cr_assert_str_empty(sim_error(), "%s", sim_error());
        take_lines();
        cr_assert(count > 5 && count <= 64, "%d lines", count);
        expect_sums();
        if (workers == 1) memcpy(first, lines, (size_t)count * sizeof *first), of_one = count;
        cr_assert_eq(count, of_one);
        for (int i = 0; i < count; i++) {
            cr_expect_str_eq(lines[i].name, first[i].name);
            cr_expect_eq(lines[i].line, first[i].line);
            cr_expect_eq(lines[i].cost, first[i].cost);
            cr_expect_eq(lines[i].requests, first[i].requests);
        }
    }
}

Test(profile, launches_add_up_until_reset) {
    run("copy4", 0);
    run("copy4", 0);
    expect(find("copy4", "load", "a", NULL), 2, 64, 8, 8, 256);
    sim_reset(&(struct sim_options){.profile = true});
    take_lines();
    cr_expect_eq(count, 0);
}

Test(profile, nothing_unless_it_was_asked_for) {
    sim_reset(&(struct sim_options){0});
    run("copy4", 0);
    cr_expect_eq(count, 0);
}

// ---- the table ----------------------------------------------------------------------------------

// 4 requests of 32 lanes: 40 sectors in place of 16, 512 of their 1280 bytes used; 6 wavefronts.
Test(profile, table_has_a_section_for_each_memory, .init = cr_redirect_stdout) {
    static const struct profile_line two[] = {
        {"f<64>", "none.cu", 7, false, "atomic", "dQ", 4, 128, 40, 16, 512},
        {"f<64>", "none.cu", 9, true, "load", "tile", 4, 128, 6, 4, 0},
    };
    profile_table(two, 2);
    fflush(stdout);
    // clang-format off
    cr_expect_stdout_eq_str(
        "\n"
        "  global memory; lanes, sectors and the fewest sectors possible (ideal) are per request of a warp\n"
        "      bytes asked   share    requests  lanes    sectors  ideal      used  access              source\n"
        "             1280  100.0%           4   32.0      10.00   4.00     40.0%  atomic dQ in f<64>  none.cu:7\n"
        "             1280  100.0%           4   32.0      10.00   4.00     40.0%  all\n"
        "\n"
        "  shared memory; lanes, wavefronts and the fewest wavefronts possible (ideal) are per request of a warp\n"
        "       wavefronts   share    requests  lanes wavefronts  ideal conflicts  access              source\n"
        "                6  100.0%           4   32.0       1.50   1.00         2  load tile in f<64>  none.cu:9\n"
        "                6  100.0%           4   32.0       1.50   1.00         2  all\n");
    // clang-format on
}

// test_gallery.c - every mistake of the gallery is found where it stands, and no twin is accused.

#include "gallery/gallery.h"
#include "sim/sim.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

// What the message must say, and the code on the line that it must name (looked for from the top of
// the file, where the faulty kernel is). A launch that is refused names the launch. NULL: compilers
// differ in where they first touch the stack.
static const struct {
    const char *name, *words, *code;
} expectations[] = {
    {"barrier_in_a_branch",
     "divergent barrier: not all 128 threads of the block reach __syncthreads()",
     "__syncthreads();"},
    {"before_the_start", "out of bounds: load of 4 bytes, 4 bytes before the start of in",
     "in[i - 1]"},
    {"block_reads_its_neighbour", "blocks run in any order", "out[512 + i] = out[i] + out[i - 1]"},
    {"blocks_add_without_atomics", "race in global memory on out + 0", "out[threadIdx.x] += "},
    {"copy_not_committed", "or the copy was never committed", "out[i] = 2 * tile[i]"},
    {"copy_not_waited_for", "too early: load of tile + ", "out[i] = tile[255 - i]"},
    {"empty_from_the_start", "deadlock: no thread of the block can go on", "mbarrier_wait(&empty"},
    {"hbm_needs_a_barrier_too", "race in global memory", "out[t] = out[512 + (t + 32) % 64]"},
    {"lanes_store_together", "which of them wins is undefined", "out[0] = in[lane]"},
    {"local_array_too_large", "stack overflow", NULL},
    {"matrix_row_misaligned", "misaligned: load of 16 bytes at an address that is 8 modulo 16",
     "ldmatrix_x1("},
    {"misaligned_vector", "misaligned: load of 16 bytes at an address that is 4 modulo 16",
     "(in + 4 * t + 1)"},
    {"missing_barrier", "race in shared memory on tile + ", "out[t] = tile[255 - t]"},
    {"more_than_the_card_has",
     "233472 bytes of shared memory (233472 of them dynamic); a block may use 232448",
     "LAUNCH(faulty"},
    {"no_proxy_fence", "proxy fence missing: tile + 0", "tma_store_2d("},
    {"not_in_the_mask", "lane 16 calls __shfl_xor_sync()", "__shfl_xor_sync(0xffff,"},
    {"not_opted_in",
     "61440 bytes of dynamic shared memory, 49152 allowed; call cudaFuncSetAttribute",
     "LAUNCH(faulty"},
    {"null_pointer", "null pointer: load of 4 bytes at address 0", "bias[t];"},
    {"overwritten_too_early", "of a loop's next turn, after the load", "tile[t] = in[64 * i + t]"},
    {"past_the_panel", "in the middle of its first 8 rows of 128 bytes",
     "wgmma_m64k16<8, __half>("},
    {"product_in_a_branch", "lanes missing: mma_m16n8k16()", "mma_m16n8k16<__half>("},
    {"ragged_loop", "leave the loop", "for (int i = lane;"},
    {"return_before_a_barrier", "28 have exited", "__syncthreads();"},
    {"shuffle_in_a_branch", "lanes missing: __shfl_xor_sync()", "__shfl_xor_sync(~0u, sum, bits)"},
    {"smem_too_small",
     "out of bounds: store of 4 bytes of shared memory, 1024 bytes after the start of smem",
     "second[t] = in[256 + t]"},
    {"tail_not_guarded", "out of bounds: store of 4 bytes, 4096 bytes after the start of out",
     "out[i + 24]"},
    {"tile_read_at_once", "too early: load of tile + ", "out[t] = tile[255 - t]"},
    {"too_many_threads", "has 2048 threads; a block has at most 1024", "LAUNCH(faulty"},
    {"too_much_static_shared", "52000 bytes of __shared__ arrays; the limit is 49152 (48 KB)",
     "LAUNCH(faulty"},
    // Of which element depends on how far another block has come, whose atomics are writes, too.
    {"unwritten_global", "uninitialised: atomic of out + ", "atomicAdd(&out[threadIdx.x]"},
    {"unwritten_shared", "uninitialised: load of tile + 400 (shared memory)", "sum += tile[k]"},
    {"wait_one_too_few", "leaves one group too many pending", "float4 x = "},
    {"waiting_for_each_other", "16 wait in __syncwarp()", "__syncthreads();"},
    {"warp_without_syncwarp", "a __syncwarp() is missing", "out[lane] = tile[lane ^ 1]"},
    {"wild_pointer", "wild pointer: access to address", "in[offset + t]"},
    {"writes_its_input", "writes its input: store to in", "x[t] = x[t] / 2"},
};
enum { EXPECTATIONS = sizeof expectations / sizeof *expectations };

static float *in, *out;

static void setup(void) {
    in = sim_alloc("in", GALLERY_N * sizeof *in);
    out = sim_alloc("out", GALLERY_N * sizeof *out);
    for (int i = 0; i < GALLERY_N; i++) in[i] = (float)i;
    sim_set_written(in, true);
}

static void run(void (*launch)(const float *, float *)) {
    sim_reset(&(struct sim_options){0});
    sim_poison(out);
    launch(in, out);
}

static int line_of(const char *file, const char *code) {
    char line[400];
    FILE *f = fopen(file, "r");
    cr_assert(f, "%s: run the tests from the top of the repository", file);
    int number = 0, found = 0;
    while (!found && fgets(line, sizeof line, f)) {
        number++;
        if (strstr(line, code)) found = number;
    }
    fclose(f);
    cr_assert(found, "%s does not hold '%s'", file, code);
    return found;
}

static void expect_found(const struct gallery_entry *e, const char *words, const char *code) {
    run(e->faulty);
    const char *said = sim_error()[0] ? sim_error() : sim_warning();
    char place[200];
    snprintf(place, sizeof place, code ? "%s:%d" : "%s", e->file,
             code ? line_of(e->file, code) : 0);
    cr_expect(strstr(said, words), "%s: '%s' does not say '%s'", e->name, said, words);
    cr_expect(strstr(said, place), "%s: '%s' does not name %s", e->name, said, place);
    cr_expect(!strncmp(said, "faulty: ", 8) && !strchr(said, '\n'),
              "%s: the kernel first, and one line: '%s'", e->name, said);
}

static void expect_innocent(const struct gallery_entry *e) {
    run(e->correct);
    cr_expect_str_empty(sim_error(), "%s: the twin: %s", e->name, sim_error());
    cr_expect_str_empty(sim_warning(), "%s: the twin: %s", e->name, sim_warning());
    for (int i = 0; i < e->outputs; i++)
        cr_assert_eq(out[i], e->expected(in, i), "%s: out[%d] is %g, not %g", e->name, i, out[i],
                     e->expected(in, i));
}

Test(gallery, every_mistake_is_found_and_every_twin_passes, .init = setup) {
    cr_expect_eq(gallery_count(), EXPECTATIONS, "one expectation for each file of the gallery");
    for (int i = 0; i < gallery_count(); i++) {
        const struct gallery_entry *e = gallery_at(i);
        cr_assert_str_eq(e->name, expectations[i].name, "the list is ordered by name");
        expect_found(e, expectations[i].words, expectations[i].code);
        expect_innocent(e);
    }
}

// Which worker runs a block must not matter: cells of global memory are shared by all.
Test(gallery, with_one_worker_as_with_many, .init = setup) {
    for (int i = 0; i < gallery_count(); i++) {
        sim_reset(&(struct sim_options){.workers = 1});
        sim_poison(out);
        gallery_at(i)->faulty(in, out);
        const char *said = sim_error()[0] ? sim_error() : sim_warning();
        cr_expect(strstr(said, expectations[i].words), "%s: '%s'", gallery_at(i)->name, said);
    }
}

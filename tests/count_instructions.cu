// count_instructions.cu - how the memory system counts the instructions of ptx.h and ptx_sm90.h.
//
// A program for both machines: each line is one pattern of access, 1000 times, and what was
// counted. build/sim/count_instructions says what the simulator believes,
// build/gpu/count_instructions what a GPU's counters say (they are off by some dozens: another
// kernel's tail). Where the two differ, the simulator is wrong. What an H200 printed is in
// notes/results/h200_instructions.csv, and test_hardware.c compares.

#include "machine.h"
#include "ptx_sm90.h"

#include <stdlib.h>
#include <string.h>

namespace count_instructions {

constexpr int TURNS = 1000, TILE = 8192;

// ---- shared memory: which addresses conflict; copies: which sectors count -----------------------

// Where lane `lane` goes: pieces of 16 bytes.
enum layout {
    DENSE,       // one behind the other
    ROWS_128,    // one in each row of 128 bytes
    ROWS_144,    // the same, padded
    ROWS_64,     // one in each row of 64 bytes
    SWIZZLED_8,  // 8 lanes fill a row of 128 bytes, swizzled
    SWIZZLED_16, // 16 lanes fill a row of 256, kept as two pages of 128-byte rows, swizzled
    FAR_HALVES   // dense, but lanes l and l + 16 share a sector
};

__device__ inline int place_of(layout l, int lane) {
    switch (l) {
    case DENSE: return lane * 16;
    case ROWS_128: return lane * 128;
    case ROWS_144: return lane * 144;
    case ROWS_64: return lane * 64;
    case SWIZZLED_8: return lane / 8 * 128 + ((lane % 8 ^ lane / 8) * 16);
    case SWIZZLED_16: return lane / 8 % 2 * 4096 + lane / 16 * 128 + ((lane % 8 ^ lane / 16) * 16);
    case FAR_HALVES: return lane % 16 * 32 + lane / 16 * 16;
    }
    return 0;
}

// And where it comes from.
enum source {
    IN_ORDER,
    SWAPPED,     // as FAR_HALVES
    EVERY_OTHER, // of the pieces
    THE_SAME,    // for all lanes
    ROWS_80      // 8 lanes a row of 5 pieces; the other 3 should get zeros
};

__device__ inline int piece_of(source s, int lane) {
    switch (s) {
    case IN_ORDER: return lane;
    case SWAPPED: return lane % 16 * 2 + lane / 16;
    case EVERY_OTHER: return lane * 2;
    case THE_SAME: return 0;
    case ROWS_80: return lane / 8 * 5 + lane % 8;
    }
    return 0;
}

// Lanes without a bit in `valid` get zeros.
constexpr uint32_t ALL = ~0u, FIRST_HALF = 0xffff, FIVE_OF_EIGHT = 0x1f1f1f1f;
__device__ __host__ constexpr uint32_t row(int r) { return 0x1fu << 8 * r; }

__global__ void copy_16(const float4 *in, source s, layout l, uint32_t valid) {
    int lane = threadIdx.x;
    for (int i = 0; i < TURNS; i++) {
        cp_async_16(smem + place_of(l, lane), in + piece_of(s, lane), valid >> lane & 1);
        cp_async_wait_all();
    }
}
__global__ void store_16(layout l) {
    for (int i = 0; i < TURNS; i++) {
        *reinterpret_cast<float4 *>(smem + place_of(l, threadIdx.x)) = make_float4(i, i, i, i);
        __syncwarp(); // or only the last turn would be left
    }
}
template <bool Transposed> __global__ void load_matrices(layout l, float *out) {
    uint32_t r[4], sum = 0;
    for (int i = threadIdx.x; i < TILE / 16; i += 32)
        reinterpret_cast<float4 *>(smem)[i] = make_float4(i, i, i, i);
    __syncwarp();
    for (int i = 0; i < TURNS; i++) {
        if (Transposed)
            ldmatrix_x4_trans(r, smem + place_of(l, threadIdx.x));
        else
            ldmatrix_x4(r, smem + place_of(l, threadIdx.x));
        sum += r[0] + r[1] + r[2] + r[3];
    }
    out[threadIdx.x] = sum;
}

// ---- global memory: sums ------------------------------------------------------------------------

__global__ void red_16(float *out) {
    for (int i = 0; i < TURNS; i++) red_add_f32x4(out + 4 * threadIdx.x, make_float4(1, 1, 1, 1));
}

enum words { NEIGHBOURS, ONE, FOURTH, IN_PAIRS, TWO, HALF_ONE };

__device__ inline int word_of(words w, int lane) {
    switch (w) {
    case NEIGHBOURS: return lane;
    case ONE: return 0;
    case FOURTH: return 4 * lane;
    case IN_PAIRS: return lane / 2;
    case TWO: return lane % 2;
    case HALF_ONE: return lane < 16 ? 0 : lane;
    }
    return 0;
}
__global__ void red_4(float *out, words w) {
    for (int i = 0; i < TURNS; i++) atomicAdd(out + word_of(w, threadIdx.x), 1.f);
}
__global__ void clear(float *out) {
    for (int i = threadIdx.x; i < 1 << 14; i += 32) out[i] = 0;
}

// ---- TMA: whole boxes, or what lies in the tensor? ----------------------------------------------

__global__ void load_boxes(const __grid_constant__ CUtensorMap map, int bytes, int x, int y) {
    uint64_t *bar = reinterpret_cast<uint64_t *>(smem + TILE);
    if (threadIdx.x) return;
    mbarrier_init(bar, 1);
    mbarrier_fence_init();
    for (int i = 0; i < TURNS; i++) {
        mbarrier_arrive_expect_tx(bar, bytes);
        tma_load_2d(smem, &map, bar, x, y);
        mbarrier_wait(bar, i % 2);
    }
}
__global__ void store_boxes(const __grid_constant__ CUtensorMap map, int x, int y) {
    for (int i = threadIdx.x; i < TILE / 16; i += 32)
        reinterpret_cast<float4 *>(smem)[i] = make_float4(0, 0, 0, 0);
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 0; i < TURNS; i++) {
        tma_store_2d(&map, smem, x, y);
        tma_store_commit();
        tma_store_wait<0>();
    }
}

// A tensor of 256 rows of `width` 16-bit elements, and a box of 64 or 8 columns.
CUtensorMap map_of(const void *base, int width, int columns, int rows) {
    tensor_box box = {.base = base,
                      .element_bytes = 2,
                      .rank = 2,
                      .size = {(uint64_t)width, 256},
                      .stride = {2, (uint64_t)width * 2},
                      .box = {(uint32_t)columns, (uint32_t)rows},
                      .swizzle = columns == 64 ? SWIZZLE_128B : SWIZZLE_NONE};
    CUtensorMap map;
    char why[300];
    if (tensor_map_encode(&box, &map, why, sizeof why)) return map;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

// ---- the list -----------------------------------------------------------------------------------

const float *in; // 64 KB each
float *out;

void load_of(int width, int columns, int x, int y, int rows = 64) {
    LAUNCH(load_boxes, 1, 32, TILE + 8, map_of(in, width, columns, rows), columns * rows * 2, x, y);
}
void store_of(int width, int columns, int x, int y) {
    LAUNCH(store_boxes, 1, 32, TILE, map_of(out, width, columns, 64), x, y);
}
const float4 *in_4() { return reinterpret_cast<const float4 *>(in); }

#define SMEM(kernel, ...) [] { LAUNCH(kernel, 1, 32, TILE, __VA_ARGS__); }
const struct {
    const char *name;
    void (*run)();
} cases[] = {
    {"cp.async dense", SMEM(copy_16, in_4(), IN_ORDER, DENSE, ALL)},
    {"cp.async dense, half the lanes zero", SMEM(copy_16, in_4(), IN_ORDER, DENSE, FIRST_HALF)},
    {"cp.async rows of 128", SMEM(copy_16, in_4(), IN_ORDER, ROWS_128, ALL)},
    {"cp.async rows of 144", SMEM(copy_16, in_4(), IN_ORDER, ROWS_144, ALL)},
    {"cp.async 8 lanes a row, swizzled", SMEM(copy_16, in_4(), IN_ORDER, SWIZZLED_8, ALL)},
    {"cp.async 16 lanes a row, swizzled", SMEM(copy_16, in_4(), IN_ORDER, SWIZZLED_16, ALL)},
    {"cp.async dense, from byte 16", SMEM(copy_16, in_4() + 1, IN_ORDER, DENSE, ALL)},
    {"cp.async lanes 16 apart share sectors", SMEM(copy_16, in_4(), SWAPPED, FAR_HALVES, ALL)},
    {"cp.async every other piece", SMEM(copy_16, in_4(), EVERY_OTHER, DENSE, ALL)},
    {"cp.async one piece for all", SMEM(copy_16, in_4(), THE_SAME, DENSE, ALL)},
    {"cp.async rows of 80", SMEM(copy_16, in_4(), ROWS_80, DENSE, FIVE_OF_EIGHT)},
    {"cp.async rows of 80, swizzled", SMEM(copy_16, in_4(), ROWS_80, SWIZZLED_8, FIVE_OF_EIGHT)},
    {"cp.async rows of 80, first", SMEM(copy_16, in_4(), ROWS_80, SWIZZLED_8, row(0))},
    {"cp.async rows of 80, second", SMEM(copy_16, in_4(), ROWS_80, SWIZZLED_8, row(1))},
    {"cp.async rows of 80, fourth", SMEM(copy_16, in_4(), ROWS_80, SWIZZLED_8, row(3))},
    {"cp.async rows of 80, first two", SMEM(copy_16, in_4(), ROWS_80, SWIZZLED_8, row(0) | row(1))},
    {"cp.async rows of 80, from the fifth",
     SMEM(copy_16, in_4() + 20, ROWS_80, SWIZZLED_8, FIVE_OF_EIGHT)},
    {"cp.async rows of 80, fifth and sixth",
     SMEM(copy_16, in_4() + 20, ROWS_80, SWIZZLED_8, row(0) | row(1))},
    {"st.shared.v4 dense", SMEM(store_16, DENSE)},
    {"st.shared.v4 rows of 128", SMEM(store_16, ROWS_128)},
    {"st.shared.v4 16 lanes a row, swizzled", SMEM(store_16, SWIZZLED_16)},
    {"ldmatrix.x4 dense", SMEM(load_matrices<false>, DENSE, out)},
    {"ldmatrix.x4 rows of 128", SMEM(load_matrices<false>, ROWS_128, out)},
    {"ldmatrix.x4 rows of 144", SMEM(load_matrices<false>, ROWS_144, out)},
    {"ldmatrix.x4 rows of 64", SMEM(load_matrices<false>, ROWS_64, out)},
    {"ldmatrix.x4 swizzled", SMEM(load_matrices<false>, SWIZZLED_8, out)},
    {"ldmatrix.x4.trans rows of 128", SMEM(load_matrices<true>, ROWS_128, out)},
    {"ldmatrix.x4.trans rows of 144", SMEM(load_matrices<true>, ROWS_144, out)},
    {"red.v4 neighbours", SMEM(red_16, out)},
    {"atomicAdd neighbours", SMEM(red_4, out, NEIGHBOURS)},
    {"atomicAdd one address", SMEM(red_4, out, ONE)},
    {"atomicAdd stride 4", SMEM(red_4, out, FOURTH)},
    {"atomicAdd two lanes a word", SMEM(red_4, out, IN_PAIRS)},
    {"atomicAdd two words", SMEM(red_4, out, TWO)},
    {"atomicAdd half the lanes one address", SMEM(red_4, out, HALF_ONE)},
    {"TMA load 64 x 64 inside", [] { load_of(64, 64, 0, 0); }},
    {"TMA load 64 x 64, 33 rows inside", [] { load_of(64, 64, 0, 223); }},
    {"TMA load 64 x 64 of 8 columns", [] { load_of(8, 64, 0, 0); }},
    {"TMA load 64 x 64 of 40 columns", [] { load_of(40, 64, 0, 0); }},
    {"TMA load 64 x 64 outside", [] { load_of(64, 64, 0, 1000); }},
    {"TMA load 8 x 64 of 64 columns", [] { load_of(64, 8, 8, 0); }},
    {"TMA load 64 x 64 of 48 columns", [] { load_of(48, 64, 0, 0); }},
    {"TMA load 64 x 64 from column 8 of 128", [] { load_of(128, 64, 8, 0); }},
    {"TMA load 64 x 64 from column -8", [] { load_of(64, 64, -8, 0); }},
    {"TMA load 8 x 64 of 40 columns", [] { load_of(40, 8, 0, 0); }},
    {"TMA load 64 x 1 of 40 columns, row 0", [] { load_of(40, 64, 0, 0, 1); }},
    {"TMA load 64 x 1 of 40 columns, row 1", [] { load_of(40, 64, 0, 1, 1); }},
    {"TMA store 64 x 64 inside", [] { store_of(64, 64, 0, 0); }},
    {"TMA store 64 x 64, 33 rows inside", [] { store_of(64, 64, 0, 223); }},
    {"TMA store 64 x 64 of 8 columns", [] { store_of(8, 64, 0, 0); }},
    {"TMA store 64 x 64 of 40 columns", [] { store_of(40, 64, 0, 0); }},
    {"TMA store 64 x 64 outside", [] { store_of(64, 64, 0, 1000); }},
    {"TMA store 8 x 64 of 64 columns", [] { store_of(64, 8, 8, 0); }},
    {"TMA store 64 x 64 from column 8 of 128", [] { store_of(128, 64, 8, 0); }},
};

void (*chosen)();
void call(const attn_problem *, const attn_tensors *) { chosen(); }

void count(int i) {
    static measurement m;
    attn_problem problem = {};
    attn_tensors tensors = {};
    machine_work work = {call, &problem, &tensors};
    chosen = [] { LAUNCH(clear, 1, 32, 0, out); }; // in a run of its own, which is not counted
    machine_run(&work, &m);
    chosen = cases[i].run;
    machine_run(&work, &m);
    machine_measure(&work, 1, &m);
    auto each = [](uint64_t n) { return (double)n / TURNS; };
    printf("\"%s\",%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,\"%s\"\n", cases[i].name, each(m.asked.load),
           each(m.asked.store), each(m.asked.atomic), each(m.asked.tma_load),
           each(m.asked.tma_store), each(m.bank_conflicts), m.error[0] ? m.error : m.note);
}

} // namespace count_instructions

using namespace count_instructions;

int main() {
    static machine machine;
    char why[300];
    machine_options options = {};
    if (!machine_open(&options, &machine, why, sizeof why)) return fprintf(stderr, "%s\n", why), 3;
    if (machine.sm != 90) return fprintf(stderr, "needs Hopper, sm_90\n"), 3;
    static float numbers[1 << 14];
    void *input = machine_alloc("in", sizeof numbers);
    out = static_cast<float *>(machine_alloc("out", sizeof numbers));
    machine_write(input, numbers, sizeof numbers);
    in = static_cast<const float *>(input);
    printf("# %s: bytes and conflicts, each divided by %d\n", machine.name, TURNS);
    printf("pattern,load,store,atomic,tma_load,tma_store,conflicts,remark\n");
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) count(i);
    return 0;
}

// count_instructions.cu - how the memory system counts the instructions of ptx.h and ptx_sm90.h.
//
// A program for both machines: each line is one pattern of access, 1000 times, and what was
// counted. build/sim/count_instructions says what the simulator believes,
// build/gpu/count_instructions what a GPU's counters say (they are off by some dozens: another
// kernel's tail). Where the two differ, the simulator is wrong.

#include "machine.h"
#include "ptx_sm90.h"

#include <stdlib.h>
#include <string.h>

namespace count_instructions {

constexpr int TURNS = 1000, TILE = 8192;

// ---- shared memory: which addresses conflict ----------------------------------------------------

// Where lane `lane` goes: pieces of 16 bytes.
enum layout {
    DENSE,      // one behind the other
    ROWS_128,   // one in each row of 128 bytes
    ROWS_144,   // the same, padded
    ROWS_64,    // one in each row of 64 bytes
    SWIZZLED_8, // 8 lanes fill a row of 128 bytes, swizzled
    SWIZZLED_16 // 16 lanes fill a row of 256, kept as two pages of 128-byte rows, swizzled
};

__device__ inline int place_of(layout l, int lane) {
    switch (l) {
    case DENSE: return lane * 16;
    case ROWS_128: return lane * 128;
    case ROWS_144: return lane * 144;
    case ROWS_64: return lane * 64;
    case SWIZZLED_8: return lane / 8 * 128 + ((lane % 8 ^ lane / 8) * 16);
    case SWIZZLED_16: return lane / 8 % 2 * 4096 + lane / 16 * 128 + ((lane % 8 ^ lane / 16) * 16);
    }
    return 0;
}

__global__ void copy_16(const float4 *in, layout l, int valid) {
    for (int i = 0; i < TURNS; i++) {
        cp_async_16(smem + place_of(l, threadIdx.x), in + threadIdx.x, (int)threadIdx.x < valid);
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
__global__ void red_4(float *out, int stride) {
    for (int i = 0; i < TURNS; i++) atomicAdd(out + stride * threadIdx.x, 1.f);
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

// A tensor of 16-bit elements, [rows][width], and a box of 64 or 8 columns and 64 rows.
CUtensorMap map_of(const void *base, int width, int rows, int columns) {
    tensor_box box = {.base = base,
                      .element_bytes = 2,
                      .rank = 2,
                      .size = {(uint64_t)width, (uint64_t)rows},
                      .stride = {2, (uint64_t)width * 2},
                      .box = {(uint32_t)columns, 64},
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

void load_of(int width, int rows, int columns, int x, int y) {
    LAUNCH(load_boxes, 1, 32, TILE + 8, map_of(in, width, rows, columns), columns * 64 * 2, x, y);
}
void store_of(int width, int rows, int columns, int x, int y) {
    LAUNCH(store_boxes, 1, 32, TILE, map_of(out, width, rows, columns), x, y);
}
const float4 *in_4() { return reinterpret_cast<const float4 *>(in); }

#define SMEM(kernel, ...) [] { LAUNCH(kernel, 1, 32, TILE, __VA_ARGS__); }
const struct {
    const char *name;
    void (*run)();
} cases[] = {
    {"cp.async dense", SMEM(copy_16, in_4(), DENSE, 32)},
    {"cp.async dense, half the lanes zero", SMEM(copy_16, in_4(), DENSE, 16)},
    {"cp.async rows of 128", SMEM(copy_16, in_4(), ROWS_128, 32)},
    {"cp.async rows of 144", SMEM(copy_16, in_4(), ROWS_144, 32)},
    {"cp.async 8 lanes a row, swizzled", SMEM(copy_16, in_4(), SWIZZLED_8, 32)},
    {"cp.async 16 lanes a row, swizzled", SMEM(copy_16, in_4(), SWIZZLED_16, 32)},
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
    {"atomicAdd neighbours", SMEM(red_4, out, 1)},
    {"atomicAdd one address", SMEM(red_4, out, 0)},
    {"atomicAdd stride 4", SMEM(red_4, out, 4)},
    {"TMA load 64 x 64 inside", [] { load_of(64, 256, 64, 0, 0); }},
    {"TMA load 64 x 64, 33 rows inside", [] { load_of(64, 256, 64, 0, 223); }},
    {"TMA load 64 x 64 of 8 columns", [] { load_of(8, 256, 64, 0, 0); }},
    {"TMA load 64 x 64 of 40 columns", [] { load_of(40, 256, 64, 0, 0); }},
    {"TMA load 64 x 64 outside", [] { load_of(64, 256, 64, 0, 1000); }},
    {"TMA load 8 x 64 of 64 columns", [] { load_of(64, 256, 8, 8, 0); }},
    {"TMA store 64 x 64 inside", [] { store_of(64, 256, 64, 0, 0); }},
    {"TMA store 64 x 64, 33 rows inside", [] { store_of(64, 256, 64, 0, 223); }},
    {"TMA store 64 x 64 of 8 columns", [] { store_of(8, 256, 64, 0, 0); }},
    {"TMA store 64 x 64 of 40 columns", [] { store_of(40, 256, 64, 0, 0); }},
    {"TMA store 64 x 64 outside", [] { store_of(64, 256, 64, 0, 1000); }},
    {"TMA store 8 x 64 of 64 columns", [] { store_of(64, 256, 8, 8, 0); }},
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

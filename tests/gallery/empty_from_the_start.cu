// A producer thread and a consumer warp hand over four tiles.

#include "gallery.h"
#include "ptx_sm90.h"

namespace empty_from_the_start {

__global__ void faulty(const __grid_constant__ CUtensorMap map, float *out) {
    __shared__ __align__(128) float tile[256];
    __shared__ uint64_t full, empty;
    int t = threadIdx.x;
    if (t == 0) {
        mbarrier_init(&full, 1);
        mbarrier_init(&empty, 32);
        mbarrier_fence_init();
    }
    __syncthreads(); // the barriers are ready
    for (int i = 0; i < 4; i++) {
        if (t == 32) { // the producer
            mbarrier_wait(&empty, i % 2);
            mbarrier_arrive_expect_tx(&full, sizeof tile);
            tma_load_2d(tile, &map, &full, 0, 8 * i);
        }
        if (t < 32) { // the consumers
            mbarrier_wait(&full, i % 2);
            for (int k = t; k < 256; k += 32) out[256 * i + k] = tile[k];
            mbarrier_arrive(&empty);
        }
    }
}

// in: rows of 32 floats, and boxes of 8 rows.
static CUtensorMap map_of(const float *p) {
    tensor_box box = {.base = p,
                      .element_bytes = 4,
                      .rank = 2,
                      .size = {32, 32},
                      .stride = {4, 128},
                      .box = {32, 8}};
    CUtensorMap map;
    char why[300];
    if (!tensor_map_encode(&box, &map, why, sizeof why)) printf("%s\n", why);
    return map;
}

static void launch_faulty(const float *in, float *out) {
    LAUNCH(faulty, 1, 64, 0, map_of(in), out);
}

// ---- the correct twin: find the fault above first -----------------------------------------------

// In turn i the producer needs phase i - 1 of `empty`; "phase -1" has the parity 1, and on a fresh
// barrier a wait for it passes.
__global__ void correct(const __grid_constant__ CUtensorMap map, float *out) {
    __shared__ __align__(128) float tile[256];
    __shared__ uint64_t full, empty;
    int t = threadIdx.x;
    if (t == 0) {
        mbarrier_init(&full, 1);
        mbarrier_init(&empty, 32);
        mbarrier_fence_init();
    }
    __syncthreads(); // the barriers are ready
    for (int i = 0; i < 4; i++) {
        if (t == 32) { // the producer
            mbarrier_wait(&empty, (i + 1) % 2);
            mbarrier_arrive_expect_tx(&full, sizeof tile);
            tma_load_2d(tile, &map, &full, 0, 8 * i);
        }
        if (t < 32) { // the consumers
            mbarrier_wait(&full, i % 2);
            for (int k = t; k < 256; k += 32) out[256 * i + k] = tile[k];
            mbarrier_arrive(&empty);
        }
    }
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(correct, 1, 64, 0, map_of(in), out);
}
static float expected(const float *in, int i) { return in[i]; }

GALLERY(empty_from_the_start, "a producer waits until somebody frees what nobody has filled", 1024,
        expected);

} // namespace empty_from_the_start

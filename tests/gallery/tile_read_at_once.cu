// Reverses a tile that TMA brings.

#include "gallery.h"
#include "ptx_sm90.h"

namespace tile_read_at_once {

__global__ void faulty(const __grid_constant__ CUtensorMap map, float *out) {
    __shared__ __align__(128) float tile[256];
    __shared__ uint64_t full;
    int t = threadIdx.x;
    if (t == 0) {
        mbarrier_init(&full, 1);
        mbarrier_fence_init();
        mbarrier_arrive_expect_tx(&full, sizeof tile);
        tma_load_2d(tile, &map, &full, 0, 0);
    }
    __syncthreads();
    out[t] = tile[255 - t];
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
    LAUNCH(faulty, 1, 256, 0, map_of(in), out);
}

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const __grid_constant__ CUtensorMap map, float *out) {
    __shared__ __align__(128) float tile[256];
    __shared__ uint64_t full;
    int t = threadIdx.x;
    if (t == 0) {
        mbarrier_init(&full, 1);
        mbarrier_fence_init();
        mbarrier_arrive_expect_tx(&full, sizeof tile);
        tma_load_2d(tile, &map, &full, 0, 0);
    }
    __syncthreads();         // the barrier is one: that is all this says
    mbarrier_wait(&full, 0); // phase 0 ends when the bytes have come
    out[t] = tile[255 - t];
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(correct, 1, 256, 0, map_of(in), out);
}
static float expected(const float *in, int i) { return in[255 - i]; }

GALLERY(tile_read_at_once, "a barrier for threads is taken to wait for TMA", 256, expected);

} // namespace tile_read_at_once

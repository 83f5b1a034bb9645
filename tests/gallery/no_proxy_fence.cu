// Doubles a tile and stores it by TMA.

#include "gallery.h"
#include "ptx_sm90.h"

namespace no_proxy_fence {

__global__ void faulty(const float *in, const __grid_constant__ CUtensorMap map) {
    __shared__ __align__(128) float tile[256];
    int t = threadIdx.x;
    tile[t] = 2 * in[t];
    __syncthreads();
    if (t == 0) {
        tma_store_2d(&map, tile, 0, 0);
        tma_store_commit();
        tma_store_wait<0>();
    }
}

// out: rows of 32 floats, and boxes of 8 rows.
static CUtensorMap map_of(float *p) {
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
    LAUNCH(faulty, 1, 256, 0, in, map_of(out));
}

// ---- the correct twin: find the fault above first -----------------------------------------------

__global__ void correct(const float *in, const __grid_constant__ CUtensorMap map) {
    __shared__ __align__(128) float tile[256];
    int t = threadIdx.x;
    tile[t] = 2 * in[t];
    fence_proxy_async(); // TMA reads on another way: each thread makes visible what it has stored,
    __syncthreads();     // and all have
    if (t == 0) {
        tma_store_2d(&map, tile, 0, 0);
        tma_store_commit();
        tma_store_wait<0>();
    }
}

static void launch_correct(const float *in, float *out) {
    LAUNCH(correct, 1, 256, 0, in, map_of(out));
}
static float expected(const float *in, int i) { return 2 * in[i]; }

GALLERY(no_proxy_fence, "TMA stores what threads have just written", 256, expected);

} // namespace no_proxy_fence

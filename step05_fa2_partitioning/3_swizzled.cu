// step05, rung 3: swizzled tiles and ldmatrix.
//
// The idea: one ldmatrix fetches what rung 2 fetched with four loads of 4 bytes or eight of 2, for
// 32 lanes at once; and the tiles are stored so that its 8 rows lie in different banks (swizzle.h).
// The products, the softmax and the bytes from HBM are those of rung 2.
//
// New since rung 2: swizzle.h, with the products of rungs 3 to 5; load_tile.
//
// Run:     make run ARGS="--kernel swizzled -d 64"     (in this folder)
// Limits:  fp16, bf16; d = 64, 128; forward only.

#include "softmax.h"
#include "swizzle.h"

namespace step05_3 {

using namespace step05;
using namespace step05::plain;

constexpr int Br = 64;
constexpr int Warps = Br / 16, Threads = Warps * Lanes;

// Copies `rows` rows of D elements, 8 elements a thread, and fills the rest of the tile with zeros.
template <class T, int D>
__device__ static void load_tile(T (&tile)[64 * D], const T *hbm, int rows) {
    for (int n = threadIdx.x; n < 64 * D / 8; n += Threads) {
        int r = n / (D / 8), c = n % (D / 8) * 8;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (r < rows) x = *(const uint4 *)&hbm[(size_t)r * D + c];
        *(uint4 *)&tile[swizzled<D>(r, c)] = x;
    }
}

// grid: B * H * ceil(Nq / 64) tiles of queries
template <class T, int D>
__global__ void __launch_bounds__(Threads) swizzled_tiles(const T *Q_hbm, // [B, H, Nq, D]
                                                          const T *K_hbm, // [B, Hkv, Nk, D]
                                                          const T *V_hbm, // [B, Hkv, Nk, D]
                                                          T *O_hbm,       // [B, H, Nq, D]
                                                          float *LSE_hbm, // [B, H, Nq]
                                                          shape s) {
    __shared__ __align__(128) T Q_smem[Br * D];
    __shared__ __align__(128) T K_smem[Bc * D];
    __shared__ __align__(128) T V_smem[Bc * D];
    int tiles = (s.Nq + Br - 1) / Br, bh = blockIdx.x / tiles;
    int i0 = blockIdx.x % tiles * Br, warp = threadIdx.x / Lanes;
    size_t row = (size_t)bh * s.Nq + i0, key = kv_head(s, bh) * s.Nk;

    load_tile<T, D>(Q_smem, Q_hbm + row * D, s.Nq - i0);
    float O[D / 8][4] = {};
    rows r;
    int keys = keys_seen(s, i0 + Br);
    for (int j0 = 0; j0 < keys; j0 += Bc) {
        load_tile<T, D>(K_smem, K_hbm + (key + j0) * D, s.Nk - j0);
        load_tile<T, D>(V_smem, V_hbm + (key + j0) * D, s.Nk - j0);
        __syncthreads(); // the tiles are complete
        float S[Bc / 8][4];
        multiply_QK<T, D>(S, Q_smem, K_smem, 16 * warp);
        mask(S, s, i0 + 16 * warp, j0);
        online_softmax<D>(S, O, r);
        multiply_PV<T, D>(O, S, V_smem);
        __syncthreads(); // all have read K and V: the next turn overwrites
    }
    row += 16 * warp;
    store<T, D>(O_hbm + row * D, LSE_hbm + row, O, r, s.Nq - i0 - 16 * warp);
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

template <class T, int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    LAUNCH((swizzled_tiles<T, D>), grid, Threads, 0, (const T *)t->Q, (const T *)t->K,
           (const T *)t->V, (T *)t->O, t->LSE, shape_of(p));
}

static void forward(const attn_problem *p, const attn_tensors *t) { STEP05_DISPATCH(launch, p, t); }

// O leaves 4 bytes a lane, 16 bytes a row and request: half of each sector.
static attn_traffic model(const attn_problem *p, unsigned) {
    return forward_traffic(p, Br, Bc, 16, 8);
}

static const attn_kernel kernel = {
    .step = "step05_fa2_partitioning",
    .rung = 3,
    .name = "swizzled",
    .idea = "ldmatrix from swizzled tiles: no bank conflicts",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD,
    .least_sm = 80,
    .supports = takes_64_and_128<Br + 2 * Bc>,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step05_3

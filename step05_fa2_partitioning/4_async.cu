// step05, rung 4: copies in the background.
//
// The idea: rung 3 waits for each tile of K and V, and multiplies nothing meanwhile. cp.async
// copies from HBM to shared memory without a register and without a thread to wait for it. With two
// buffers for K and V the next tiles are on their way while the warps work on these; a block waits
// only if they are late. One barrier for each turn is left.
//
// New since rung 3: cp.async instead of loads and stores, two buffers, dynamic shared memory.
//
// Run:     make run ARGS="--kernel async -d 64"     (in this folder)
// Limits:  fp16, bf16; d = 64, 128; forward only.

#include "softmax.h"
#include "swizzle.h"

namespace step05_4 {

using namespace step05;
using namespace step05::plain;

constexpr int Br = 64;
constexpr int Warps = Br / 16, Threads = Warps * Lanes;

//> start-copy
// Starts copying `rows` rows of D elements, 8 elements a thread, and zeros for the rest of the
// tile. The caller waits for them.
template <class T, int D> __device__ static void start_copy(T *tile, const T *hbm, int rows) {
    for (int n = threadIdx.x; n < 64 * D / 8; n += Threads) {
        int r = n / (D / 8), c = n % (D / 8) * 8;
        cp_async_16(tile + swizzled<D>(r, c), hbm + (size_t)r * D + c, r < rows);
    }
}
//< start-copy

template <int D> constexpr int smem_elements = Br *D + 2 * 2 * Bc *D; // Q, two of K, two of V

// grid: B * H * ceil(Nq / 64) tiles of queries
template <class T, int D>
__global__ void __launch_bounds__(Threads) async_copies(const T *Q_hbm, // [B, H, Nq, D]
                                                        const T *K_hbm, // [B, Hkv, Nk, D]
                                                        const T *V_hbm, // [B, Hkv, Nk, D]
                                                        T *O_hbm,       // [B, H, Nq, D]
                                                        float *LSE_hbm, // [B, H, Nq]
                                                        shape s) {
    T *Q_smem = (T *)smem, *K_smem = Q_smem + Br * D, *V_smem = K_smem + 2 * Bc * D;
    int tiles = (s.Nq + Br - 1) / Br, bh = blockIdx.x / tiles;
    int i0 = blockIdx.x % tiles * Br, warp = threadIdx.x / Lanes;
    size_t row = (size_t)bh * s.Nq + i0, key = kv_head(s, bh) * s.Nk;

    float O[D / 8][4] = {};
    rows r;
    int keys = keys_seen(s, i0 + Br);
    start_copy<T, D>(Q_smem, Q_hbm + row * D, s.Nq - i0);
    if (keys > 0) {
        start_copy<T, D>(K_smem, K_hbm + key * D, s.Nk);
        start_copy<T, D>(V_smem, V_hbm + key * D, s.Nk);
    }
    //> loop
    for (int j0 = 0, now = 0; j0 < keys; j0 += Bc, now ^= 1) {
        cp_async_wait_all(); // this thread's copies have arrived
        __syncthreads();     // and the others', and nobody still reads the other buffers
        int next = j0 + Bc;
        if (next < keys) {
            start_copy<T, D>(K_smem + (now ^ 1) * Bc * D, K_hbm + (key + next) * D, s.Nk - next);
            start_copy<T, D>(V_smem + (now ^ 1) * Bc * D, V_hbm + (key + next) * D, s.Nk - next);
        }
        float S[Bc / 8][4];
        multiply_QK<T, D>(S, Q_smem, K_smem + now * Bc * D, 16 * warp);
        mask(S, s, i0 + 16 * warp, j0);
        online_softmax<D>(S, O, r);
        multiply_PV<T, D>(O, S, V_smem + now * Bc * D);
    }
    //< loop
    cp_async_wait_all(); // of a block that has no keys: Q
    row += 16 * warp;
    store<T, D>(O_hbm + row * D, LSE_hbm + row, O, r, s.Nq - i0 - 16 * warp);
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

template <class T, int D> static void launch(const attn_problem *p, const attn_tensors *t) {
    unsigned grid = p->batch * p->heads * ceil_div(p->seqlen_q, Br);
    const int bytes = smem_elements<D> * sizeof(T);
    cudaFuncSetAttribute(async_copies<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((async_copies<T, D>), grid, Threads, bytes, (const T *)t->Q, (const T *)t->K,
           (const T *)t->V, (T *)t->O, t->LSE, shape_of(p));
}

static void forward(const attn_problem *p, const attn_tensors *t) { STEP05_DISPATCH(launch, p, t); }

// O leaves 4 bytes a lane, 16 bytes a row and request: half of each sector.
static attn_traffic model(const attn_problem *p, unsigned) {
    return forward_traffic(p, Br, Bc, 16, 8);
}

static const attn_kernel kernel = {
    .step = "step05_fa2_partitioning",
    .rung = 4,
    .name = "async",
    .idea = "cp.async into two buffers, while the warps work",
    .formula = "about 4 d N^2 / Br loaded for each head",
    .dtypes = 1u << ATTN_BF16 | 1u << ATTN_FP16,
    .passes = ATTN_FORWARD,
    .least_sm = 80,
    .supports = takes_64_and_128<Br + 4 * Bc>,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step05_4

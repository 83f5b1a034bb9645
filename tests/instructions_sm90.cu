// instructions_sm90.cu - each instruction of ptx_sm90.h alone, to be run on both machines.

#include "instructions_sm90.h"
#include "ptx_sm90.h"

#include <stdlib.h>
#include <string.h>

namespace instructions_sm90 {

constexpr int BARRIERS = 64 << 10; // where mbarriers lie in smem, behind all tiles

CUtensorMap map_of(const tensor_box &box) {
    CUtensorMap map;
    char why[300];
    if (tensor_map_encode(&box, &map, why, sizeof why)) return map;
    fprintf(stderr, "%s\n", why);
    abort();
}

template <class... Parameters> void allow(void (*kernel)(Parameters...), int bytes) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

// One mbarrier for one thread's arrival, ready for all.
__device__ inline uint64_t *one_barrier() {
    uint64_t *bar = reinterpret_cast<uint64_t *>(smem + BARRIERS);
    if (threadIdx.x == 0) {
        mbarrier_init(bar, 1);
        mbarrier_fence_init();
    }
    __syncthreads(); // nobody uses it before it is one
    return bar;
}

// ---- TMA ----------------------------------------------------------------------------------------

struct place {
    int x, y, z, w;
};

template <int Rank>
__global__ void load_box(const __grid_constant__ CUtensorMap map, place at, uint4 *out,
                         int pieces) {
    uint64_t *bar = one_barrier();
    if (threadIdx.x == 0) {
        prefetch_tensormap(&map);
        mbarrier_arrive_expect_tx(bar, pieces * 16);
        if (Rank == 2) tma_load_2d(smem, &map, bar, at.x, at.y);
        if (Rank == 3) tma_load_3d(smem, &map, bar, at.x, at.y, at.z);
        if (Rank == 4) tma_load_4d(smem, &map, bar, at.x, at.y, at.z, at.w);
    }
    mbarrier_wait(bar, 0);
    for (int i = threadIdx.x; i < pieces; i += 128) out[i] = reinterpret_cast<uint4 *>(smem)[i];
}

template <int Rank>
__global__ void store_box(const __grid_constant__ CUtensorMap map, place at, const uint4 *in,
                          int pieces) {
    for (int i = threadIdx.x; i < pieces; i += 128) reinterpret_cast<uint4 *>(smem)[i] = in[i];
    fence_proxy_async(); // what this thread has stored is there for TMA,
    __syncthreads();     // and so is what the others have
    if (threadIdx.x == 0) {
        if (Rank == 2) tma_store_2d(&map, smem, at.x, at.y);
        if (Rank == 3) tma_store_3d(&map, smem, at.x, at.y, at.z);
        if (Rank == 4) tma_store_4d(&map, smem, at.x, at.y, at.z, at.w);
        tma_store_commit();
        tma_store_wait<0>();
    }
}

__global__ void clear(uint32_t *out, int words) {
    for (int i = threadIdx.x; i < words; i += 128) out[i] = 0;
}

// ---- barriers -----------------------------------------------------------------------------------

// Warp 0 hands numbers to warp 1, one slot, five times: full and empty are barriers of 32 arrivals.
__global__ void mbarrier_ring(const uint32_t *in, uint32_t *out) { // [5][32] each
    __shared__ uint32_t slot[32];
    __shared__ uint64_t full, empty;
    int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 32);
        mbarrier_init(&empty, 32);
        mbarrier_fence_init();
    }
    __syncthreads(); // the barriers are ready
    for (int i = 0; i < 5; i++) {
        if (threadIdx.x < 32) {
            mbarrier_wait(&empty, (i + 1) % 2); // passes at once in the first turn
            slot[lane] = in[32 * i + lane];
            mbarrier_arrive(&full);
        } else {
            mbarrier_wait(&full, i % 2);
            out[32 * i + lane] = slot[31 - lane];
            mbarrier_arrive(&empty);
        }
    }
}

// The same by named barriers: 1 is "full", 2 is "empty".
__global__ void named_ring(const uint32_t *in, uint32_t *out) {
    __shared__ uint32_t slot[32];
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 5; i++) {
        if (threadIdx.x < 32) {
            if (i > 0) named_barrier_sync(2, 64);
            slot[lane] = in[32 * i + lane];
            named_barrier_arrive(1, 64);
        } else {
            named_barrier_sync(1, 64);
            out[32 * i + lane] = slot[31 - lane];
            if (i < 4) named_barrier_arrive(2, 64);
        }
    }
}

// How many lanes of each of 12 warps are elected, with the registers dealt out anew.
__global__ void __launch_bounds__(384, 1) roles(uint32_t *out) { // [12]
    if (threadIdx.x < 128)
        setmaxnreg_dec<24>();
    else
        setmaxnreg_inc<240>();
    uint32_t elected = __ballot_sync(~0u, elect_one());
    if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = __popc(elected);
}

// ---- stmatrix -----------------------------------------------------------------------------------

// Row i of matrix m goes to piece 31 - (8 m + i) of shared memory, and all of that to HBM.
__global__ void stmatrix(const uint32_t (*in)[32], uint4 *out) { // [matrix][lane]; 32 pieces
    int lane = threadIdx.x;
    uint32_t r[4] = {in[0][lane], in[1][lane], in[2][lane], in[3][lane]};
    uint4 *pieces = reinterpret_cast<uint4 *>(smem);
    stmatrix_x4(&pieces[31 - lane], r);
    __syncwarp(); // other lanes' rows
    out[lane] = pieces[lane];
}

// ---- wgmma --------------------------------------------------------------------------------------

// D[64 x N] = A[64 x 64] B[64 x N], in 4 steps along k. A operand is K-major if its k are
// neighbours in HBM: A is then [64][64] and B [N][64]; and MN-major otherwise, A^T and B^T.
constexpr int K = 64, A_BYTES = 64 * K * 2;

// An operand in shared memory with SWIZZLE_128B: panels of 64 columns of HBM, 128 bytes a row.
// K-major has one panel of `rows` rows, MN-major as many as `rows` needs, of 64 rows (of k) each.
__device__ inline void load_swizzled(const CUtensorMap *map, uint64_t *bar, unsigned char *to,
                                     int rows, bool mn_major) {
    if (!mn_major)
        tma_load_2d(to, map, bar, 0, 0);
    else
        for (int p = 0; p < (rows + 63) / 64; p++)
            tma_load_2d(to + p * 64 * 128, map, bar, 64 * p, 0);
}
__device__ inline uint64_t swizzled(const unsigned char *tile, int step, bool mn_major) {
    return mn_major ? wgmma_moved(wgmma_mn_major(tile, 64 * 128), step * 16 * 128)
                    : wgmma_moved(wgmma_k_major(tile), step * 16 * 2);
}

// Without swizzling: columns of 8 elements, 16 bytes a row; 8 rows make the unit that wgmma reads.
__device__ inline void load_plain(const CUtensorMap *map, uint64_t *bar, unsigned char *to,
                                  int rows, bool mn_major) {
    int columns = mn_major ? rows : K, height = mn_major ? K : rows;
    for (int c = 0; c < columns / 8; c++) tma_load_2d(to + c * height * 16, map, bar, 8 * c, 0);
}
__device__ inline uint64_t plain(const unsigned char *tile, int step, int rows, bool mn_major) {
    if (mn_major) // down a column along k: 8 k are 128 bytes; the next column is 8 more of n
        return wgmma_descriptor(tile + step * 16 * 16, 128, K * 16, SWIZZLE_NONE);
    return wgmma_descriptor(tile + step * 2 * rows * 16, rows * 16, 128, SWIZZLE_NONE);
}

__device__ inline int operand_bytes(int rows, bool mn_major, bool swizzle) {
    return mn_major && swizzle ? (rows + 63) / 64 * 64 * 128 : rows * K * 2;
}

template <int N, class T, wgmma_major MajorA, wgmma_major MajorB, bool Swizzle>
__global__ void __launch_bounds__(128)
    product(const __grid_constant__ CUtensorMap map_A, const __grid_constant__ CUtensorMap map_B,
            float (*out)[N / 2]) { // [thread][register]
    uint64_t *bar = one_barrier();
    unsigned char *A = smem, *B = smem + A_BYTES;
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(bar, A_BYTES + operand_bytes(N, MajorB, Swizzle));
        (Swizzle ? load_swizzled : load_plain)(&map_A, bar, A, 64, MajorA);
        (Swizzle ? load_swizzled : load_plain)(&map_B, bar, B, N, MajorB);
    }
    mbarrier_wait(bar, 0);
    float d[N / 2];
    wgmma_fence(d);
#pragma unroll
    for (int i = 0; i < K / 16; i++)
        wgmma_m64k16<N, T, MajorA, MajorB>(
            d, Swizzle ? swizzled(A, i, MajorA) : plain(A, i, 64, MajorA),
            Swizzle ? swizzled(B, i, MajorB) : plain(B, i, N, MajorB), i > 0);
    wgmma_commit();
    wgmma_wait<0>(d);
#pragma unroll
    for (int i = 0; i < N / 2; i++) out[threadIdx.x][i] = d[i];
}

// A from registers, taken from HBM as ptx.h lays out the a of mma.
template <int N, class T, wgmma_major MajorB>
__global__ void __launch_bounds__(128)
    product_from_registers(const T *A, const __grid_constant__ CUtensorMap map_B,
                           float (*out)[N / 2]) {
    uint64_t *bar = one_barrier();
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(bar, operand_bytes(N, MajorB, true));
        load_swizzled(&map_B, bar, smem, N, MajorB);
    }
    uint32_t a[K / 16][4];
    const uint32_t *pairs = reinterpret_cast<const uint32_t *>(A); // [64][K / 2]
#pragma unroll
    for (int i = 0; i < K / 16; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) // rows g and g + 8, then the same 8 columns further
            a[i][r] = pairs[(16 * warp + g + r % 2 * 8) * K / 2 + 8 * i + t + r / 2 * 4];
    mbarrier_wait(bar, 0);
    float d[N / 2];
    wgmma_fence(d);
#pragma unroll
    for (int i = 0; i < K / 16; i++)
        wgmma_m64k16<N, T, MajorB>(d, a[i], swizzled(smem, i, MajorB), i > 0);
    wgmma_commit();
    wgmma_wait<0>(d);
#pragma unroll
    for (int i = 0; i < N / 2; i++) out[threadIdx.x][i] = d[i];
}

// A matrix [height][width] of 16-bit elements, in boxes of that many columns and all rows.
CUtensorMap matrix_map(const void *base, int width, int height, int columns, tensor_swizzle s) {
    return map_of({.base = base,
                   .element_bytes = 2,
                   .rank = 2,
                   .size = {(uint64_t)width, (uint64_t)height},
                   .stride = {2, (uint64_t)width * 2},
                   .box = {(uint32_t)columns, (uint32_t)height},
                   .swizzle = s});
}
CUtensorMap operand_map(const void *base, int rows, bool mn_major, bool swizzle) {
    return matrix_map(base, mn_major ? rows : K, mn_major ? K : rows, swizzle ? 64 : 8,
                      swizzle ? SWIZZLE_128B : SWIZZLE_NONE);
}

// in: A, 64 x 64, then B, N x 64. out: [128][N / 2].
template <int N, class T, wgmma_major MajorA, wgmma_major MajorB, bool Swizzle>
void run_product(const void *in, void *out) {
    auto kernel = product<N, T, MajorA, MajorB, Swizzle>;
    const char *B = static_cast<const char *>(in) + A_BYTES;
    allow(kernel, BARRIERS + 8);
    LAUNCH(kernel, 1, 128, BARRIERS + 8, operand_map(in, 64, MajorA, Swizzle),
           operand_map(B, N, MajorB, Swizzle), static_cast<float(*)[N / 2]>(out));
}
template <int N, class T, wgmma_major MajorB> void run_from_registers(const void *in, void *out) {
    auto kernel = product_from_registers<N, T, MajorB>;
    const char *B = static_cast<const char *>(in) + A_BYTES;
    allow(kernel, BARRIERS + 8);
    LAUNCH(kernel, 1, 128, BARRIERS + 8, static_cast<const T *>(in),
           operand_map(B, N, MajorB, true), static_cast<float(*)[N / 2]>(out));
}

// ---- wgmma: e4m3 --------------------------------------------------------------------------------

// D[64 x N] = A[64 x 128] B[128 x N], in 4 steps along k, both K-major: A is [64][128] and B
// [N][128]. In shared memory they lie in panels as wide as the swizzle, one box each; without
// swizzling in columns of 16 bytes.
constexpr int K8 = 128, A8_BYTES = 64 * K8;

__device__ __host__ constexpr int width_of(tensor_swizzle s) { return s == SWIZZLE_NONE ? 16 : s; }

template <tensor_swizzle S>
__device__ inline void load_panels(const CUtensorMap *map, uint64_t *bar, unsigned char *to,
                                   int rows) {
    for (int k = 0; k < K8; k += width_of(S)) tma_load_2d(to + k * rows, map, bar, k, 0);
}
template <tensor_swizzle S>
__device__ inline uint64_t panel_step(const unsigned char *tile, int step, int rows) {
    int k = 32 * step, width = width_of(S);
    if (S == SWIZZLE_NONE) return wgmma_descriptor(tile + k * rows, rows * 16, 128, SWIZZLE_NONE);
    return wgmma_moved(wgmma_k_major(tile + k / width * width * rows, S), k % width);
}

template <int N, tensor_swizzle S>
__global__ void __launch_bounds__(128) product_e4m3(const __grid_constant__ CUtensorMap map_A,
                                                    const __grid_constant__ CUtensorMap map_B,
                                                    float (*out)[N / 2]) { // [thread][register]
    uint64_t *bar = one_barrier();
    unsigned char *A = smem, *B = smem + A8_BYTES;
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(bar, A8_BYTES + N * K8);
        load_panels<S>(&map_A, bar, A, 64);
        load_panels<S>(&map_B, bar, B, N);
    }
    mbarrier_wait(bar, 0);
    float d[N / 2];
    wgmma_fence(d);
#pragma unroll
    for (int i = 0; i < K8 / 32; i++)
        wgmma_m64k32<N>(d, panel_step<S>(A, i, 64), panel_step<S>(B, i, N), i > 0);
    wgmma_commit();
    wgmma_wait<0>(d);
#pragma unroll
    for (int i = 0; i < N / 2; i++) out[threadIdx.x][i] = d[i];
}

// A from registers: of a row g or g + 8 four neighbours, and four more 16 further on.
template <int N, tensor_swizzle S>
__global__ void __launch_bounds__(128)
    product_e4m3_from_registers(const uint32_t (*A)[K8 / 4], // [64]
                                const __grid_constant__ CUtensorMap map_B, float (*out)[N / 2]) {
    uint64_t *bar = one_barrier();
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(bar, N * K8);
        load_panels<S>(&map_B, bar, smem, N);
    }
    uint32_t a[K8 / 32][4];
#pragma unroll
    for (int i = 0; i < K8 / 32; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) a[i][r] = A[16 * warp + g + r % 2 * 8][8 * i + t + r / 2 * 4];
    mbarrier_wait(bar, 0);
    float d[N / 2];
    wgmma_fence(d);
#pragma unroll
    for (int i = 0; i < K8 / 32; i++) wgmma_m64k32<N>(d, a[i], panel_step<S>(smem, i, N), i > 0);
    wgmma_commit();
    wgmma_wait<0>(d, a);
#pragma unroll
    for (int i = 0; i < N / 2; i++) out[threadIdx.x][i] = d[i];
}

// A matrix [rows][128] of bytes, in boxes of a panel.
CUtensorMap panel_map(const void *base, int rows, tensor_swizzle s) {
    return map_of({.base = base,
                   .element_bytes = 1,
                   .rank = 2,
                   .size = {K8, (uint64_t)rows},
                   .stride = {1, K8},
                   .box = {(uint32_t)width_of(s), (uint32_t)rows},
                   .swizzle = s});
}

// in: A, 64 x 128, then B, N x 128. out: [128][N / 2].
template <int N, tensor_swizzle S> void run_e4m3(const void *in, void *out) {
    auto kernel = product_e4m3<N, S>;
    const char *B = static_cast<const char *>(in) + A8_BYTES;
    allow(kernel, BARRIERS + 8);
    LAUNCH(kernel, 1, 128, BARRIERS + 8, panel_map(in, 64, S), panel_map(B, N, S),
           static_cast<float(*)[N / 2]>(out));
}
template <int N, tensor_swizzle S> void run_e4m3_from_registers(const void *in, void *out) {
    auto kernel = product_e4m3_from_registers<N, S>;
    const char *B = static_cast<const char *>(in) + A8_BYTES;
    allow(kernel, BARRIERS + 8);
    LAUNCH(kernel, 1, 128, BARRIERS + 8, static_cast<const uint32_t(*)[K8 / 4]>(in),
           panel_map(B, N, S), static_cast<float(*)[N / 2]>(out));
}

// in: [256][4] floats. out: [256] registers of four e4m3.
__global__ void pack_floats(const float4 *in, uint32_t *out) {
    float4 f = in[threadIdx.x];
    out[threadIdx.x] = pack_e4m3(f.x, f.y, f.z, f.w);
}

// ---- all together -------------------------------------------------------------------------------

// C[128 x 64] = A[128 x 64 Tiles] B[64 x 64 Tiles]^T, as a real kernel does it: a producer warp
// fills a ring of two stages by TMA, two consumer warpgroups take turns on the tensor cores and
// leave C by TMA.
constexpr int TILES = 5, STAGES = 2, TILE = 64 * 128; // bytes of 64 rows of 64 fp16

struct ring {
    uint64_t full[STAGES], empty[STAGES];
};

__device__ inline void produce(const CUtensorMap *A, const CUtensorMap *B, ring *r) {
    for (int i = 0; i < TILES; i++) {
        int s = i % STAGES;
        unsigned char *stage = smem + s * 3 * TILE;
        mbarrier_wait(&r->empty[s], (i / STAGES + 1) % 2);
        mbarrier_arrive_expect_tx(&r->full[s], 3 * TILE);
        tma_load_2d(stage, A, &r->full[s], 64 * i, 0);
        tma_load_2d(stage + TILE, A, &r->full[s], 64 * i, 64);
        tma_load_2d(stage + 2 * TILE, B, &r->full[s], 64 * i, 0);
    }
}

__device__ inline void consume(float (&d)[32], int consumer, ring *r) {
    for (int i = 0; i < TILES; i++) {
        int s = i % STAGES;
        const unsigned char *stage = smem + s * 3 * TILE;
        mbarrier_wait(&r->full[s], i / STAGES % 2);
        named_barrier_sync(1 + consumer, 256); // my turn on the tensor cores
        wgmma_fence(d);
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_m64k16<64, __half>(d, wgmma_k_major(stage + consumer * TILE + 32 * k),
                                     wgmma_k_major(stage + 2 * TILE + 32 * k), i + k > 0);
        wgmma_commit();
        named_barrier_arrive(2 - consumer, 256); // the other's turn
        wgmma_wait<0>(d);
        if (threadIdx.x % 128 == 0) mbarrier_arrive(&r->empty[s]); // the stage has been read
    }
}

// The accumulators to shared memory, [64][64] floats, and from there to rows 64 consumer … of C.
__device__ inline void leave(const float (&d)[32], int consumer, const CUtensorMap *C) {
    float *tile = reinterpret_cast<float *>(smem + 2 * STAGES * 3 * TILE / 2 + consumer * 2 * TILE);
    int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 32; i++)
        tile[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
    fence_proxy_async();
    named_barrier_sync(3 + consumer, 128); // the warpgroup's tile is complete
    if (threadIdx.x % 128 == 0) {
        tma_store_2d(C, tile, 0, 64 * consumer);
        tma_store_commit();
        tma_store_wait_read<0>(); // or shared memory might be gone
    }
}

__global__ void __launch_bounds__(384, 1)
    pipeline(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B,
             const __grid_constant__ CUtensorMap C) {
    ring *r = reinterpret_cast<ring *>(smem + STAGES * 3 * TILE + 4 * TILE);
    int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(&r->full[s], 1);
            mbarrier_init(&r->empty[s], 2); // one thread of each consumer
        }
        mbarrier_fence_init();
    }
    __syncthreads(); // the barriers are ready
    if (warpgroup == 0) {
        setmaxnreg_dec<24>();
        if (threadIdx.x < 32 && elect_one()) produce(&A, &B, r);
        return;
    }
    setmaxnreg_inc<240>();
    int consumer = warpgroup - 1;
    if (consumer == 1) named_barrier_arrive(1, 256); // consumer 0 has the first turn
    float d[32];
    consume(d, consumer, r);
    if (consumer == 0) named_barrier_sync(1, 256); // takes consumer 1's last arrival
    leave(d, consumer, &C);
}

// in: A [128][320], then B [64][320], fp16. out: [128][64] fp32.
void run_pipeline(const void *in, void *out) {
    int bytes = STAGES * 3 * TILE + 4 * TILE + (int)sizeof(ring);
    const void *B = static_cast<const char *>(in) + 128 * 64 * TILES * 2;
    tensor_box a = {.base = in,
                    .element_bytes = 2,
                    .rank = 2,
                    .size = {64 * TILES, 128},
                    .stride = {2, 64 * TILES * 2},
                    .box = {64, 64},
                    .swizzle = SWIZZLE_128B};
    tensor_box b = a, c = a;
    b.base = B;
    b.size[1] = 64;
    c = {.base = out,
         .element_bytes = 4,
         .rank = 2,
         .size = {64, 128},
         .stride = {4, 256},
         .box = {64, 64},
         .swizzle = SWIZZLE_NONE};
    allow(pipeline, bytes);
    LAUNCH(pipeline, 1, 384, bytes, map_of(a), map_of(b), map_of(c));
}

// ---- the list -----------------------------------------------------------------------------------

const struct {
    const char *name;
    void (*run)(const void *in, void *out);
} kernels[] = {
    {"mbarrier ring",
     [](const void *in, void *out) {
         LAUNCH(mbarrier_ring, 1, 64, 0, (const uint32_t *)in, (uint32_t *)out);
     }},
    {"named ring",
     [](const void *in, void *out) {
         LAUNCH(named_ring, 1, 64, 0, (const uint32_t *)in, (uint32_t *)out);
     }},
    {"roles", [](const void *, void *out) { LAUNCH(roles, 1, 384, 0, (uint32_t *)out); }},
    {"stmatrix",
     [](const void *in, void *out) {
         LAUNCH(stmatrix, 1, 32, 512, (const uint32_t(*)[32])in, (uint4 *)out);
     }},
    {"pipeline", run_pipeline},
    // type, N, majors of A and B (k or m, n), swizzled or plain, or A from registers
    {"fp16 64 kk swizzled", run_product<64, __half, K_MAJOR, K_MAJOR, true>},
    {"bf16 64 kk swizzled", run_product<64, __nv_bfloat16, K_MAJOR, K_MAJOR, true>},
    {"fp16 8 kk swizzled", run_product<8, __half, K_MAJOR, K_MAJOR, true>},
    {"fp16 24 kn swizzled", run_product<24, __half, K_MAJOR, MN_MAJOR, true>},
    {"fp16 128 mn swizzled", run_product<128, __half, MN_MAJOR, MN_MAJOR, true>},
    {"bf16 176 kk swizzled", run_product<176, __nv_bfloat16, K_MAJOR, K_MAJOR, true>},
    {"bf16 176 kn swizzled", run_product<176, __nv_bfloat16, K_MAJOR, MN_MAJOR, true>},
    {"fp16 256 kk swizzled", run_product<256, __half, K_MAJOR, K_MAJOR, true>},
    {"fp16 256 mn swizzled", run_product<256, __half, MN_MAJOR, MN_MAJOR, true>},
    {"fp16 64 kk plain", run_product<64, __half, K_MAJOR, K_MAJOR, false>},
    {"fp16 96 kn plain", run_product<96, __half, K_MAJOR, MN_MAJOR, false>},
    {"bf16 40 mk plain", run_product<40, __nv_bfloat16, MN_MAJOR, K_MAJOR, false>},
    {"fp16 64 rk swizzled", run_from_registers<64, __half, K_MAJOR>},
    {"bf16 128 rn swizzled", run_from_registers<128, __nv_bfloat16, MN_MAJOR>},
    // e4m3: N, A from shared memory or registers, bytes of the swizzle (0: none)
    {"e4m3 8 smem 128", run_e4m3<8, SWIZZLE_128B>},
    {"e4m3 64 smem 128", run_e4m3<64, SWIZZLE_128B>},
    {"e4m3 96 smem 32", run_e4m3<96, SWIZZLE_32B>},
    {"e4m3 128 smem 128", run_e4m3<128, SWIZZLE_128B>},
    {"e4m3 160 smem 32", run_e4m3<160, SWIZZLE_32B>},
    {"e4m3 192 smem 64", run_e4m3<192, SWIZZLE_64B>},
    {"e4m3 224 smem 32", run_e4m3<224, SWIZZLE_32B>},
    {"e4m3 256 smem 64", run_e4m3<256, SWIZZLE_64B>},
    {"e4m3 40 smem 0", run_e4m3<40, SWIZZLE_NONE>},
    {"e4m3 64 registers 128", run_e4m3_from_registers<64, SWIZZLE_128B>},
    {"e4m3 128 registers 64", run_e4m3_from_registers<128, SWIZZLE_64B>},
    {"e4m3 224 registers 32", run_e4m3_from_registers<224, SWIZZLE_32B>},
    {"pack e4m3",
     [](const void *in, void *out) {
         LAUNCH(pack_floats, 1, 256, 0, (const float4 *)in, (uint32_t *)out);
     }},
};

} // namespace instructions_sm90

using namespace instructions_sm90;

void instruction_sm90_run(const char *name, const void *in, void *out) {
    for (auto &k : kernels)
        if (!strcmp(k.name, name)) return k.run(in, out);
    fprintf(stderr, "no kernel %s in instructions_sm90.cu\n", name);
    abort();
}

static int pieces_of(const tensor_box &b) { return (int)tensor_box_bytes(&b) / 16; }

void instruction_tma_load(const tensor_box *box, const int at[4], const void *in, void *out) {
    tensor_box b = *box;
    b.base = in;
    auto kernel = b.rank == 2 ? load_box<2> : b.rank == 3 ? load_box<3> : load_box<4>;
    allow(kernel, BARRIERS + 8);
    LAUNCH(kernel, 1, 128, BARRIERS + 8, map_of(b), place{at[0], at[1], at[2], at[3]}, (uint4 *)out,
           pieces_of(b));
}

void instruction_tma_store(const tensor_box *box, const int at[4], const void *in, void *out,
                           int bytes) {
    tensor_box b = *box;
    b.base = out;
    auto kernel = b.rank == 2 ? store_box<2> : b.rank == 3 ? store_box<3> : store_box<4>;
    allow(kernel, BARRIERS);
    LAUNCH(clear, 1, 128, 0, (uint32_t *)out, bytes / 4);
    LAUNCH(kernel, 1, 128, BARRIERS, map_of(b), place{at[0], at[1], at[2], at[3]},
           (const uint4 *)in, pieces_of(b));
}

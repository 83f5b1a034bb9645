// step01, rung 2: register blocking, and 16 bytes at a time.
//
// The idea: in rung 1 a thread reads two numbers from shared memory for each multiplication, and
// shared memory cannot deliver that fast. Here a thread makes 4 x 4 elements of the tile. It reads
// 4 rows of Q and 4 rows of K into registers and multiplies each with each: 4 times fewer reads.
// And every read, from HBM or from shared memory, fetches 4 floats at once, so that fewer
// instructions move the same bytes. With 4 x 4 elements a thread, 256 threads make a tile of 64 x
// 64, and a larger tile halves what is asked of HBM for Q, K and V again.
//
// New since rung 1: float4, a tile twice as wide, the work of a thread. The kernels are the same.
// S and P still go through HBM.
//
// Run:     make run         (in this folder)
// Limits:  fp32; forward only.

#include "shape.h"

namespace step01_2 {

//> sizes
constexpr int Lanes = 32;
constexpr int Threads = 256;
constexpr int Tile = 64;  // rows and columns of S, or of O, that a block makes
constexpr int Slice = 32; // columns of Q and K, or keys of P and V, that it holds at a time
// Floats from one row of a tile in shared memory to the next. A quarter of a warp reads 16 bytes
// from 8 rows at once: with 36 floats a row their banks start at 0, 4, 8, ... 28 (36 r modulo 32).
constexpr int Padded = Slice + 4;
//< sizes

//> load-tile
// Copies a tile from HBM, 4 floats a thread; beyond its `rows` and `columns`, which are multiples
// of 4, it is filled with zeros.
template <int Rows, int Columns, int Pitch>
__device__ static void load_tile(float (&tile)[Rows][Pitch], const float *hbm, size_t hbm_pitch,
                                 int rows, int columns) {
    for (int n = threadIdx.x; n < Rows * Columns / 4; n += Threads) {
        int r = n / (Columns / 4), c = n % (Columns / 4) * 4;
        float4 x = make_float4(0, 0, 0, 0);
        if (r < rows && c < columns) x = *(const float4 *)&hbm[r * hbm_pitch + c];
        *(float4 *)&tile[r][c] = x;
    }
}
//< load-tile

__device__ static float dot(float4 a, float4 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// grid: x = B * H * ceil(Nq / 64) tiles of rows, y = ceil(Nk / 64) tiles of columns
__global__ void scores(const float *Q_hbm, // [B, H, Nq, d]
                       const float *K_hbm, // [B, Hkv, Nk, d]
                       float *S_hbm,       // [B, H, Nq, pitch]
                       shape s) {
    __shared__ __align__(16) float Q_smem[Tile][Padded];
    __shared__ __align__(16) float K_smem[Tile][Padded];
    int row_tiles = (s.Nq + Tile - 1) / Tile;
    int bh = blockIdx.x / row_tiles;
    int i0 = blockIdx.x % row_tiles * Tile; // first query of the tile
    int j0 = blockIdx.y * Tile;             // first key
    const float *Q = Q_hbm + ((size_t)bh * s.Nq + i0) * s.d;
    const float *K = K_hbm + (kv_head(s, bh) * s.Nk + j0) * s.d;

    //> scores
    // A warp makes 16 x 32 elements of the tile, a lane the rows y, y + 4, y + 8, y + 12 of it and
    // the columns x, x + 8, x + 16, x + 24. So 8 neighbouring lanes read the same row of Q, which
    // is one read, and 8 neighbouring rows of K.
    int warp = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
    int y = warp / 2 * 16 + lane / 8, x = warp % 2 * 32 + lane % 8;
    float S_reg[4][4] = {};
    for (int c0 = 0; c0 < s.d; c0 += Slice) {
        load_tile<Tile, Slice>(Q_smem, Q + c0, s.d, s.Nq - i0, s.d - c0);
        load_tile<Tile, Slice>(K_smem, K + c0, s.d, s.Nk - j0, s.d - c0);
        __syncthreads(); // both tiles are complete
        for (int c = 0; c < Slice; c += 4) {
            float4 q[4], k[4];
            for (int m = 0; m < 4; m++) q[m] = *(float4 *)&Q_smem[y + 4 * m][c];
            for (int n = 0; n < 4; n++) k[n] = *(float4 *)&K_smem[x + 8 * n][c];
            for (int m = 0; m < 4; m++)
                for (int n = 0; n < 4; n++) S_reg[m][n] += dot(q[m], k[n]);
        }
        __syncthreads(); // all have read them: the next turn overwrites
    }
    //< scores

    for (int m = 0; m < 4; m++)
        for (int n = 0; n < 4; n++) {
            int i = i0 + y + 4 * m, j = j0 + x + 8 * n;
            float value = visible(s, i, j) ? s.scale * S_reg[m][n] : -INFINITY;
            if (i < s.Nq && j < s.pitch) S_hbm[((size_t)bh * s.Nq + i) * s.pitch + j] = value;
        }
}

// grid: x = B * H * Nq rows; block: one warp. As in rung 1.
__global__ void softmax(const float *S_hbm, // [B, H, Nq, pitch]
                        float *P_hbm,       // [B, H, Nq, pitch]
                        float *LSE_hbm,     // [B, H, Nq]
                        shape s) {
    size_t row = blockIdx.x;
    int lane = threadIdx.x, pitch = s.pitch;
    const float *S_row = S_hbm + row * pitch;
    float *P_row = P_hbm + row * pitch;

    float m = -INFINITY;
    for (int j0 = 0; j0 < pitch; j0 += Lanes)
        if (j0 + lane < pitch) m = fmaxf(m, S_row[j0 + lane]);
    for (int bits = Lanes / 2; bits; bits /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, bits));

    float m_safe = m == -INFINITY ? 0 : m; // a row that sees no key: every exp is 0, and so is l
    float l = 0;
    for (int j0 = 0; j0 < pitch; j0 += Lanes)
        if (j0 + lane < pitch) l += expf(S_row[j0 + lane] - m_safe);
    for (int bits = Lanes / 2; bits; bits /= 2) l += __shfl_xor_sync(~0u, l, bits);

    float l_safe = l > 0 ? l : 1;
    for (int j0 = 0; j0 < pitch; j0 += Lanes)
        if (j0 + lane < pitch) P_row[j0 + lane] = expf(S_row[j0 + lane] - m_safe) / l_safe;
    if (lane == 0) LSE_hbm[row] = m + logf(l);
}

// o += a * v
__device__ static void add_scaled(float4 &o, float a, float4 v) {
    o.x += a * v.x;
    o.y += a * v.y;
    o.z += a * v.z;
    o.w += a * v.w;
}

// grid: x = B * H * ceil(Nq / 64) tiles of rows, y = ceil(d / 64) tiles of columns
__global__ void weighted_sum(const float *P_hbm, // [B, H, Nq, pitch]
                             const float *V_hbm, // [B, Hkv, Nk, d]
                             float *O_hbm,       // [B, H, Nq, d]
                             shape s) {
    __shared__ __align__(16) float P_smem[Tile][Padded];
    __shared__ __align__(16) float V_smem[Slice][Tile];
    int row_tiles = (s.Nq + Tile - 1) / Tile, pitch = s.pitch;
    int bh = blockIdx.x / row_tiles;
    int i0 = blockIdx.x % row_tiles * Tile; // first query of the tile
    int c0 = blockIdx.y * Tile;             // first column of V and O
    const float *P = P_hbm + ((size_t)bh * s.Nq + i0) * pitch;
    const float *V = V_hbm + kv_head(s, bh) * s.Nk * s.d + c0;

    // A lane makes the rows y, y + 4, y + 8, y + 12 of O and 4 neighbouring columns from x.
    int warp = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
    int y = warp / 2 * 16 + lane / 8, x = warp % 2 * 32 + lane % 8 * 4;
    float4 O_reg[4];
    for (int m = 0; m < 4; m++) O_reg[m] = make_float4(0, 0, 0, 0);
    //> weighted-sum
    for (int j0 = 0; j0 < s.Nk; j0 += Slice) {
        load_tile<Tile, Slice>(P_smem, P + j0, pitch, s.Nq - i0, pitch - j0);
        load_tile<Slice, Tile>(V_smem, V + (size_t)j0 * s.d, s.d, s.Nk - j0, s.d - c0);
        __syncthreads(); // both tiles are complete
        for (int j = 0; j < Slice; j += 4) {
            float4 p[4], v[4];
            for (int m = 0; m < 4; m++) p[m] = *(float4 *)&P_smem[y + 4 * m][j];
            for (int k = 0; k < 4; k++) v[k] = *(float4 *)&V_smem[j + k][x];
            for (int m = 0; m < 4; m++) {
                add_scaled(O_reg[m], p[m].x, v[0]);
                add_scaled(O_reg[m], p[m].y, v[1]);
                add_scaled(O_reg[m], p[m].z, v[2]);
                add_scaled(O_reg[m], p[m].w, v[3]);
            }
        }
        __syncthreads(); // all have read them: the next turn overwrites
    }
    //< weighted-sum

    for (int m = 0; m < 4; m++) {
        int i = i0 + y + 4 * m, c = c0 + x;
        if (i < s.Nq && c < s.d) *(float4 *)&O_hbm[((size_t)bh * s.Nq + i) * s.d + c] = O_reg[m];
    }
}

// ---- the host's side: what the harness asks of a rung ------------------------------------------

enum { S_BUFFER, P_BUFFER, BUFFERS };

static int buffers(const attn_problem *p, attn_buffer out[ATTN_MAX_BUFFERS]) {
    size_t bytes = attn_rows(p) * row_pitch(p) * sizeof(float);
    out[S_BUFFER] = {.name = "S", .bytes = bytes, .passes = ATTN_FORWARD, .matrix = true};
    out[P_BUFFER] = {.name = "P", .bytes = bytes, .passes = ATTN_FORWARD, .matrix = true};
    return BUFFERS;
}

static bool supports(const attn_problem *p, unsigned, char *why, size_t why_size) {
    const int most = 65535 * Tile; // gridDim.y of scores
    if (!fits(p, 2 * Tile * Padded * sizeof(float), why, why_size)) return false;
    if (p->seqlen_k <= most) return true;
    snprintf(why, why_size, "Nk = %d is above %d, the most that gridDim.y can cover", p->seqlen_k,
             most);
    return false;
}

static void forward(const attn_problem *p, const attn_tensors *t) {
    shape s = shape_of(p);
    auto Q = (const float *)t->Q, K = (const float *)t->K, V = (const float *)t->V;
    auto S = (float *)t->buffer[S_BUFFER], P = (float *)t->buffer[P_BUFFER], O = (float *)t->O;
    unsigned row_tiles = p->batch * p->heads * ceil_div(s.Nq, Tile);

    LAUNCH(scores, dim3(row_tiles, ceil_div(s.Nk, Tile)), Threads, 0, Q, K, S, s);
    LAUNCH(softmax, attn_rows(p), Lanes, 0, S, P, t->LSE, s);
    LAUNCH(weighted_sum, dim3(row_tiles, ceil_div(s.d, Tile)), Threads, 0, P, V, O, s);
}

// As in rung 1, with Tile = 64: 16 bytes at a time are fewer requests for the same sectors.
static attn_traffic model(const attn_problem *p, unsigned) {
    uint64_t Nq = p->seqlen_q, Nk = p->seqlen_k, row = p->head_dim / 8, S_row = ceil_div(Nk, 8);
    uint64_t Tr = ceil_div(Nq, Tile), Tc = ceil_div(Nk, Tile),
             columns = ceil_div(p->head_dim, Tile);
    uint64_t scores = Nq * Tc * row + Nk * Tr * row;
    uint64_t softmax = 3 * Nq * S_row;
    uint64_t weighted_sum = Nq * columns * S_row + Nk * Tr * row;
    uint64_t store = Nq * (S_row + S_row + 1 + row); // S, P, LSE, O
    uint64_t heads = (uint64_t)p->batch * p->heads;
    return {.load = heads * (scores + softmax + weighted_sum) * SECTOR,
            .store = heads * store * SECTOR};
}

static const attn_kernel kernel = {
    .step = "step01_tiling",
    .rung = 2,
    .name = "blocked",
    .idea = "4 x 4 elements a thread, 16 bytes a load; S and P through HBM",
    .formula = "about (d / 4 + 12) N^2 loaded, 8 N^2 stored for each head",
    .dtypes = 1u << ATTN_FP32,
    .passes = ATTN_FORWARD,
    .least_sm = 75,
    .supports = supports,
    .buffers = buffers,
    .forward = forward,
    .model = model,
};
ATTN_REGISTER(kernel);

} // namespace step01_2

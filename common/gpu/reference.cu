// reference.cu - the right answer for sizes at which the C oracle takes minutes, on the GPU.
//
// Plain attention, twice with the same code: in double, the reference, and in float with P and O
// rounded to the kernel's data type, the baseline of oracle.h. S is made for some rows of one head
// at a time, so that it takes at most CHUNK_BYTES, never N x N. It is forward only, and it is held
// against the C oracle where that is quick enough; nothing here is taken from the steps.
//
// Sums over d and, in P V, over the keys run in order, as in the C baseline. The sum of a softmax
// row does not: its 256 partial sums make it a little more exact than the C baseline's.
#include <math.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda_check.h"
#include "machine.h"

static const int THREADS = 256; // of a block, in every kernel here
static const int TILE = 64;     // product(): a block makes a TILE x TILE piece of the result,
static const int EACH = 4;      //   a thread EACH x EACH numbers of it (16 apart),
static const int DEPTH = 16;    //   from DEPTH columns of A and rows of B at a time
static const int64_t CHUNK_BYTES = 512 << 20;

static __device__ double rounded(double x, enum attn_dtype) { return x; }

static __device__ float rounded(float x, enum attn_dtype dtype) {
    switch (dtype) {
    case ATTN_FP16: return __half2float(__float2half_rn(x));
    case ATTN_BF16:
    case ATTN_FP8: return __bfloat162float(__float2bfloat16_rn(x)); // as in dtype.h
    default: return x;
    }
}

// C = factor A B, rounded to dtype. T is the type to compute in.
template <bool B_TRANSPOSED, typename T, typename A>
static __global__ void product(const A *a,     // [rows, depth]
                               const float *b, // [depth, columns]; B_TRANSPOSED: [columns, depth]
                               T *c,           // [rows, columns]
                               int rows, int columns, int depth, T factor, enum attn_dtype dtype) {
    __shared__ T a_smem[DEPTH][TILE + 1], b_smem[DEPTH][TILE + 1]; // + 1: fewer bank conflicts
    const int row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    const int y = threadIdx.x / 16, x = threadIdx.x % 16;
    T sum[EACH][EACH] = {};
    for (int k0 = 0; k0 < depth; k0 += DEPTH) {
        for (int e = threadIdx.x; e < TILE * DEPTH; e += THREADS) {
            int k = e % DEPTH, r = e / DEPTH; // neighbouring threads read neighbouring numbers
            bool inside = row0 + r < rows && k0 + k < depth;
            a_smem[k][r] = inside ? (T)a[(int64_t)(row0 + r) * depth + k0 + k] : (T)0;
        }
        for (int e = threadIdx.x; e < TILE * DEPTH; e += THREADS) {
            int k = B_TRANSPOSED ? e % DEPTH : e / TILE, col = B_TRANSPOSED ? e / DEPTH : e % TILE;
            bool inside = column0 + col < columns && k0 + k < depth;
            int64_t at = B_TRANSPOSED ? (int64_t)(column0 + col) * depth + k0 + k
                                      : (int64_t)(k0 + k) * columns + column0 + col;
            b_smem[k][col] = inside ? (T)b[at] : (T)0;
        }
        __syncthreads(); // both tiles are whole before anyone multiplies
        for (int k = 0; k < DEPTH; k++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    sum[i][j] += a_smem[k][y + 16 * i] * b_smem[k][x + 16 * j];
        __syncthreads(); // everyone has read both before the next ones overwrite them
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int row = row0 + y + 16 * i, column = column0 + x + 16 * j;
            if (row < rows && column < columns)
                c[(int64_t)row * columns + column] = rounded(factor * sum[i][j], dtype);
        }
}

// combine(...) of the values that a block's threads hold, for each of them.
template <typename T, typename F> static __device__ T over_block(T mine, F combine) {
    __shared__ T value[THREADS];
    value[threadIdx.x] = mine;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads(); // the values of the round before are there
        if (threadIdx.x < half)
            value[threadIdx.x] = combine(value[threadIdx.x], value[threadIdx.x + half]);
    }
    __syncthreads();
    T result = value[0];
    __syncthreads(); // everyone has it before the next call overwrites it
    return result;
}

// attn_visible_keys() of attn.h, for the device.
static __device__ int visible_keys(const struct attn_problem &p, int query) {
    int64_t last = p.causal ? (int64_t)query + p.seqlen_k - p.seqlen_q : p.seqlen_k - 1;
    return (int)max((int64_t)-1, min(last, (int64_t)p.seqlen_k - 1)) + 1;
}

// One block a row: S becomes P, in place.
template <typename T>
static __global__ void softmax(T *s,       // [rows, Nk]
                               T *lse,     // [rows]
                               T *largest, // [rows] max |S| of the visible keys
                               int first_query, struct attn_problem p) {
    T *row = s + (int64_t)blockIdx.x * p.seqlen_k;
    const int keys = visible_keys(p, first_query + blockIdx.x);
    auto larger = [](T a, T b) { return a > b ? a : b; };
    T m = -INFINITY, magnitude = 0, l = 0;
    for (int j = threadIdx.x; j < keys; j += THREADS) {
        m = larger(m, row[j]);
        magnitude = larger(magnitude, row[j] < 0 ? -row[j] : row[j]);
    }
    m = over_block(m, larger);
    magnitude = over_block(magnitude, larger);
    for (int j = threadIdx.x; j < keys; j += THREADS) l += exp(row[j] - m);
    l = over_block(l, [](T a, T b) { return a + b; });
    for (int j = threadIdx.x; j < p.seqlen_k; j += THREADS)
        row[j] = j < keys ? rounded(exp(row[j] - m) / l, p.dtype) : (T)0;
    if (threadIdx.x) return;
    lse[blockIdx.x] = keys ? m + log(l) : (T)-INFINITY;
    largest[blockIdx.x] = magnitude;
}

// ---- host ---------------------------------------------------------------------------------------

// What is on the device: one head's inputs, and one chunk of rows of what is made from them.
struct scratch {
    int rows;                    // of a chunk
    float *Q, *K, *V;            // [Nq, d], [Nk, d], [Nk, d]
    void *S, *O, *LSE, *largest; // [rows, Nk], [rows, d], [rows], [rows]   double or float
};

static bool allocate(const struct attn_problem &p, struct scratch *w) {
    int64_t fits = CHUNK_BYTES / (sizeof(double) * p.seqlen_k);
    w->rows = (int)std::clamp<int64_t>(fits, 1, std::min(p.seqlen_q, 1 << 20));
    size_t q = (size_t)p.seqlen_q * p.head_dim, kv = (size_t)p.seqlen_k * p.head_dim;
    w->Q = (float *)machine_alloc("Q", q * sizeof(float));
    w->K = (float *)machine_alloc("K", kv * sizeof(float));
    w->V = (float *)machine_alloc("V", kv * sizeof(float));
    w->S = machine_alloc("S", (size_t)w->rows * p.seqlen_k * sizeof(double));
    w->O = machine_alloc("O", (size_t)w->rows * p.head_dim * sizeof(double));
    w->LSE = machine_alloc("LSE", w->rows * sizeof(double));
    w->largest = machine_alloc("largest", w->rows * sizeof(double));
    return w->Q && w->K && w->V && w->S && w->O && w->LSE && w->largest;
}

static void release(struct scratch *w) {
    for (void *device : {(void *)w->Q, (void *)w->K, (void *)w->V, w->S, w->O, w->LSE, w->largest})
        machine_free(device);
}

static dim3 tiles(int rows, int columns) {
    return dim3((columns + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
}

// One head, in T. Returns the largest |S|.
template <typename T>
static double attend(const struct attn_problem &p, const struct scratch &w,
                     T *O,     // [Nq, d]  host
                     T *LSE) { // [Nq]     host
    T *S = (T *)w.S, *O_chunk = (T *)w.O;
    std::vector<T> largest(w.rows);
    double max_logit = 0;
    for (int first = 0; first < p.seqlen_q; first += w.rows) {
        int rows = std::min(w.rows, p.seqlen_q - first);
        int64_t offset = (int64_t)first * p.head_dim;
        product<true><<<tiles(rows, p.seqlen_k), THREADS>>>(w.Q + offset, w.K, S, rows, p.seqlen_k,
                                                            p.head_dim, (T)p.scale, ATTN_FP32);
        softmax<<<rows, THREADS>>>(S, (T *)w.LSE, (T *)w.largest, first, p);
        product<false><<<tiles(rows, p.head_dim), THREADS>>>(S, w.V, O_chunk, rows, p.head_dim,
                                                             p.seqlen_k, (T)1, p.dtype);
        CUDA_CHECK(cudaGetLastError());
        machine_read(O + offset, w.O, (size_t)rows * p.head_dim * sizeof(T));
        machine_read(LSE + first, w.LSE, rows * sizeof(T));
        machine_read(largest.data(), w.largest, rows * sizeof(T));
        for (int i = 0; i < rows; i++) max_logit = std::max(max_logit, (double)largest[i]);
    }
    return max_logit;
}

bool machine_oracle_forward(const struct attn_problem *p, const float *Q, const float *K,
                            const float *V, double *O, double *LSE, float *base_O, float *base_LSE,
                            double *max_logit) {
    const size_t q = (size_t)p->seqlen_q * p->head_dim, kv = (size_t)p->seqlen_k * p->head_dim;
    const int group = p->heads / p->kv_heads; // query heads to a key/value head
    struct scratch w = {};
    bool room = allocate(*p, &w);
    *max_logit = 0;
    for (size_t head = 0; room && head < (size_t)p->batch * p->heads; head++) {
        // [B, Hkv] and [B, H] are counted through: head / group is right across batches too.
        size_t kv_head = head / group, row = head * p->seqlen_q;
        machine_write(w.Q, Q + head * q, q * sizeof(float));
        machine_write(w.K, K + kv_head * kv, kv * sizeof(float));
        machine_write(w.V, V + kv_head * kv, kv * sizeof(float));
        *max_logit = std::max(*max_logit, attend(*p, w, O + head * q, LSE + row));
        attend(*p, w, base_O + head * q, base_LSE + row);
    }
    release(&w);
    return room;
}

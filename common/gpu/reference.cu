// reference.cu - the right answer for sizes at which the C oracle takes minutes, on the GPU.
//
// Plain attention and its gradients, twice with the same code: in double, the reference, and in
// float with what oracle.h says rounded to the kernel's data type, the baseline. S (and dP) are
// made for some rows of one head at a time, so that they take at most CHUNK_BYTES, never N x N. It
// is held against the C oracle where that is quick enough; nothing here is taken from the steps.
//
// Sums over d and, in P V and dS K, over the keys run in order, as in the C baseline; so do those
// of dK and dV over the rows of a chunk. The sum of a softmax row and D do not: 256 partial sums
// make them a little more exact than the C baseline's. Nothing is added in an order that can
// change.
#include <math.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "fp8.h"
#include "gpu/cuda_check.h"
#include "inputs.h"
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

// A weight of a row, exp(S - m), that sums to l, as it enters P V.
static __device__ double weight(double e, double l, enum attn_dtype) { return e / l; }
static __device__ float weight(float e, float l, enum attn_dtype dtype) {
    if (dtype != ATTN_FP8) return rounded(e / l, dtype);
    return ldexpf((float)__nv_fp8_e4m3(ldexpf(e, FP8_P_OFFSET)), -FP8_P_OFFSET) / l;
}

// What product() does to C: C = A B, or C += A B.
enum into { SET, ADD };

// C = factor A B, rounded to dtype, or added to C. T is the type to compute in.
template <bool A_TRANSPOSED, bool B_TRANSPOSED, typename T, typename A>
static __global__ void product(const A *a,     // [rows, depth]; A_TRANSPOSED: [depth, rows]
                               const float *b, // [depth, columns]; B_TRANSPOSED: [columns, depth]
                               T *c,           // [rows, columns]
                               int rows, int columns, int depth, enum into into, T factor,
                               enum attn_dtype dtype) {
    __shared__ T a_smem[DEPTH][TILE + 1], b_smem[DEPTH][TILE + 1]; // + 1: fewer bank conflicts
    const int across = (columns + TILE - 1) / TILE;
    const int row0 = blockIdx.x / across * TILE, column0 = blockIdx.x % across * TILE;
    const int y = threadIdx.x / 16, x = threadIdx.x % 16;
    T sum[EACH][EACH] = {};
    for (int k0 = 0; k0 < depth; k0 += DEPTH) {
        for (int e = threadIdx.x; e < TILE * DEPTH; e += THREADS) {
            // Neighbouring threads read neighbouring numbers.
            int k = A_TRANSPOSED ? e / TILE : e % DEPTH, r = A_TRANSPOSED ? e % TILE : e / DEPTH;
            bool inside = row0 + r < rows && k0 + k < depth;
            int64_t at = A_TRANSPOSED ? (int64_t)(k0 + k) * rows + row0 + r
                                      : (int64_t)(row0 + r) * depth + k0 + k;
            a_smem[k][r] = inside ? (T)a[at] : (T)0;
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
            if (row >= rows || column >= columns) continue;
            T *to = c + (int64_t)row * columns + column;
            *to = rounded(factor * sum[i][j] + (into == ADD ? *to : (T)0), dtype);
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
        row[j] = j < keys ? weight(exp(row[j] - m), l, p.dtype) : (T)0;
    if (threadIdx.x) return;
    lse[blockIdx.x] = keys ? m + log(l) : (T)-INFINITY;
    largest[blockIdx.x] = magnitude;
}

// One block a row: S becomes P and dP becomes dS, in place, both rounded for the products.
template <typename T>
static __global__ void softmax_backward(T *s,            // [rows, Nk]
                                        T *dp,           // [rows, Nk]
                                        const T *o,      // [rows, d]
                                        const float *dO, // [rows, d]
                                        const T *lse,    // [rows]
                                        T *largest,      // [rows] max |dP| of the visible keys
                                        int first_query, struct attn_problem p) {
    const int64_t row = (int64_t)blockIdx.x * p.seqlen_k, out = (int64_t)blockIdx.x * p.head_dim;
    const int keys = visible_keys(p, first_query + blockIdx.x);
    T D = 0, magnitude = 0; // D = rowsum(dO * O)
    for (int t = threadIdx.x; t < p.head_dim; t += THREADS) D += (T)dO[out + t] * o[out + t];
    D = over_block(D, [](T a, T b) { return a + b; });
    for (int j = threadIdx.x; j < p.seqlen_k; j += THREADS) {
        bool visible = j < keys; // a row that sees no key has LSE = -infinity
        T P = visible ? exp(s[row + j] - lse[blockIdx.x]) : (T)0, dP = visible ? dp[row + j] : (T)0;
        s[row + j] = rounded(P, p.dtype);
        dp[row + j] = rounded(P * (dP - D), p.dtype);
        magnitude = max(magnitude, abs(dP));
    }
    magnitude = over_block(magnitude, [](T a, T b) { return a > b ? a : b; });
    if (threadIdx.x == 0) largest[blockIdx.x] = magnitude;
}

// A sum is finished: times factor, and rounded.
template <typename T>
static __global__ void finish(T *x, int64_t n, T factor, enum attn_dtype dtype) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) x[i] = rounded(factor * x[i], dtype);
}

// ---- host ---------------------------------------------------------------------------------------

// What is on the device: one head's inputs, and one chunk of rows of what is made from them.
struct scratch {
    int rows;                    // of a chunk
    float *Q, *K, *V;            // [Nq, d], [Nk, d], [Nk, d]
    void *S, *O, *LSE, *largest; // [rows, Nk], [rows, d], [rows], [rows]   double or float
    // For a backward:
    float *dO;               // [Nq, d]
    void *dP, *dQ, *dK, *dV; // [rows, Nk], [rows, d], [Nk, d], [Nk, d]  double or float
};

static bool allocate(const struct attn_problem &p, bool backward, struct scratch *w) {
    int64_t longest = std::max(p.seqlen_k, p.head_dim) * (backward ? 2 : 1);
    int64_t fits = CHUNK_BYTES / ((int64_t)sizeof(double) * longest);
    w->rows = (int)std::clamp<int64_t>(fits, 1, p.seqlen_q);
    size_t q = (size_t)p.seqlen_q * p.head_dim, kv = (size_t)p.seqlen_k * p.head_dim;
    size_t square = (size_t)w->rows * p.seqlen_k, out = (size_t)w->rows * p.head_dim;
    bool ok = true;
    auto take = [&ok](const char *name, size_t elements, size_t bytes) {
        void *device = ok ? machine_alloc(name, elements * bytes) : NULL;
        ok = device != NULL;
        return device;
    };
    w->Q = (float *)take("Q", q, sizeof(float));
    w->K = (float *)take("K", kv, sizeof(float));
    w->V = (float *)take("V", kv, sizeof(float));
    w->S = take("S", square, sizeof(double));
    w->O = take("O", out, sizeof(double));
    w->LSE = take("LSE", w->rows, sizeof(double));
    w->largest = take("largest", w->rows, sizeof(double));
    if (!backward) return ok;
    w->dO = (float *)take("dO", q, sizeof(float));
    w->dP = take("dP", square, sizeof(double));
    w->dQ = take("dQ", out, sizeof(double));
    w->dK = take("dK", kv, sizeof(double));
    w->dV = take("dV", kv, sizeof(double));
    return ok;
}

static void release(struct scratch *w) {
    for (float *device : {w->Q, w->K, w->V, w->dO}) machine_free(device);
    for (void *device : {w->S, w->O, w->LSE, w->largest}) machine_free(device);
    for (void *device : {w->dP, w->dQ, w->dK, w->dV}) machine_free(device);
}

// Launches product() over the whole of C.
template <bool A_TRANSPOSED, bool B_TRANSPOSED, typename T, typename A>
static void multiply(const A *a, const float *b, T *c, int rows, int columns, int depth,
                     enum into into, T factor, enum attn_dtype dtype) {
    auto kernel = product<A_TRANSPOSED, B_TRANSPOSED, T, A>;
    unsigned blocks = (unsigned)(ceil_div(rows, TILE) * ceil_div(columns, TILE));
    kernel<<<blocks, THREADS>>>(a, b, c, rows, columns, depth, into, factor, dtype);
}

// One head, in T. Returns the largest |S|.
template <typename T>
static double attend(const struct attn_problem &p, const struct scratch &w,
                     T *O,     // [Nq, d]  host
                     T *LSE) { // [Nq]     host
    T *S = (T *)w.S, *O_chunk = (T *)w.O;
    const int nk = p.seqlen_k, d = p.head_dim;
    std::vector<T> largest(w.rows);
    double max_logit = 0;
    for (int first = 0; first < p.seqlen_q; first += w.rows) {
        int rows = std::min(w.rows, p.seqlen_q - first);
        int64_t offset = (int64_t)first * p.head_dim;
        multiply<false, true>(w.Q + offset, w.K, S, rows, nk, d, SET, (T)p.scale, ATTN_FP32);
        softmax<<<rows, THREADS>>>(S, (T *)w.LSE, (T *)w.largest, first, p);
        multiply<false, false>(S, w.V, O_chunk, rows, d, nk, SET, (T)1, p.dtype);
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
    bool room = allocate(*p, false, &w);
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

// One query head, in T: its dQ, and its share of dK and dV, which stay on the device. Returns the
// largest |dP|.
template <typename T>
static double attend_backward(const struct attn_problem &p, const struct scratch &w,
                              const T *O,   // [Nq, d]  host
                              const T *LSE, // [Nq]     host
                              T *dQ) {      // [Nq, d]  host
    T *P = (T *)w.S, *dS = (T *)w.dP;       // made in place of S and dP
    const int nk = p.seqlen_k, d = p.head_dim;
    std::vector<T> largest(w.rows);
    double max_dP = 0;
    for (int first = 0; first < p.seqlen_q; first += w.rows) {
        int rows = std::min(w.rows, p.seqlen_q - first);
        int64_t offset = (int64_t)first * d;
        const float *Q = w.Q + offset, *dO = w.dO + offset;
        machine_write(w.O, O + offset, (size_t)rows * d * sizeof(T));
        machine_write(w.LSE, LSE + first, rows * sizeof(T));
        multiply<false, true>(Q, w.K, P, rows, nk, d, SET, (T)p.scale, ATTN_FP32);
        multiply<false, true>(dO, w.V, dS, rows, nk, d, SET, (T)1, ATTN_FP32);
        softmax_backward<<<rows, THREADS>>>(P, dS, (const T *)w.O, dO, (const T *)w.LSE,
                                            (T *)w.largest, first, p);
        multiply<false, false>(dS, w.K, (T *)w.dQ, rows, d, nk, SET, (T)p.scale, p.dtype);
        multiply<true, false>(dS, Q, (T *)w.dK, nk, d, rows, ADD, (T)1, ATTN_FP32);
        multiply<true, false>(P, dO, (T *)w.dV, nk, d, rows, ADD, (T)1, ATTN_FP32);
        CUDA_CHECK(cudaGetLastError());
        machine_read(dQ + offset, w.dQ, (size_t)rows * d * sizeof(T));
        machine_read(largest.data(), w.largest, rows * sizeof(T));
        for (int i = 0; i < rows; i++) max_dP = std::max(max_dP, (double)largest[i]);
    }
    return max_dP;
}

// One key/value head, in T, with all the query heads that read it, one after the other.
template <typename T>
static double attend_backward_group(const struct attn_problem &p, const struct scratch &w,
                                    const struct inputs &in, size_t kv_head, const T *O,
                                    const T *LSE, T *dQ, T *dK, T *dV) {
    const size_t q = (size_t)p.seqlen_q * p.head_dim, kv = (size_t)p.seqlen_k * p.head_dim;
    const size_t group = p.heads / p.kv_heads; // as in machine_oracle_forward
    double max_dP = 0;
    machine_write(w.K, in.K + kv_head * kv, kv * sizeof(float));
    machine_write(w.V, in.V + kv_head * kv, kv * sizeof(float));
    CUDA_CHECK(cudaMemset(w.dK, 0, kv * sizeof(T)));
    CUDA_CHECK(cudaMemset(w.dV, 0, kv * sizeof(T)));
    for (size_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        machine_write(w.Q, in.Q + head * q, q * sizeof(float));
        machine_write(w.dO, in.dO + head * q, q * sizeof(float));
        double largest =
            attend_backward(p, w, O + head * q, LSE + head * p.seqlen_q, dQ + head * q);
        max_dP = std::max(max_dP, largest);
    }
    unsigned blocks = (unsigned)ceil_div(kv, THREADS);
    finish<<<blocks, THREADS>>>((T *)w.dK, (int64_t)kv, (T)p.scale, p.dtype);
    finish<<<blocks, THREADS>>>((T *)w.dV, (int64_t)kv, (T)1, p.dtype);
    CUDA_CHECK(cudaGetLastError());
    machine_read(dK + kv_head * kv, w.dK, kv * sizeof(T));
    machine_read(dV + kv_head * kv, w.dV, kv * sizeof(T));
    return max_dP;
}

template <typename T>
static bool backward(const struct attn_problem &p, const struct inputs &in, const T *O,
                     const T *LSE, T *dQ, T *dK, T *dV, double *max_dP) {
    struct scratch w = {};
    bool room = allocate(p, true, &w);
    *max_dP = 0;
    for (size_t kv_head = 0; room && kv_head < (size_t)p.batch * p.kv_heads; kv_head++)
        *max_dP = std::max(*max_dP, attend_backward_group(p, w, in, kv_head, O, LSE, dQ, dK, dV));
    release(&w);
    return room;
}

bool machine_oracle_backward(const struct attn_problem *p, const struct inputs *in, const double *O,
                             const double *LSE, double *dQ, double *dK, double *dV,
                             double *max_dP) {
    return backward(*p, *in, O, LSE, dQ, dK, dV, max_dP);
}

bool machine_baseline_backward(const struct attn_problem *p, const struct inputs *in,
                               const float *O, const float *LSE, float *dQ, float *dK, float *dV) {
    double max_dP;
    return backward(*p, *in, O, LSE, dQ, dK, dV, &max_dP);
}

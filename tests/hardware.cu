// hardware.cu - two kernels whose traffic was counted on an H200 (tests/h200_counts.csv).
//
// test_hardware.c runs them in the simulator and expects the same numbers, to the byte. They belong
// to no step; they are plain enough that each of their accesses can be counted by hand.

#include "hardware.h"
#include "kernel.h"

namespace hardware {

// ---- naive: S and P in one buffer, N x N, one head, d = 64 --------------------------------------

__global__ void scores(const float *Q, const float *K, float *S, int N, int d, float scale) {
    int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N || j >= N) return;
    float dot = 0;
    for (int c = 0; c < d; c++) dot += Q[i * d + c] * K[j * d + c];
    S[(size_t)i * N + j] = dot * scale;
}

__global__ void softmax(float *S, int N) {
    float *row = S + (size_t)blockIdx.x * N;
    int lane = threadIdx.x;
    float m = -INFINITY, l = 0;
    for (int j = lane; j < N; j += 32) m = fmaxf(m, row[j]);
    for (int bits = 16; bits; bits /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, bits));
    for (int j = lane; j < N; j += 32) l += expf(row[j] - m);
    for (int bits = 16; bits; bits /= 2) l += __shfl_xor_sync(~0u, l, bits);
    for (int j = lane; j < N; j += 32) row[j] = expf(row[j] - m) / l;
}

__global__ void weighted_sum(const float *P, const float *V, float *O, int N, int d) {
    int i = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= N || c >= d) return;
    float o = 0;
    for (int j = 0; j < N; j++) o += P[(size_t)i * N + j] * V[j * d + c];
    O[i * d + c] = o;
}

// ---- flash: one block per T query rows, K and V in tiles of T keys ------------------------------

constexpr int D = 64, Threads = 256, Side = 16; // the block is 16 x 16 threads
constexpr int Pitch = D + 4;                    // of Q and K rows in shared memory

// Copies rows [first, first + T) of a [N, D] tensor, 16 bytes a thread; rows past N become zero.
template <int T>
__device__ inline void load_tile(const float *hbm, float *tile, int pitch, int first, int N) {
    for (int e = 4 * threadIdx.x; e < T * D; e += 4 * Threads) {
        int r = e / D, c = e % D;
        float4 x = make_float4(0, 0, 0, 0);
        if (first + r < N) x = *reinterpret_cast<const float4 *>(&hbm[(first + r) * D + c]);
        *reinterpret_cast<float4 *>(&tile[r * pitch + c]) = x;
    }
}

template <int T>
__global__ void __launch_bounds__(Threads)
    flash(const float *Q_hbm, const float *K_hbm, const float *V_hbm, float *O_hbm, int N,
          float scale, bool causal) {
    constexpr int Rows = T / Side, Cols = T / Side, Outs = D / Side; // per thread
    float *Q = reinterpret_cast<float *>(smem);                      // [T][Pitch]
    float *K = Q + T * Pitch, *V = K + T * Pitch;                    // [T][Pitch], [T][D]
    float *P = V + T * D;                                            // [T][T + 4]
    int tx = threadIdx.x % Side, ty = threadIdx.x / Side, first = blockIdx.x * T;
    load_tile<T>(Q_hbm, Q, Pitch, first, N);

    float o[Rows][Outs] = {}, m[Rows], l[Rows];
    for (int r = 0; r < Rows; r++) m[r] = -INFINITY, l[r] = 0;

    int end = causal ? min(N, first + T) : N;
    for (int key = 0; key < end; key += T) {
        __syncthreads(); // the last tiles have been used
        load_tile<T>(K_hbm, K, Pitch, key, N);
        load_tile<T>(V_hbm, V, D, key, N);
        __syncthreads(); // and the new ones are complete

        float s[Rows][Cols] = {};
        for (int c = 0; c < D; c++)
            for (int r = 0; r < Rows; r++) {
                float q = Q[(ty + Side * r) * Pitch + c];
                for (int k = 0; k < Cols; k++) s[r][k] += q * K[(tx + Side * k) * Pitch + c];
            }

        for (int r = 0; r < Rows; r++) {
            int i = first + ty + Side * r;
            float m_new = m[r], sum = 0;
            for (int k = 0; k < Cols; k++) {
                int j = key + tx + Side * k;
                s[r][k] = j < N && (!causal || j <= i) ? s[r][k] * scale : -INFINITY;
                m_new = fmaxf(m_new, s[r][k]);
            }
            for (int bits = Side / 2; bits; bits /= 2)
                m_new = fmaxf(m_new, __shfl_xor_sync(~0u, m_new, bits));
            float alpha = expf(m[r] - m_new);
            for (int k = 0; k < Cols; k++) {
                float p = expf(s[r][k] - m_new);
                sum += p;
                P[(ty + Side * r) * (T + 4) + tx + Side * k] = p;
            }
            for (int bits = Side / 2; bits; bits /= 2) sum += __shfl_xor_sync(~0u, sum, bits);
            l[r] = l[r] * alpha + sum;
            m[r] = m_new;
            for (int c = 0; c < Outs; c++) o[r][c] *= alpha;
        }
        __syncthreads(); // P is complete

        for (int j = 0; j < T; j++)
            for (int r = 0; r < Rows; r++) {
                float p = P[(ty + Side * r) * (T + 4) + j];
                for (int c = 0; c < Outs; c++) o[r][c] += p * V[j * D + tx + Side * c];
            }
    }
    for (int r = 0; r < Rows; r++) {
        int i = first + ty + Side * r;
        if (i < N)
            for (int c = 0; c < Outs; c++) O_hbm[i * D + tx + Side * c] = o[r][c] / l[r];
    }
}

template <int T>
void launch_flash(const float *Q, const float *K, const float *V, float *O, int N, bool causal) {
    int bytes = (2 * T * Pitch + T * D + T * (T + 4)) * sizeof(float);
    cudaFuncSetAttribute(flash<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    LAUNCH((flash<T>), (N + T - 1) / T, Threads, bytes, Q, K, V, O, N, 1 / sqrtf(D), causal);
}

} // namespace hardware

using namespace hardware;

void hardware_naive(const float *Q, const float *K, const float *V, float *S, float *O, int N) {
    dim3 block(32, 8), over_S((N + 31) / 32, (N + 7) / 8), over_O((D + 31) / 32, (N + 7) / 8);
    LAUNCH(scores, over_S, block, 0, Q, K, S, N, D, 1 / sqrtf(D));
    LAUNCH(softmax, N, 32, 0, S, N);
    LAUNCH(weighted_sum, over_O, block, 0, S, V, O, N, D);
}

void hardware_flash(const float *Q, const float *K, const float *V, float *O, int N, bool causal,
                    int tile) {
    if (tile == 32)
        launch_flash<32>(Q, K, V, O, N, causal);
    else
        launch_flash<64>(Q, K, V, O, N, causal);
}

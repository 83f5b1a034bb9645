// peak_mma.cu - the matrix units' peak by mma, for sm_80 to sm_89: newer cards have other ways to
// feed them, and are faster by those.
#include "gpu/peak.h"

#include "kernel.h"
#include "ptx.h"

namespace {

constexpr int Chains = 8, Steps = 1 << 13, Threads = 256, BlocksPerSM = 2;

// Products that go into the same sum wait for one another: so each warp has Chains sums.
__global__ void __launch_bounds__(Threads) products(float *never_written) {
    uint32_t a[4], b[2];
    for (int i = 0; i < 4; i++) a[i] = 0x3f803f80 ^ (threadIdx.x * 2654435761u >> i & 0x807f807f);
    for (int i = 0; i < 2; i++) b[i] = 0x3f803f80 ^ (threadIdx.x * 2246822519u >> i & 0x807f807f);
    float d[Chains][4] = {};
    for (int step = 0; step < Steps; step++)
#pragma unroll
        for (int c = 0; c < Chains; c++) mma_m16n8k16<__nv_bfloat16>(d[c], a, b[0], b[1]);
    float sum = 0;
    for (int c = 0; c < Chains; c++) sum += d[c][0];
    if (isnan(sum)) *never_written = sum; // or the compiler would drop the loop
}

} // namespace

double peak_mma(int sm_count) {
    int blocks = BlocksPerSM * sm_count;
    products<<<blocks, Threads>>>(nullptr);
    return 2.0 * 16 * 8 * 16 * Chains * Steps * (Threads / 32) * blocks;
}

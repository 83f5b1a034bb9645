// sim.h - the SIMT simulator's interface: what cuda.h calls for a kernel, and what a host calls.
//
// The simulator runs a grid on the CPU. A block is one OS thread at a time; each CUDA thread of
// the block is a fiber (fiber.c), and a fiber runs until it has to wait for others (scheduler.c).
// The kernel is compiled so that it calls a hook at every load and store (memory.c); the accesses
// that 32 lanes make at the same instruction are put together into one warp request, and its
// 32-byte sectors are counted (meter.c).
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sim_dim3 {
    unsigned x, y, z;
};

struct sim_place {
    const char *file;
    int line;
};

// ---- called by a kernel, through cuda.h -----------------------------------------------------

// Constant for the life of a CUDA thread, hence attribute const: the compiler may keep the value.
__attribute__((const)) struct sim_dim3 sim_thread_idx(void);
__attribute__((const)) struct sim_dim3 sim_block_idx(void);
__attribute__((const)) struct sim_dim3 sim_block_dim(void);
__attribute__((const)) struct sim_dim3 sim_grid_dim(void);
__attribute__((const)) int sim_lane(void);

// __syncthreads and its variants: all threads of the block meet here. Returns how many of them
// brought a non-zero predicate.
int sim_block_barrier(int predicate, const char *what, struct sim_place);

// The lanes in `mask` meet; the last to come runs `op` over what each brought (args[lane], NULL
// for a lane that is not in the mask), then all go on. Every warp-wide operation is this.
typedef void (*sim_warp_op)(void *const args[32], uint32_t mask);
void sim_warp_collective(uint32_t mask, sim_warp_op op, void *mine, const char *what,
                         struct sim_place);

// __threadfence(): what this block has written so far may be known to others.
void sim_thread_fence(void);

float sim_atomic_add_f32(float *address, float value);
double sim_atomic_add_f64(double *address, double value);
uint32_t sim_atomic_add_u32(uint32_t *address, uint32_t value);
uint64_t sim_atomic_add_u64(uint64_t *address, uint64_t value);
uint32_t sim_atomic_inc_u32(uint32_t *address, uint32_t last);

// ---- called by a kernel, through ptx.h ------------------------------------------------------

// 16 bytes from global to shared memory in the background; zeros if not `valid` (async.c).
void sim_cp_async(void *smem, const void *gmem, bool valid);
void sim_cp_async_commit(void);
void sim_cp_async_wait(int pending); // until all but the last `pending` groups are complete
void sim_cp_async_wait_all(void);    // and what is not committed yet

// 1, 2 or 4 matrices of 8 x 8 16-bit elements from shared memory, and D = A B + D (tensor.c).
void sim_ldmatrix(uint32_t *registers, int matrices, bool transposed, const void *row,
                  const char *what, struct sim_place);
void sim_stmatrix_x4(void *row, const uint32_t registers[4], struct sim_place);
void sim_mma_m16n8k16_fp16(float D[4], const uint32_t A[4], const uint32_t B[2], struct sim_place);
void sim_mma_m16n8k16_bf16(float D[4], const uint32_t A[4], const uint32_t B[2], struct sim_place);
float sim_exp2_approx(float);
uint32_t sim_pack_fp16(float low, float high);
uint32_t sim_pack_bf16(float low, float high);
uint32_t sim_pack_e4m3(float a, float b, float c, float d);

void sim_red_add_f32x4(float *address, const float value[4]);

// ---- called by a kernel, through ptx_sm90.h -------------------------------------------------

uint32_t sim_smem_address(const void *); // within smem

// mbarrier.c
void sim_mbarrier_init(void *bar, int count, struct sim_place);
void sim_mbarrier_fence_init(void);
void sim_mbarrier_arrive(void *bar, int bytes, const char *what, struct sim_place);
void sim_mbarrier_wait(void *bar, int parity, const char *what, struct sim_place);
void sim_named_barrier(int id, int threads, bool wait, struct sim_place);
void sim_fence_proxy_async(void);

// warpgroup.c
bool sim_elect_one(struct sim_place);
void sim_setmaxnreg(int registers, bool increase, struct sim_place);

// tma.c: map is a CUtensorMap, made by tensor_map_encode()
void sim_prefetch_tensormap(const void *map, struct sim_place);
void sim_tma_load(void *smem, const void *map, void *bar, int rank, const int at[],
                  struct sim_place);
void sim_tma_store(const void *map, const void *smem, int rank, const int at[], struct sim_place);
void sim_tma_store_commit(void);
void sim_tma_store_wait(int pending, bool read, struct sim_place);

// wgmma.c
enum sim_element { SIM_FP16, SIM_BF16, SIM_E4M3 };
struct sim_wgmma {
    float *D;                // N / 2 registers
    const uint32_t *A;       // 4 registers; NULL: in shared memory
    uint64_t smem_A, smem_B; // descriptors
    int N;
    enum sim_element element; // of A and B
    bool A_mn_major, B_mn_major;
    bool accumulate;
    uint32_t pc; // filled in by sim_wgmma_start
};
void sim_wgmma_fence(void);
void sim_wgmma_start(struct sim_wgmma *, struct sim_place);
void sim_wgmma_commit(struct sim_place);
void sim_wgmma_wait(int pending, struct sim_place);
void sim_wgmma_expect_complete(const float *D, struct sim_place);

// ---- called by the host side of a .cu file, through cuda.h ----------------------------------

struct sim_launch {
    const char *kernel;   // as written in LAUNCH
    const void *function; // its address: the key for its attributes and its static memory
    void (*body)(void *); // calls the kernel with the arguments in `arguments`
    void *arguments;
    size_t argument_bytes;
    struct sim_dim3 grid, block;
    size_t dynamic_smem; // bytes
    struct sim_place place;
};
void sim_launch(const struct sim_launch *);

// cudaFuncSetAttribute(…MaxDynamicSharedMemorySize…): 0, or 1 (cudaErrorInvalidValue).
int sim_allow_dynamic_smem(const void *function, int bytes);

// ---- called by the harness and the tests ----------------------------------------------------

struct sim_options {
    bool fast;         // count bytes only: no sectors, no conflicts, no distinct
    bool profile;      // count for each source line, for sim_profile
    bool fp8_14_bits;  // e4m3 products are added in 14 bits (wgmma.c), not exactly
    int workers;       // OS threads; 0: one for each processor
    size_t smem_limit; // most shared memory of a block; 0: 227 KB, as on sm_90
};

enum { SIM_SMEM_MAX = 227 << 10, SIM_SMEM_STATIC_MAX = 48 << 10, SIM_MAX_BUFFERS = 128 };
enum sim_kind { SIM_LOAD, SIM_STORE, SIM_ATOMIC, SIM_TMA_LOAD, SIM_TMA_STORE, SIM_KINDS };

// HBM: named buffers, 256-byte aligned, filled with NaN, with forbidden gaps between them. NULL: no
// memory left.
void *sim_alloc(const char *name, size_t bytes);
void sim_free(void *);
void sim_poison(void *); // NaN again, as if nobody had written the buffer
// The buffer holds what the host has put there; `input`: kernels may only read it.
void sim_set_written(void *, bool input);

// Forgets counts and errors and takes new options. Buffers stay.
void sim_reset(const struct sim_options *);

// Empty, or the first error since sim_reset in one line. After an error launches do nothing.
const char *sim_error(void);
// Empty, or the first thing since sim_reset that is allowed but unwise, in one line.
const char *sim_warning(void);

// Writes what waits and what is under way to a CSV file (timeline.c), from now on; NULL: no more.
// False: the file cannot be written.
bool sim_timeline(const char *path);

struct sim_buffer_counts {
    char name[24];
    size_t size;
    uint64_t bytes[SIM_KINDS];    // what threads asked for
    uint64_t sectors[SIM_KINDS];  // 32-byte sectors, once per warp request
    uint64_t distinct[SIM_KINDS]; // different sectors, once per launch, summed over launches
};

struct sim_counts {
    int launches;
    size_t smem_per_block; // static + dynamic, the largest launch
    uint64_t accesses;     // by single threads, global and shared
    uint64_t shared_bytes[SIM_KINDS];
    uint64_t wavefronts, ideal_wavefronts; // shared memory: conflicts are the difference
    int buffers;
    struct sim_buffer_counts buffer[SIM_MAX_BUFFERS];
    int launch_names;
    char launch_name[64][48];
};
void sim_counts(struct sim_counts *);

// What each source line asked for (profile.h) in all launches since sim_reset, global memory before
// shared, the most expensive line first. Returns how many; the caller frees them.
struct profile_line;
int sim_profile(struct profile_line **lines);

#ifdef __cplusplus
}
#endif
#endif

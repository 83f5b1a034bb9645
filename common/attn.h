// attn.h - the contract between a kernel and the harness. Read this file first.
//
// A step's .cu file fills in one `struct attn_kernel` per rung and registers it; the harness
// (C11) allocates the tensors, runs the rung on one of two machines, checks and measures it.
// The header is read by gcc, clang and nvcc, as C11 and as C++20.
#ifndef ATTN_H
#define ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum attn_dtype { ATTN_FP32, ATTN_FP16, ATTN_BF16, ATTN_FP8, ATTN_DTYPES };
enum fp8_scale { FP8_SCALE_TENSOR, FP8_SCALE_HEAD, FP8_SCALE_BLOCK };

// What to compute: the same description for every step and every function below.
//
//   S = scale * Q K^T,  masked,      [B, H, Nq, Nk]
//   P = softmax over the keys of S,  [B, H, Nq, Nk]
//   O = P V,  LSE = log sum exp S    [B, H, Nq, d], [B, H, Nq]
//
// Query head h reads key/value head h / (heads / kv_heads): MHA when they are equal, MQA when
// kv_heads is 1, GQA between. With `causal`, query i sees the keys j <= i + seqlen_k - seqlen_q
// (the last query sees the last key: the mask is aligned bottom-right, as in FlashAttention-2).
// A query that sees no key has O = 0 and LSE = -infinity.
struct attn_problem {
    int batch, heads, kv_heads; // B, H, Hkv: H is a multiple of Hkv
    int seqlen_q, seqlen_k;     // Nq, Nk: any length >= 1
    int head_dim;               // d: a multiple of 8, 8 .. 256
    bool causal;
    float scale;              // finite and > 0; 1/sqrt(d) unless --scale says otherwise
    enum attn_dtype dtype;    // of Q, K, V, O (FP8: 16-bit inputs, quantised by a pre-pass)
    enum fp8_scale fp8_scale; // FP8: one scale for each of these (fp8.h)
    bool rotate;              // FP8: rotate Q and K before they are quantised; d a power of two
    size_t smem;              // bytes of shared memory one block may use
    bool smem_given;          // by --sram, less than the machine has
    int sm, sm_count;         // the machine: compute capability (90 = 9.0), multiprocessors
};

enum { ATTN_MAX_BUFFERS = 8 };

// Device pointers. All tensors are contiguous; what a pass does not use is NULL.
struct attn_tensors {
    const void *Q;                  // [B, H, Nq, d]    in dtype
    const void *K, *V;              // [B, Hkv, Nk, d]  in dtype
    void *O;                        // [B, H, Nq, d]    in dtype
    float *LSE;                     // [B, H, Nq]       natural logarithm
    const void *dO;                 // [B, H, Nq, d]    in dtype
    void *dQ, *dK, *dV;             // as Q, K, V
    void *buffer[ATTN_MAX_BUFFERS]; // the workspace the rung asked for, in its order
};

enum attn_pass { ATTN_FORWARD = 1, ATTN_BACKWARD = 2 };

struct attn_buffer {
    const char *name;
    size_t bytes;
    unsigned passes; // ATTN_FORWARD | ATTN_BACKWARD: when it is needed
    bool kept;       // written by the forward, read by the backward (step00: P)
    bool zeroed;     // holds zeros before a pass, which leaves zeros: nobody has to write them
    bool matrix;     // holds Nq x Nk elements for each head: what FlashAttention avoids
};

// Bytes asked of HBM: whole 32-byte sectors, counted once per warp request.
struct attn_traffic {
    uint64_t load, store, atomic, tma_load, tma_store;
};

// One rung of the ladder. (FP8, the TMA fields and exact_sm are there for the steps that need
// them.)
struct attn_kernel {
    const char *step;             // its folder, "step00_naive"
    int rung;                     // its place among the step's rungs, from 1
    const char *name;             // for --kernel, unique over all steps
    const char *idea;             // one line
    const char *formula;          // leading-order HBM traffic of the forward, for people
    const char *backward_formula; // and of the backward
    unsigned dtypes;              // bit 1 << dtype for each data type it computes in
    unsigned passes;              // ATTN_FORWARD | ATTN_BACKWARD
    int least_sm, exact_sm;       // runs on compute capability >= least_sm; exact_sm: only there
    unsigned any_order;           // the passes that add with atomics: last bits may differ by run
    bool variant;                 // another form of a rung: runs only when --kernel names it
    bool redoes; // may do a part again, for some inputs: it asks for what its model
                 // says, or for more
    // False, with a reason in `why`, for a shape this rung does not take.
    bool (*supports)(const struct attn_problem *, unsigned pass, char *why, size_t why_size);
    // One line about how it cuts this problem up ("Br 64, Bc 64 ..."). May be NULL: nothing to say.
    void (*describe)(const struct attn_problem *, unsigned pass, char *text, size_t size);
    // Fills in the workspace it needs and returns how many buffers that is. May be NULL: none.
    int (*buffers)(const struct attn_problem *, struct attn_buffer out[ATTN_MAX_BUFFERS]);
    void (*forward)(const struct attn_problem *, const struct attn_tensors *);
    void (*backward)(const struct attn_problem *, const struct attn_tensors *);
    // The forward without its pre-pass, what that has left still being in the workspace: to time it
    // alone. NULL: there is no pre-pass.
    void (*attention)(const struct attn_problem *, const struct attn_tensors *);
    // Exactly the traffic that the pass asks for; may loop over rows and tiles.
    struct attn_traffic (*model)(const struct attn_problem *, unsigned pass);
};

// ---- the registry: every kernel that is linked into this program ------------------------

// Called before main() by ATTN_REGISTER; always returns true.
bool attn_register(const struct attn_kernel *kernel);
int attn_kernel_count(void);
const struct attn_kernel *attn_kernel_at(int index); // by step, then rung; variants after it

// Put once at the end of a rung's .cu file: the initialiser of a C++ global runs before main().
#define ATTN_REGISTER(kernel) [[maybe_unused]] static const bool registered = attn_register(&kernel)

// ---- sizes and masks (problem.c) ----------------------------------------------------------

size_t attn_dtype_bytes(enum attn_dtype dtype);     // of one element in HBM
const char *attn_dtype_name(enum attn_dtype dtype); // "fp32"
const char *fp8_scale_name(enum fp8_scale scale);   // "tensor"

uint64_t attn_q_elements(const struct attn_problem *p);  // B * H * Nq * d
uint64_t attn_kv_elements(const struct attn_problem *p); // B * Hkv * Nk * d
uint64_t attn_rows(const struct attn_problem *p);        // B * H * Nq
uint64_t
attn_visible_pairs(const struct attn_problem *p); // (i, j) that the mask lets through, all heads
uint64_t attn_compulsory_bytes(const struct attn_problem *p, unsigned pass);
double attn_flops(const struct attn_problem *p,
                  unsigned pass); // 4 d per visible pair; backward 2.5x

// How many keys query i sees: keys 0 .. count-1.
static inline int attn_visible_keys(const struct attn_problem *p, int i) {
    if (!p->causal) return p->seqlen_k;
    int64_t last = (int64_t)i + p->seqlen_k - p->seqlen_q;
    return last < 0 ? 0 : last + 1 > p->seqlen_k ? p->seqlen_k : (int)(last + 1);
}

// 0 if the problem is one that the harness defines, else one line in `why` and -1.
int attn_problem_check(const struct attn_problem *p, char *why, size_t why_size);

// ---- for the models ------------------------------------------------------------------------

enum { SECTOR = 32 }; // bytes: the unit in which the memory system moves data

// Sectors that a run of `bytes` bytes at byte offset `address` touches.
static inline uint64_t sectors(uint64_t address, uint64_t bytes) {
    return bytes ? (address + bytes - 1) / SECTOR - address / SECTOR + 1 : 0;
}

// Sectors of `bytes` consecutive bytes that are asked for in requests of `per_request` bytes each:
// a sector that two requests share is asked for twice.
static inline uint64_t request_sectors(uint64_t address, uint64_t bytes, uint64_t per_request) {
    uint64_t sum = 0;
    for (; bytes > per_request; address += per_request, bytes -= per_request)
        sum += sectors(address, per_request);
    return sum + sectors(address, bytes);
}

// Sectors that cp.async counts for a row of `bytes` bytes at byte offset `address`, which it copies
// to a multiple of 128 in shared memory, 16 bytes a lane. The row is cut where a sector of shared
// memory begins, and where a line of 128 bytes of HBM begins; the pieces count (sim/meter.c). A
// swizzle that exchanges sectors, or their halves, changes nothing.
static inline uint64_t copy_sectors(uint64_t address, uint64_t bytes) {
    uint64_t lines_begin = bytes ? (address + bytes - 1) / 128 - address / 128 : 0;
    return (bytes + SECTOR - 1) / SECTOR + (address % SECTOR ? lines_begin : 0);
}

static inline uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
static inline uint64_t round_up(uint64_t a, uint64_t b) { return ceil_div(a, b) * b; }

#ifdef __cplusplus
}
#endif
#endif

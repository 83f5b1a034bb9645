// machine.cu - a GPU as the machine of machine.h: memory, launches, time, counters, peaks.
//
// It runs a rung's pass, reports the first launch that failed, and measures the pass in two ways
// that never share a run: time (CUDA events) and hardware counters (counters.cpp). It does not
// judge results, and it uses one GPU, the first that CUDA_VISIBLE_DEVICES leaves.
#include "machine.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "gpu/counters.h"
#include "gpu/cuda_check.h"
#include "gpu/launch.h"
#include "gpu/peak.h"
#include "refuse.h"

void cuda_check(cudaError_t error, const char *call, const char *file, int line) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s failed: %s at %s:%d; `nvidia-smi` shows the card's state\n", call,
            cudaGetErrorString(error), file, line);
    exit(3);
}

// Some errors (an access outside memory, an illegal instruction) end the CUDA context: from then on
// every call fails with the same error until the process ends. This line says what happened; while
// it is empty the context lives.
static char lost[MACHINE_ERROR];

// ---- finding the machine ------------------------------------------------------------------------

// Reads every byte of a buffer of zeros: used to empty the L2 cache, see sweep().
static __global__ void read_all(const uint4 *data, size_t count, unsigned *never_written) {
    unsigned any = 0;
    size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
        uint4 v = data[i];
        any |= v.x | v.y | v.z | v.w;
    }
    if (any) *never_written = any; // or the compiler would drop the loads
}

static bool is_version(const char *word) {
    return strchr(word, '.') && strspn(word, "0123456789.") == strlen(word);
}

// The kernel module says "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Sep …".
// Where that file is hidden (some containers) the driver's CUDA version has to do: "CUDA 13.0".
static void find_driver_version(char *out, size_t size) {
    char line[256] = "";
    if (FILE *file = fopen("/proc/driver/nvidia/version", "r")) {
        if (!fgets(line, sizeof line, file)) line[0] = 0;
        fclose(file);
    }
    for (char *word = strtok(line, " \t\n"); word; word = strtok(nullptr, " \t\n")) {
        if (!is_version(word)) continue;
        snprintf(out, size, "%s", word);
        return;
    }
    int version = 0;
    CUDA_CHECK(cudaDriverGetVersion(&version));
    snprintf(out, size, "CUDA %d.%d", version / 1000, version % 100 / 10);
}

// Is there a card, is it new enough, and does this program hold code for it?
static bool find_card(cudaDeviceProp *card, char *why, size_t why_size) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
    if (error == cudaSuccess) error = cudaSetDevice(0);
    if (error == cudaSuccess) error = cudaFree(nullptr); // makes the context
    if (error == cudaSuccess) error = cudaGetDeviceProperties(card, 0);
    if (error != cudaSuccess)
        return refuse(why, why_size,
                      "no usable GPU: %s; install or update NVIDIA's driver, or use the simulator",
                      cudaGetErrorString(error));
    int sm = card->major * 10 + card->minor;
    if (sm < 75)
        return refuse(why, why_size, "%s is sm_%d, CUDA 13 needs sm_75 or newer; use the simulator",
                      card->name, sm);
    cudaFuncAttributes code;
    if (cudaFuncGetAttributes(&code, read_all) != cudaSuccess) {
        cudaGetLastError();
        return refuse(why, why_size, "built without code for %s (sm_%d); build again with ARCH=%d",
                      card->name, sm, sm);
    }
    return true;
}

bool machine_open(const struct machine_options *, struct machine *out, char *why, size_t why_size) {
    cudaDeviceProp card;
    if (!find_card(&card, why, why_size)) {
        cudaGetLastError();
        return false;
    }
    *out = {};
    snprintf(out->name, sizeof out->name, "%.127s", card.name);
    find_driver_version(out->driver, sizeof out->driver);
    out->sm = card.major * 10 + card.minor;
    out->sm_count = card.multiProcessorCount;
    out->smem = card.sharedMemPerBlockOptin;
    size_t available, total;
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    out->memory = available;
    return true;
}

// ---- memory -------------------------------------------------------------------------------------

// Once the context is lost these do nothing, reading gives NaN, and machine_alloc() returns some
// address that is never used: so the caller comes as far as machine_run(), which says why.

void *machine_alloc(const char *, size_t bytes) {
    if (lost[0]) return lost;
    void *device = nullptr;
    cudaError_t error = cudaMalloc(&device, std::max<size_t>(bytes, 1));
    if (error == cudaSuccess) return device;
    if (error != cudaErrorMemoryAllocation) CUDA_CHECK(error);
    cudaGetLastError(); // forget it, or the next launch would be blamed
    return nullptr;
}

void machine_free(void *device) {
    if (!lost[0]) CUDA_CHECK(cudaFree(device));
}

void machine_write(void *device, const void *host, size_t bytes) {
    if (!lost[0]) CUDA_CHECK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

void machine_read(void *host, const void *device, size_t bytes) {
    if (lost[0])
        memset(host, 0xff, bytes);
    else
        CUDA_CHECK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

void machine_poison(void *device, size_t bytes) {
    if (!lost[0]) CUDA_CHECK(cudaMemset(device, 0xff, bytes));
}
void machine_zero(void *device, size_t bytes) {
    if (!lost[0]) CUDA_CHECK(cudaMemset(device, 0, bytes));
}

// ---- launches -----------------------------------------------------------------------------------

enum watch {
    WATCH_ERRORS,  // as little as can be done: nothing here may slow a timed pass
    WATCH_KERNELS, // wait after each launch, so that an error has the name of its kernel
    WATCH_TIME,    // an event before and after each launch
};

// What LAUNCH has told of since run_pass() began, and the first error since begin_runs().
static struct {
    enum watch watch;
    int launches;
    size_t smem_per_block; // the largest
    char last[48];         // kernel
    char kernel[MACHINE_MAX_LAUNCHES][48];
    char error[MACHINE_ERROR];
} pass;

// CUDA events are marks in the GPU's own queue, stamped with the GPU's clock when it comes past
// them. A clock on the host would time the call that enqueues a kernel, which returns long before
// the kernel has run. Events are made once and kept: making one takes longer than a short kernel.
static cudaEvent_t event(size_t index) {
    static std::vector<cudaEvent_t> events;
    while (events.size() <= index) {
        cudaEvent_t made;
        CUDA_CHECK(cudaEventCreate(&made));
        events.push_back(made);
    }
    return events[index];
}

static double microseconds_between(cudaEvent_t begin, cudaEvent_t end) {
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    return 1e3 * milliseconds;
}

// LAUNCH((flash<64, 64>), …) needs its parentheses; a reader does not. A name that is too long
// loses its template arguments.
static void copy_kernel_name(char *out, size_t size, const char *name) {
    size_t length = strlen(name);
    while (length >= 2 && name[0] == '(' && name[length - 1] == ')') name++, length -= 2;
    if (length >= size) length = std::min(strcspn(name, "<"), size - 1);
    memcpy(out, name, length);
    out[length] = 0;
}

static void keep_largest_smem(const void *function, size_t dynamic_smem) {
    cudaFuncAttributes attributes = {};
    if (cudaFuncGetAttributes(&attributes, function) != cudaSuccess)
        cudaGetLastError(); // the launch will fail for the same reason, and say so
    size_t bytes = attributes.sharedSizeBytes + dynamic_smem;
    pass.smem_per_block = std::max(pass.smem_per_block, bytes);
}

static void keep_first_error(cudaError_t error, const char *file, int line) {
    if (pass.error[0]) return;
    snprintf(pass.error, sizeof pass.error, "%s: %s at %s:%d", pass.last, cudaGetErrorString(error),
             file, line);
}

void gpu_launch_begin(const char *kernel, const void *function, size_t dynamic_smem) {
    int index = pass.launches++;
    copy_kernel_name(pass.last, sizeof pass.last, kernel);
    if (index < MACHINE_MAX_LAUNCHES) memcpy(pass.kernel[index], pass.last, sizeof pass.last);
    if (pass.watch == WATCH_KERNELS) keep_largest_smem(function, dynamic_smem);
    if (pass.watch == WATCH_TIME && index < MACHINE_MAX_LAUNCHES) cudaEventRecord(event(2 * index));
}

// cudaGetLastError() tells of a launch that could not start (too many threads, too much shared
// memory) and forgets it; an error while a kernel runs only shows once somebody waits for it.
void gpu_launch_end(const char *file, int line) {
    int index = pass.launches - 1;
    cudaError_t error = cudaGetLastError();
    if (pass.watch == WATCH_TIME && index < MACHINE_MAX_LAUNCHES)
        cudaEventRecord(event(2 * index + 1));
    if (pass.watch == WATCH_KERNELS && error == cudaSuccess) error = cudaDeviceSynchronize();
    if (error != cudaSuccess) keep_first_error(error, file, line);
}

// ---- running a pass -----------------------------------------------------------------------------

// False, with the reason in out->error, once the context is lost. Forgets an earlier pass's error.
static bool begin_runs(struct measurement *out) {
    pass.error[0] = 0;
    if (!lost[0]) return true;
    snprintf(out->error, sizeof out->error,
             "not run: the GPU's context ended with an earlier error; run this kernel alone, by "
             "--kernel (%.480s)",
             lost);
    return false;
}

static void run_pass(const struct machine_work *work, enum watch watch) {
    pass.watch = watch;
    pass.launches = 0;
    pass.smem_per_block = 0;
    work->run(work->problem, work->tensors);
}

// Waits for what was launched. False, with one line in out->error, if any of it failed.
static bool finish(struct measurement *out) {
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess && !pass.error[0])
        snprintf(pass.error, sizeof pass.error,
                 "%s or a kernel before it: %s; compute-sanitizer names the access", pass.last,
                 cudaGetErrorString(error));
    if (!pass.error[0]) return true;
    memcpy(out->error, pass.error, sizeof out->error);
    cudaGetLastError();
    if (cudaDeviceSynchronize() != cudaSuccess) memcpy(lost, pass.error, sizeof lost);
    return false;
}

void machine_run(const struct machine_work *work, struct measurement *out) {
    *out = {};
    if (!begin_runs(out)) return;
    run_pass(work, WATCH_KERNELS);
    finish(out);
    out->launches = pass.launches;
    out->smem_per_block = pass.smem_per_block;
    for (int i = 0; i < std::min<int>(pass.launches, MACHINE_MAX_LAUNCHES); i++)
        memcpy(out->launch[i].kernel, pass.kernel[i], sizeof out->launch[i].kernel);
}

// ---- time ---------------------------------------------------------------------------------------

// The median: a run now and then is late because the host or another program was busy, and such a
// run would pull a mean upwards; the minimum would be the luckiest run, not the usual one.
static double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    size_t half = values.size() / 2;
    return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// The whole pass. The runs follow one another without a pause, and each is timed from the event
// before it to the event after it: the host enqueues ahead while the GPU works, so that its own
// time is not measured, unless the kernels are even shorter than their launches. At the start of a
// run the L2 cache holds what the run before left there ("warm").
static bool time_passes(const struct machine_work *work, int repeat, struct measurement *out) {
    enum { WARM_UP = 3 }; // loads the code, raises the clocks, fills the caches
    event(repeat);        // all of them, before the clock runs
    for (int i = 0; i < WARM_UP; i++) run_pass(work, WATCH_ERRORS);
    if (!finish(out)) return false;

    cudaEventRecord(event(0));
    for (int i = 0; i < repeat; i++) {
        run_pass(work, WATCH_ERRORS);
        cudaEventRecord(event(i + 1)); // an error here shows in finish()
    }
    if (!finish(out)) return false;

    std::vector<double> time;
    for (int i = 0; i < repeat; i++) time.push_back(microseconds_between(event(i), event(i + 1)));
    out->microseconds = median(time);
    out->has_time = true;
    return true;
}

// Each launch by itself, in runs of its own: the events between launches cost time too, so these
// times may add up to more than the whole pass takes.
static bool time_launches(const struct machine_work *work, int repeat, struct measurement *out) {
    std::vector<double> time[MACHINE_MAX_LAUNCHES];
    event(2 * MACHINE_MAX_LAUNCHES - 1);
    for (int r = 0; r < repeat; r++) {
        run_pass(work, WATCH_TIME);
        if (!finish(out)) return false;
        for (int i = 0; i < std::min<int>(pass.launches, MACHINE_MAX_LAUNCHES); i++)
            time[i].push_back(microseconds_between(event(2 * i), event(2 * i + 1)));
    }
    for (int i = 0; i < MACHINE_MAX_LAUNCHES; i++)
        if (!time[i].empty()) out->launch[i].microseconds = median(time[i]);
    return true;
}

// ---- counters -----------------------------------------------------------------------------------

// The unit in which the memory system moves data is the sector, 32 bytes; a cache line has four. A
// warp's load of 32 neighbouring floats asks for 4 sectors, one of 32 floats far apart for 32.
//
//     warps --"asked"--> L1 --"L2"--> L2 cache --"DRAM"--> HBM
enum counter {
    LOADS, // sectors that warps asked for: what `model` predicts
    STORES,
    REDUCTIONS, // atomics whose old value is not used
    ATOMICS,
    TMA_LOADS, // bytes; sm_90 and newer
    TMA_STORES,
    L2_READS, // sectors that came as far as L2, TMA's too
    L2_WRITES,
    DRAM_READS, // bytes; a chip has one of the two names
    DRAM_READS_SM120,
    CONFLICTS, // wavefronts of shared memory beyond each request's ideal
    COUNTERS
};

static const char *const counter_names[COUNTERS] = {
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_atom.sum",
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
    "dram__bytes_read.sum",
    "dram__bytes_op_read.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
};

// Read in a range of its own, see count_dram_writes().
enum { DRAM_WRITES, DRAM_WRITES_SM120, WRITE_COUNTERS };
static const char *const write_counter_names[WRITE_COUNTERS] = {
    "dram__bytes_write.sum",
    "dram__bytes_op_write.sum",
};

// 256 MB: more than the L2 cache of any card so far, four times an H200's, so that reading all of
// it leaves nothing else there. It holds zeros, and behind them the word that read_all() never
// writes. NULL: no memory.
enum { SWEEP_BYTES = 256 << 20 };

static uint4 *sweep_buffer(void) {
    static uint4 *buffer = nullptr;
    const size_t bytes = SWEEP_BYTES + sizeof(uint4);
    if (buffer) return buffer;
    buffer = (uint4 *)machine_alloc("sweep", bytes);
    if (buffer) CUDA_CHECK(cudaMemset(buffer, 0, bytes));
    return buffer;
}

// Pushes everything else out of L2 by reading. Writing 256 MB would do so too, but would leave L2
// full of lines that differ from DRAM ("dirty"): they go back to DRAM as the next kernel needs
// room, and are counted as that kernel's writes. Not by LAUNCH: it is no launch of the pass.
static void sweep(void) {
    uint4 *buffer = sweep_buffer();
    size_t count = SWEEP_BYTES / sizeof(uint4);
    read_all<<<2048, 256>>>(buffer, count, (unsigned *)(buffer + count));
    cudaGetLastError(); // fails only when the context is lost, which finish() reports
    cudaDeviceSynchronize();
}

struct counted_pass {
    const struct machine_work *work; // NULL: count an empty range
    bool sweep_after;
};

static void before_counting(void *) { sweep(); }

static void run_counted(void *context) {
    const struct counted_pass *counted = (const struct counted_pass *)context;
    if (counted->work) run_pass(counted->work, WATCH_ERRORS);
    cudaDeviceSynchronize(); // an error stays and shows in finish()
    if (counted->sweep_after) sweep();
}

static bool read_counters(const struct machine_work *work, bool sweep_after,
                          const char *const *names, int count, double *values,
                          struct measurement *out) {
    struct counted_pass counted = {work, sweep_after};
    struct counted_work passes = {before_counting, run_counted, &counted};
    bool done = counters_read(&passes, names, count, values, out->note, sizeof out->note);
    return finish(out) && done;
}

static bool known(double value) { return !isnan(value); }

// A counter that this chip does not have counts as 0 where it is one of several.
static uint64_t bytes_of(double count, int unit) {
    return known(count) ? (uint64_t)llround(count) * unit : 0;
}

static bool count_traffic(const struct machine_work *work, struct measurement *out) {
    double value[COUNTERS];
    if (!read_counters(work, false, counter_names, COUNTERS, value, out)) return false;

    out->has_asked = known(value[LOADS]) && known(value[STORES]);
    out->asked.load = bytes_of(value[LOADS], SECTOR);
    out->asked.store = bytes_of(value[STORES], SECTOR);
    out->asked.atomic = bytes_of(value[REDUCTIONS], SECTOR) + bytes_of(value[ATOMICS], SECTOR);
    out->asked.tma_load = bytes_of(value[TMA_LOADS], 1);
    out->asked.tma_store = bytes_of(value[TMA_STORES], 1);

    out->has_l2 = known(value[L2_READS]) && known(value[L2_WRITES]);
    out->l2_read = bytes_of(value[L2_READS], SECTOR);
    out->l2_write = bytes_of(value[L2_WRITES], SECTOR);

    out->has_conflicts = known(value[CONFLICTS]);
    out->bank_conflicts = bytes_of(value[CONFLICTS], 1);

    out->has_dram = known(value[DRAM_READS]) || known(value[DRAM_READS_SM120]);
    out->dram_read = bytes_of(value[DRAM_READS], 1) + bytes_of(value[DRAM_READS_SM120], 1);
    return true;
}

// Bytes written to DRAM while `work` runs and its results are driven out of L2. NAN: not known.
static double dram_writes(const struct machine_work *work, struct measurement *out) {
    double value[WRITE_COUNTERS];
    if (!read_counters(work, true, write_counter_names, WRITE_COUNTERS, value, out)) return NAN;
    return known(value[DRAM_WRITES]) ? value[DRAM_WRITES] : value[DRAM_WRITES_SM120];
}

// A pass of a few megabytes ends with its results still in L2, not yet written to DRAM. So here the
// range goes on: a second sweep drives them out. It reads 256 MB of DRAM itself, which is why the
// reads are taken from the other range. And it drives out what the profiler wrote when it opened
// the range: 3.0 to 3.2 MB on an H200, the same for an empty range, so that is subtracted.
static bool count_dram_writes(const struct machine_work *work, struct measurement *out) {
    static double of_profiler = NAN;
    if (!known(of_profiler)) of_profiler = dram_writes(NULL, out);
    double all = dram_writes(work, out);
    out->has_dram = out->has_dram && known(all) && known(of_profiler);
    if (!out->has_dram) return false;
    out->dram_write = bytes_of(std::max(0.0, all - of_profiler), 1);
    return true;
}

void machine_measure(const struct machine_work *work, int repeat, struct measurement *out) {
    enum { LAUNCH_REPEATS = 5 };
    if (!begin_runs(out)) return;
    // Time first: CUPTI, once loaded, has hooks in the driver even while it is disabled.
    if (repeat > 0 && !time_passes(work, repeat, out)) return;
    if (!time_launches(work, std::min<int>(repeat, LAUNCH_REPEATS), out)) return;
    if (!sweep_buffer()) {
        refuse(out->note, sizeof out->note,
               "no hardware counters: no memory for the %d MB that empty L2; try a smaller shape",
               SWEEP_BYTES >> 20);
        return;
    }
    if (count_traffic(work, out)) count_dram_writes(work, out);
}

int machine_profile(struct profile_line **lines) {
    *lines = nullptr; // ncu does this here
    return 0;
}

// ---- peaks --------------------------------------------------------------------------------------

// The best of a few: what the card can do at all is wanted, not what it usually does.
enum { PEAK_RUNS = 8 };

// Seconds that `run` takes at best.
template <typename F> static double best_seconds(F run) {
    double best = DBL_MAX;
    for (int i = 0; i < PEAK_RUNS; i++) {
        CUDA_CHECK(cudaEventRecord(event(0)));
        run();
        CUDA_CHECK(cudaEventRecord(event(1)));
        CUDA_CHECK(cudaEventSynchronize(event(1)));
        best = std::min(best, 1e-6 * microseconds_between(event(0), event(1)));
    }
    return best;
}

static double measure_bandwidth(void) {
    const size_t most = 1 << 30, least = 1 << 26; // 1 GB, far more than L2; at least 64 MB
    for (size_t bytes = most; bytes >= least; bytes /= 2) {
        void *from = machine_alloc("from", bytes), *to = machine_alloc("to", bytes);
        double seconds = 0;
        if (from && to) {
            CUDA_CHECK(cudaMemset(from, 0x55, bytes));
            seconds = best_seconds(
                [=] { CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice)); });
        }
        machine_free(from);
        machine_free(to);
        if (seconds > 0) return 2.0 * bytes / seconds; // each byte is read and written
    }
    return 0;
}

double machine_peak_bandwidth(void) {
    static double peak = -1;
    if (peak < 0) peak = lost[0] ? 0 : measure_bandwidth();
    return peak;
}

static const int CHAINS = 8, STEPS = 1 << 14, FLOP_THREADS = 256;

// A multiply-add takes 4 cycles until its result can be used. So each thread has CHAINS of them
// that do not depend on one another, and there are as many threads as the card can hold.
static __global__ void multiply_add(float a, float b, float *never_written) {
    float x[CHAINS];
    for (int c = 0; c < CHAINS; c++) x[c] = threadIdx.x + c;
#pragma unroll 16
    for (int step = 0; step < STEPS; step++)
        for (int c = 0; c < CHAINS; c++) x[c] = x[c] * a + b;
    float sum = 0;
    for (int c = 0; c < CHAINS; c++) sum += x[c];
    if (sum == -1) *never_written = sum; // or the compiler would drop the loop
}

static double measure_fp32_flops(void) {
    int blocks_per_sm = 0, sm_count = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_sm, multiply_add,
                                                             FLOP_THREADS, 0));
    CUDA_CHECK(cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, 0));
    int blocks = blocks_per_sm * sm_count;
    double seconds = best_seconds([=] {
        multiply_add<<<blocks, FLOP_THREADS>>>(0.5f, 1.0f, nullptr); // x tends to 2: sum is 16
        CUDA_CHECK(cudaGetLastError());
    });
    return 2.0 * CHAINS * STEPS * FLOP_THREADS * blocks / seconds; // a multiply and an add
}

// Of products in 16 or 8 bits. 0 where this program has no loop for it.
static double measure_matrix_flops(bool fp8) {
    int sm = 0, minor = 0, sm_count = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&sm, cudaDevAttrComputeCapabilityMajor, 0));
    CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    CUDA_CHECK(cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, 0));
    sm = 10 * sm + minor;
    if (sm != 90 && (sm < 80 || sm > 89 || fp8)) return 0;
    double flops = 0;
    double seconds = best_seconds([&] {
        flops = sm == 90 ? peak_wgmma(sm_count, fp8) : peak_mma(sm_count);
        CUDA_CHECK(cudaGetLastError());
    });
    return flops / seconds;
}

double machine_peak_flops(enum attn_dtype dtype) {
    static double of_units[3] = {-1, -1, -1}; // fp32; matrix units in 16 bits, in 8
    int units = dtype == ATTN_FP32 ? 0 : dtype == ATTN_FP8 ? 2 : 1;
    double *peak = &of_units[units];
    if (*peak < 0)
        *peak = lost[0] ? 0 : units ? measure_matrix_flops(units == 2) : measure_fp32_flops();
    return *peak;
}

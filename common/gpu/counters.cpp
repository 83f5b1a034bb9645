// counters.cpp - hardware counters through CUPTI, the profiling interface of the CUDA toolkit.
//
// CUPTI's vocabulary, as far as it is needed here:
//
//   metric          a number with a name: unit__what.rollup. "dram__bytes_read.sum" is the bytes
//                   read, summed over all of the card's memory controllers.
//   host object     knows a chip's metrics: turns their names into a configuration of the counters
//                   and, afterwards, raw counts into values. It needs no GPU.
//   range profiler  sets the counters of one CUDA context and reads them.
//   user range      what is counted lies between a push and a pop that we call ourselves (an "auto
//                   range" would be each kernel by itself).
//   user replay     when the metrics need more passes than one, we run the work again ourselves
//                   (in "kernel replay" CUPTI repeats each kernel and restores memory between).
//   image           bytes that CUPTI fills and reads; the caller only finds room for them.
//
// Each function below is one stage and calls one or two CUPTI functions; counters_read(), at the
// end, is the list of the stages. Every call takes one struct, which begins with its own size so
// that a library older or newer than the header can tell which fields are there.
//
// CUPTI is opened at run time: a program that was built here also runs where CUPTI is missing.
// This is C++ because CUPTI's header is.
#include "gpu/counters.h"

#include <math.h>

#include "refuse.h"

#if !__has_include(<cupti_range_profiler.h>)

bool counters_read(const struct counted_work *, const char *const *, int count, double *values,
                   char *why, size_t why_size) {
    for (int i = 0; i < count; i++) values[i] = NAN;
    return refuse(why, why_size,
                  "no hardware counters: built without cupti_range_profiler.h; install CUPTI (with "
                  "CUDA 12.6 or newer) and build again");
}

#else

#include <cuda.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>
#include <dlfcn.h>
#include <stdlib.h>

#include <string>
#include <vector>

// ---- the library ------------------------------------------------------------------------------

// What we call, without the prefix "cupti" that each has.
#define CUPTI_FUNCTIONS(X)                                                                         \
    X(GetResultString)                                                                             \
    X(DeviceGetChipName)                                                                           \
    X(ProfilerInitialize)                                                                          \
    X(ProfilerGetCounterAvailability)                                                              \
    X(ProfilerHostInitialize)                                                                      \
    X(ProfilerHostGetMetricProperties)                                                             \
    X(ProfilerHostConfigAddMetrics)                                                                \
    X(ProfilerHostGetConfigImageSize)                                                              \
    X(ProfilerHostGetConfigImage)                                                                  \
    X(ProfilerHostEvaluateToGpuValues)                                                             \
    X(ProfilerHostDeinitialize)                                                                    \
    X(RangeProfilerEnable)                                                                         \
    X(RangeProfilerGetCounterDataSize)                                                             \
    X(RangeProfilerCounterDataImageInitialize)                                                     \
    X(RangeProfilerSetConfig)                                                                      \
    X(RangeProfilerStart)                                                                          \
    X(RangeProfilerPushRange)                                                                      \
    X(RangeProfilerPopRange)                                                                       \
    X(RangeProfilerStop)                                                                           \
    X(RangeProfilerDecodeData)                                                                     \
    X(RangeProfilerDisable)

// One function pointer for each, of the type that the header declares: cupti.RangeProfilerStart.
static struct {
#define DECLARE(name) decltype(&cupti##name) name;
    CUPTI_FUNCTIONS(DECLARE)
#undef DECLARE
} cupti;

// Opens libcupti in a folder ("": wherever the dynamic linker looks). It asks for two libraries
// beside it by their bare names; opening them first lets it find them in any folder.
static void *open_in(const std::string &folder) {
    const std::string version = "." + std::to_string(CUDA_VERSION / 1000);
    for (const char *name : {"libnvperf_host.so", "libnvperf_target.so"})
        dlopen((folder + name).c_str(), RTLD_NOW);
    void *library = dlopen((folder + "libcupti.so" + version).c_str(), RTLD_NOW);
    return library ? library : dlopen((folder + "libcupti.so").c_str(), RTLD_NOW);
}

static void *open_cupti() {
    if (void *library = open_in("")) return library;
    const char *toolkits[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"};
    for (const char *toolkit : toolkits) {
        if (!toolkit) continue;
        for (const char *folder : {"/extras/CUPTI/lib64/", "/lib64/"})
            if (void *library = open_in(std::string(toolkit) + folder)) return library;
    }
    return nullptr;
}

static bool load(char *why, size_t why_size) {
    static void *library = open_cupti();
    if (!library)
        return refuse(why, why_size,
                      "no hardware counters: libcupti.so.%d is not found; install the toolkit's "
                      "CUPTI package or set CUDA_HOME to the toolkit's folder",
                      CUDA_VERSION / 1000);
#define FIND(name)                                                                                 \
    cupti.name = (decltype(cupti.name))dlsym(library, "cupti" #name);                              \
    if (!cupti.name)                                                                               \
        return refuse(why, why_size,                                                               \
                      "no hardware counters: libcupti has no cupti" #name                          \
                      "; install the CUPTI package of CUDA %d",                                    \
                      CUDA_VERSION / 1000);
    CUPTI_FUNCTIONS(FIND)
#undef FIND
    return true;
}

// The CUDA context that the runtime made for this thread; NULL: there is none yet.
static CUcontext current_context() {
    CUcontext context = nullptr;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW); // loaded long ago: this only finds it again
    if (!driver) return nullptr;
    auto get = (decltype(&cuCtxGetCurrent))dlsym(driver, "cuCtxGetCurrent");
    if (!get || get(&context) != CUDA_SUCCESS) return nullptr;
    return context;
}

// ---- one reading --------------------------------------------------------------------------------

namespace {

struct reading {
    const counted_work *work;
    CUcontext context;
    char *why;
    size_t why_size;

    std::vector<const char *> metrics; // those that this chip has
    std::vector<int> place;            // where in the caller's list each of them stands
    std::vector<uint8_t> availability; // image: which counters this machine lets us have
    std::vector<uint8_t> config;       // image: what to count in which pass
    std::vector<uint8_t> data;         // image: raw counts
    CUpti_Profiler_Host_Object *host = nullptr;
    CUpti_RangeProfiler_Object *profiler = nullptr;
};

// A parameter struct, zeroed but for its size.
template <typename P> P sized(size_t size) {
    P parameters{};
    parameters.structSize = size;
    return parameters;
}
#define PARAMETERS(type) sized<type##_Params>(type##_Params_STRUCT_SIZE)

// Calls one function of CUPTI; false, and a line in r.why, when it fails.
#define CALL(name, parameters) succeeded(r, cupti.name(&parameters), "cupti" #name)

bool succeeded(reading &r, CUptiResult result, const char *function) {
    if (result == CUPTI_SUCCESS) return true;
    if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
        return refuse(r.why, r.why_size,
                      "hardware counters are not permitted: run as root (a container needs "
                      "CAP_SYS_ADMIN), or set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia "
                      "module in /etc/modprobe.d and reboot");
    const char *text = nullptr;
    cupti.GetResultString(result, &text);
    return refuse(r.why, r.why_size,
                  "no hardware counters: %s gives %s (%d); the rest of the measurement stands",
                  function, text ? text : "an error", (int)result);
}

bool initialize(reading &r) {
    static bool done = false;
    if (done) return true;
    auto p = PARAMETERS(CUpti_Profiler_Initialize);
    return done = CALL(ProfilerInitialize, p);
}

// Virtual machines and other users may hold some of the counters. Called twice, as many functions
// of CUPTI are: for the size, then for the image.
bool ask_availability(reading &r) {
    auto p = PARAMETERS(CUpti_Profiler_GetCounterAvailability);
    p.ctx = r.context;
    if (!CALL(ProfilerGetCounterAvailability, p)) return false;
    r.availability.resize(p.counterAvailabilityImageSize);
    p.pCounterAvailabilityImage = r.availability.data();
    return CALL(ProfilerGetCounterAvailability, p);
}

bool open_host(reading &r) {
    auto chip = PARAMETERS(CUpti_Device_GetChipName); // "GH100" for an H200
    if (!CALL(DeviceGetChipName, chip)) return false;
    auto p = PARAMETERS(CUpti_Profiler_Host_Initialize);
    p.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    p.pChipName = chip.pChipName;
    p.pCounterAvailabilityImage = r.availability.data();
    if (!CALL(ProfilerHostInitialize, p)) return false;
    r.host = p.pHostObject;
    return true;
}

// Leaves out what the chip does not have (no TMA before Hopper): adding one such name would spoil
// the whole configuration.
bool choose_metrics(reading &r, const char *const *metrics, int count) {
    for (int i = 0; i < count; i++) {
        auto p = PARAMETERS(CUpti_Profiler_Host_GetMetricProperties);
        p.pHostObject = r.host;
        p.pMetricName = metrics[i];
        if (cupti.ProfilerHostGetMetricProperties(&p) != CUPTI_SUCCESS) continue;
        r.metrics.push_back(metrics[i]);
        r.place.push_back(i);
    }
    if (r.metrics.empty())
        return refuse(r.why, r.why_size,
                      "no hardware counters: this chip has none of the %d metrics asked for "
                      "(%s first)",
                      count, metrics[0]);
    return true;
}

// All metrics in one call: added one by one, each would get passes of its own.
bool make_config(reading &r) {
    auto add = PARAMETERS(CUpti_Profiler_Host_ConfigAddMetrics);
    add.pHostObject = r.host;
    add.ppMetricNames = r.metrics.data();
    add.numMetrics = r.metrics.size();
    if (!CALL(ProfilerHostConfigAddMetrics, add)) return false;

    auto size = PARAMETERS(CUpti_Profiler_Host_GetConfigImageSize);
    size.pHostObject = r.host;
    if (!CALL(ProfilerHostGetConfigImageSize, size)) return false;
    r.config.resize(size.configImageSize);

    auto get = PARAMETERS(CUpti_Profiler_Host_GetConfigImage);
    get.pHostObject = r.host;
    get.configImageSize = r.config.size();
    get.pConfigImage = r.config.data();
    return CALL(ProfilerHostGetConfigImage, get);
}

// From here to disable() launches may be slower than usual: nothing is timed between them.
bool enable(reading &r) {
    auto p = PARAMETERS(CUpti_RangeProfiler_Enable);
    p.ctx = r.context;
    if (!CALL(RangeProfilerEnable, p)) return false;
    r.profiler = p.pRangeProfilerObject;
    return true;
}

bool make_data(reading &r) {
    auto size = PARAMETERS(CUpti_RangeProfiler_GetCounterDataSize);
    size.pRangeProfilerObject = r.profiler;
    size.pMetricNames = r.metrics.data();
    size.numMetrics = r.metrics.size();
    size.maxNumOfRanges = 1;
    size.maxNumRangeTreeNodes = 1;
    if (!CALL(RangeProfilerGetCounterDataSize, size)) return false;
    r.data.resize(size.counterDataSize);

    auto p = PARAMETERS(CUpti_RangeProfiler_CounterDataImage_Initialize);
    p.pRangeProfilerObject = r.profiler;
    p.counterDataSize = r.data.size();
    p.pCounterData = r.data.data();
    return CALL(RangeProfilerCounterDataImageInitialize, p);
}

bool set_config(reading &r) {
    auto p = PARAMETERS(CUpti_RangeProfiler_SetConfig);
    p.pRangeProfilerObject = r.profiler;
    p.configSize = r.config.size();
    p.pConfig = r.config.data();
    p.counterDataImageSize = r.data.size();
    p.pCounterDataImage = r.data.data();
    p.range = CUPTI_UserRange;
    p.replayMode = CUPTI_UserReplay;
    p.maxRangesPerPass = 1;
    p.numNestingLevels = 1; // our one range has no ranges inside
    p.minNestingLevel = 1;
    p.targetNestingLevel = 1;
    return CALL(RangeProfilerSetConfig, p);
}

// One pass: the work is run once, between push and pop. `last` says whether it was the last one.
bool run_pass(reading &r, bool *last) {
    auto start = PARAMETERS(CUpti_RangeProfiler_Start);
    auto push = PARAMETERS(CUpti_RangeProfiler_PushRange);
    auto pop = PARAMETERS(CUpti_RangeProfiler_PopRange);
    auto stop = PARAMETERS(CUpti_RangeProfiler_Stop);
    start.pRangeProfilerObject = push.pRangeProfilerObject = r.profiler;
    pop.pRangeProfilerObject = stop.pRangeProfilerObject = r.profiler;
    push.pRangeName = "pass";

    r.work->prepare(r.work->context);
    if (!CALL(RangeProfilerStart, start) || !CALL(RangeProfilerPushRange, push)) return false;
    r.work->run(r.work->context);
    if (!CALL(RangeProfilerPopRange, pop) || !CALL(RangeProfilerStop, stop)) return false;
    *last = stop.isAllPassSubmitted;
    return true;
}

bool run_all_passes(reading &r) {
    enum { MOST = 64 }; // a dozen metrics need four; this ends a loop that never would
    bool last = false;
    for (int pass = 0; !last; pass++) {
        if (pass == MOST)
            return refuse(r.why, r.why_size,
                          "no hardware counters: CUPTI is not done after %d passes", MOST);
        if (!run_pass(r, &last)) return false;
    }
    return true;
}

bool decode(reading &r) {
    auto p = PARAMETERS(CUpti_RangeProfiler_DecodeData);
    p.pRangeProfilerObject = r.profiler;
    if (!CALL(RangeProfilerDecodeData, p)) return false;
    if (p.numOfRangeDropped)
        return refuse(r.why, r.why_size, "no hardware counters: CUPTI dropped the range");
    return true;
}

bool evaluate(reading &r, double *values) {
    std::vector<double> found(r.metrics.size());
    auto p = PARAMETERS(CUpti_Profiler_Host_EvaluateToGpuValues);
    p.pHostObject = r.host;
    p.pCounterDataImage = r.data.data();
    p.counterDataImageSize = r.data.size();
    p.rangeIndex = 0;
    p.ppMetricNames = r.metrics.data();
    p.numMetrics = r.metrics.size();
    p.pMetricValues = found.data();
    if (!CALL(ProfilerHostEvaluateToGpuValues, p)) return false;
    for (size_t i = 0; i < found.size(); i++) values[r.place[i]] = found[i];
    return true;
}

// Also after a failure, so that the next reading and all timing find the counters at rest. What it
// returns is not looked at: after a failed call this one may fail too.
void clean_up(reading &r) {
    auto disable = PARAMETERS(CUpti_RangeProfiler_Disable);
    disable.pRangeProfilerObject = r.profiler;
    if (r.profiler) cupti.RangeProfilerDisable(&disable);
    auto deinitialize = PARAMETERS(CUpti_Profiler_Host_Deinitialize);
    deinitialize.pHostObject = r.host;
    if (r.host) cupti.ProfilerHostDeinitialize(&deinitialize);
}

} // namespace

bool counters_read(const struct counted_work *work, const char *const *metrics, int count,
                   double *values, char *why, size_t why_size) {
    for (int i = 0; i < count; i++) values[i] = NAN;
    if (!load(why, why_size)) return false;
    reading r{};
    r.work = work;
    r.context = current_context();
    r.why = why;
    r.why_size = why_size;
    bool done = initialize(r) && ask_availability(r) && open_host(r) &&
                choose_metrics(r, metrics, count) && make_config(r) && enable(r) && make_data(r) &&
                set_config(r) && run_all_passes(r) && decode(r) && evaluate(r, values);
    clean_up(r);
    return done;
}

#endif

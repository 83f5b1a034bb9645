// counters.h - a GPU's hardware counters, read around a piece of work.
//
// Counters are read in this process, through CUPTI's range profiler, so no other tool need be
// started. Without CUPTI, or without the permission, counters_read() says so and nothing else is
// lost. It does not know what the counters mean: machine.cu names them and does the arithmetic.
#ifndef GPU_COUNTERS_H
#define GPU_COUNTERS_H

#include <stddef.h>

// The hardware has fewer counters than metrics that one may ask for, so the work is run several
// times ("passes"), and each run feeds the counters of its turn. Every run must do the same.
struct counted_work {
    void (*prepare)(void *context); // before every run, not counted: puts the caches in order
    void (*run)(void *context);     // counted; the GPU must be idle again when it returns
    void *context;
};

// Fills in values[i] for metrics[i], "dram__bytes_read.sum" for one; NAN where this chip does not
// have the metric. False, with one line in `why`, when no counter can be read at all.
bool counters_read(const struct counted_work *work, const char *const *metrics, int count,
                   double *values, char *why, size_t why_size);

#endif

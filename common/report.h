// report.h - what the reader sees: a table with one row a kernel, or CSV with stable columns.
#ifndef REPORT_H
#define REPORT_H

#include "run.h"

struct reporter {
    bool csv;
    bool profile; // what each source line asked for; as CSV instead of the other rows
    bool detail;  // table: one kernel only, so explain its numbers as well
    const struct machine *machine;
    const char *command; // the whole command line, for the CSV
    uint64_t seed;
    bool fp8_14_bits; // simulator: how FP8 products are added
    int titled;       // number of the input whose title was printed last; 0: none yet
};

void report_result(struct reporter *, const struct result *);

// Prints a field of CSV in quotes, with quotes doubled (RFC 4180).
void csv_text(const char *text);

// One line on stderr, only on a terminal, overwritten by the next; NULL clears it.
void report_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

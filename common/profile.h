// profile.h - what each source line of a kernel asks of memory, as --profile shows it.
#ifndef PROFILE_H
#define PROFILE_H

#include <stdbool.h>
#include <stdint.h>

// The accesses of one kind that one source line makes to one buffer or __shared__ array. A request
// is one instruction of one warp; its lanes are those that take part.
struct profile_line {
    char kernel[48]; // as LAUNCH was given it
    char file[200];
    int line;         // 0: not known, and `file` says why
    bool shared;      // shared memory; else global
    const char *kind; // "load", "store", "atomic"
    char name[32];    // of the buffer, or of the __shared__ array
    uint64_t requests, lanes;
    uint64_t cost;  // global: sectors of 32 bytes; shared: wavefronts
    uint64_t ideal; // the fewest sectors or wavefronts that could have served each request
    uint64_t used;  // global: bytes asked for, each counted once a request
};

// Writes the table of one pass: a section for global memory and one for shared memory, each with
// its total, in the order of `lines`.
void profile_table(const struct profile_line *lines, int count);

// The last columns of a row of CSV, and the end of the line.
#define PROFILE_CSV_COLUMNS                                                                        \
    "launch,file,line,memory,kind,name,requests,lanes,sectors,ideal_sectors,used_bytes,"           \
    "wavefronts,ideal_wavefronts,source"
void profile_csv(const struct profile_line *);

#endif

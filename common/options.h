// options.h - the command line, the same for every program.
#ifndef OPTIONS_H
#define OPTIONS_H

#include "inputs.h"

enum { MAX_LOADS = 8 };

struct options {
    struct attn_problem problem; // scale 0: the default; the machine's fields are not set yet
    bool shape_given;            // any of -b -H --kv-heads -n --seqlen-q --seqlen-k -d
    bool dtype_given;
    const char *kernel; // names with commas between them; NULL: all that are not variants
    unsigned passes;
    enum data_family data;
    bool data_given;
    uint64_t seed;
    const char *sram_text; // --sram as it was given; NULL: all that the machine has
    long long sram;        // bytes; it is the machine that knows how many there are
    int repeat;            // 0: the machine's own default
    bool fast, profile, csv;
    bool fp8_14_bits, fp8_accumulator_given;
    const char *timeline; // a file, or NULL
    const char *dump;
    const char *load[MAX_LOADS]; // folders of .npy files, each one more input
    int loads;
    enum { ACTION_RUN, ACTION_HELP, ACTION_VERSION, ACTION_LIST } action;
};

// False, with one line in `why`, for anything that cannot be meant: exit status 2.
bool options_parse(int argc, char **argv, struct options *out, char *why, size_t why_size);
void options_help(const char *program);

#endif

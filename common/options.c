// options.c - the command line: getopt_long, with every value checked where it is read.

#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KV_HEADS = 256,
    SEQLEN_Q,
    SEQLEN_K,
    CAUSAL,
    SCALE,
    DTYPE,
    FP8_SCALE,
    ROTATE,
    FP8_ACCUMULATOR,
    KERNEL,
    PASS,
    DATA,
    SEED,
    SRAM,
    REPEAT,
    FAST,
    PROFILE,
    TIMELINE,
    FORMAT,
    DUMP,
    LOAD,
    LIST,
    VERSION,
};

static const struct option long_options[] = {
    {"batch", required_argument, NULL, 'b'},
    {"heads", required_argument, NULL, 'H'},
    {"kv-heads", required_argument, NULL, KV_HEADS},
    {"seqlen", required_argument, NULL, 'n'},
    {"seqlen-q", required_argument, NULL, SEQLEN_Q},
    {"seqlen-k", required_argument, NULL, SEQLEN_K},
    {"head-dim", required_argument, NULL, 'd'},
    {"causal", no_argument, NULL, CAUSAL},
    {"scale", required_argument, NULL, SCALE},
    {"dtype", required_argument, NULL, DTYPE},
    {"fp8-scale", required_argument, NULL, FP8_SCALE},
    {"rotate", no_argument, NULL, ROTATE},
    {"fp8-accumulator", required_argument, NULL, FP8_ACCUMULATOR},
    {"kernel", required_argument, NULL, KERNEL},
    {"pass", required_argument, NULL, PASS},
    {"data", required_argument, NULL, DATA},
    {"seed", required_argument, NULL, SEED},
    {"sram", required_argument, NULL, SRAM},
    {"repeat", required_argument, NULL, REPEAT},
    {"fast", no_argument, NULL, FAST},
    {"profile", no_argument, NULL, PROFILE},
    {"timeline", required_argument, NULL, TIMELINE},
    {"format", required_argument, NULL, FORMAT},
    {"dump", required_argument, NULL, DUMP},
    {"load", required_argument, NULL, LOAD},
    {"list", no_argument, NULL, LIST},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, VERSION},
    {NULL, 0, NULL, 0},
};

void options_help(const char *program) {
    printf(
        "Usage: %s [OPTIONS]\n"
        "Runs attention kernels, checks them against the naive algorithm in double precision and "
        "counts\n"
        "the bytes they ask of HBM.\n\n"
        "The problem\n"
        "  -b, --batch N         B, default 1\n"
        "  -H, --heads N         H, query heads, default 2\n"
        "      --kv-heads N      Hkv, key/value heads; divides H; default H\n"
        "  -n, --seqlen N        Nq and Nk, default 512\n"
        "      --seqlen-q N, --seqlen-k N   one of them alone\n"
        "  -d, --head-dim N      d, a multiple of 8 up to 256, default 64\n"
        "      --causal          query i sees the keys j <= i + Nk - Nq\n"
        "      --scale X         of QK^T, default 1/sqrt(d)\n"
        "      --dtype TYPE      fp32, fp16, bf16 or fp8; default: the kernel's first\n"
        "      --fp8-scale OF    fp8: one scale for each tensor (default), head, or block of 128 "
        "rows\n"
        "      --rotate          fp8: rotate Q and K before they are quantised; d a power of two\n"
        "The input\n"
        "      --data FAMILY     normal (default), large, rising, outliers, constant, one-hot\n"
        "      --seed N          default 1\n"
        "      --load DIR        Q.npy, K.npy, V.npy (dO.npy) instead; may be repeated; with "
        "--data, "
        "besides\n"
        "What to run, on what\n"
        "      --kernel NAMES    one, or several with commas between them, run in the order of "
        "--list;\n"
        "                        default all, which leaves out the variants\n"
        "      --pass PASS       forward (default), backward or both\n"
        "      --sram BYTES      shared memory a block may use (64K = 65536; M, G); default: the "
        "machine's\n"
        "      --repeat N        timed runs on a GPU, default 20; in all runs the output must be "
        "the same\n"
        "      --fast            simulator: count bytes only, skip sectors\n"
        "      --fp8-accumulator HOW   simulator: sums of FP8 products, exact (default) or 14bit, "
        "as Hopper's\n"
        "                        are said to be\n"
        "What to print\n"
        "      --format FORMAT   table (default) or csv\n"
        "      --profile         simulator: what each source line asks of memory; csv: only that\n"
        "      --timeline FILE   simulator: who waits for what, and what is under way, as CSV\n"
        "      --dump DIR        write Q K V O LSE (dO dQ dK dV) as .npy; with several kernels to "
        "DIR/NAME/\n"
        "      --list, --help, --version\n\n"
        "The result of a row: ok; WRONG, a wrong output or a fault found; bytes, right outputs "
        "but other\n"
        "bytes than the kernel's model says; not run, and why.\n"
        "Exit status: 0 all ok; 1 WRONG or bytes in a row; 2 bad usage; 3 this machine cannot.\n"
        "A kernel that cannot run says why in its row. If --kernel names it, or if none can run, "
        "the status\n"
        "is 2, or 3 where another machine could run it.\n",
        program);
}

// ---- one value at a time: each function reports its own mistake --------------------------------

struct value {
    const char *option, *text;
    char *why;
    size_t why_size;
};

static bool refuse(const struct value *v, const char *what) {
    snprintf(v->why, v->why_size, "--%s %s: %s", v->option, v->text, what);
    return false;
}

static bool read_integer(const struct value *v, long long least, long long most, long long *out) {
    char *end, what[96];
    errno = 0;
    *out = strtoll(v->text, &end, 10);
    if (end == v->text || *end) return refuse(v, "not a whole number");
    snprintf(what, sizeof what, "must be %lld .. %lld", least, most);
    if (errno || *out < least || *out > most) return refuse(v, what);
    return true;
}

static bool read_int(const struct value *v, int least, int most, int *out) {
    long long x;
    if (!read_integer(v, least, most, &x)) return false;
    *out = (int)x;
    return true;
}

static bool read_head_dim(const struct value *v, int *out) {
    char *end;
    long x = strtol(v->text, &end, 10); // out of range: LONG_MIN or LONG_MAX
    if (end == v->text || *end) return refuse(v, "not a whole number");
    if (x < 8 || x > 256 || x % 8) return refuse(v, "must be a multiple of 8, 8 .. 256");
    *out = (int)x;
    return true;
}

static bool read_seed(const struct value *v, uint64_t *out) {
    char *end;
    errno = 0;
    *out = strtoull(v->text, &end, 10);
    if (end == v->text || *end || errno || strchr(v->text, '-'))
        return refuse(v, "must be 0 .. 18446744073709551615");
    return true;
}

static bool read_scale(const struct value *v, float *out) {
    char *end;
    *out = strtof(v->text, &end);
    if (end == v->text || *end) return refuse(v, "not a number");
    if (!isfinite(*out) || !(*out > 0)) return refuse(v, "must be finite and above 0");
    return true;
}

// Any number of bytes: what is too much is as large as can be.
static bool read_bytes(const struct value *v, long long *out) {
    char *end;
    long long n = strtoll(v->text, &end, 10);
    int digits = (int)(end - v->text), unit = 0;
    if (*end == 'K' || *end == 'k') unit = 10;
    if (*end == 'M' || *end == 'm') unit = 20;
    if (*end == 'G' || *end == 'g') unit = 30;
    if (!digits || end[unit > 0])
        return refuse(v, "not a number of bytes; write 65536 or 64K, with K, M or G");
    if (__builtin_mul_overflow(n, 1ll << unit, out)) *out = n < 0 ? LLONG_MIN : LLONG_MAX;
    return true;
}

static bool read_dtype(const struct value *v, enum attn_dtype *out) {
    for (int t = 0; t < ATTN_DTYPES; t++)
        if (!strcmp(v->text, attn_dtype_name((enum attn_dtype)t))) {
            *out = (enum attn_dtype)t;
            return true;
        }
    return refuse(v, "must be fp32, fp16, bf16 or fp8");
}

static bool read_fp8_scale(const struct value *v, enum fp8_scale *out) {
    for (enum fp8_scale s = FP8_SCALE_TENSOR; s <= FP8_SCALE_BLOCK; s++)
        if (!strcmp(v->text, fp8_scale_name(s))) {
            *out = s;
            return true;
        }
    return refuse(v, "must be tensor, head or block");
}

static bool read_fp8_accumulator(const struct value *v, bool *in_14_bits) {
    *in_14_bits = !strcmp(v->text, "14bit");
    return *in_14_bits || !strcmp(v->text, "exact") || refuse(v, "must be exact or 14bit");
}

static bool read_pass(const struct value *v, unsigned *out) {
    static const char *const names[] = {[ATTN_FORWARD] = "forward",
                                        [ATTN_BACKWARD] = "backward",
                                        [ATTN_FORWARD | ATTN_BACKWARD] = "both"};
    for (unsigned pass = ATTN_FORWARD; pass <= (ATTN_FORWARD | ATTN_BACKWARD); pass++)
        if (!strcmp(v->text, names[pass])) {
            *out = pass;
            return true;
        }
    return refuse(v, "must be forward, backward or both");
}

static bool read_format(const struct value *v, bool *csv) {
    *csv = !strcmp(v->text, "csv");
    return *csv || !strcmp(v->text, "table") || refuse(v, "must be table or csv");
}

static bool add_load(const struct value *v, struct options *o) {
    if (o->loads == MAX_LOADS) return refuse(v, "at most 8 folders can be loaded in one run");
    o->load[o->loads++] = v->text;
    return true;
}

// ---- the whole line ----------------------------------------------------------------------------

// Lengths as given; 0 where an option was not given.
struct lengths {
    int both, q, k, kv_heads;
};

static bool read_option(int c, const struct value *v, struct options *o, struct lengths *n) {
    enum { MOST_N = 16777216, MOST_HEADS = 65535 };
    switch (c) {
    case 'b': return read_int(v, 1, MOST_HEADS, &o->problem.batch);
    case 'H': return read_int(v, 1, MOST_HEADS, &o->problem.heads);
    case KV_HEADS: return read_int(v, 1, MOST_HEADS, &n->kv_heads);
    case 'n': return read_int(v, 1, MOST_N, &n->both);
    case SEQLEN_Q: return read_int(v, 1, MOST_N, &n->q);
    case SEQLEN_K: return read_int(v, 1, MOST_N, &n->k);
    case 'd': return read_head_dim(v, &o->problem.head_dim);
    case CAUSAL: return o->problem.causal = true;
    case SCALE: return read_scale(v, &o->problem.scale);
    case DTYPE: return o->dtype_given = read_dtype(v, &o->problem.dtype);
    case FP8_SCALE: return read_fp8_scale(v, &o->problem.fp8_scale);
    case ROTATE: return o->problem.rotate = true;
    case FP8_ACCUMULATOR:
        o->fp8_accumulator_given = true;
        return read_fp8_accumulator(v, &o->fp8_14_bits);
    case KERNEL: o->kernel = strcmp(v->text, "all") ? v->text : NULL; return true;
    case PASS: return read_pass(v, &o->passes);
    case DATA:
        o->data_given = true;
        return data_family_parse(v->text, &o->data) ||
               refuse(v, "must be normal, large, rising, outliers, constant or one-hot");
    case SEED: return read_seed(v, &o->seed);
    case SRAM: o->sram_text = v->text; return read_bytes(v, &o->sram);
    case REPEAT: return read_int(v, 1, 1000000, &o->repeat);
    case FAST: return o->fast = true;
    case PROFILE: return o->profile = true;
    case TIMELINE: o->timeline = v->text; return true;
    case FORMAT: return read_format(v, &o->csv);
    case DUMP: o->dump = v->text; return true;
    case LOAD: return add_load(v, o);
    case 'h': o->action = ACTION_HELP; return true;
    case VERSION: o->action = ACTION_VERSION; return true;
    case LIST: o->action = ACTION_LIST; return true;
    }
    return false;
}

static const char *long_name(int c) {
    for (const struct option *l = long_options; l->name; l++)
        if (l->val == c) return l->name;
    return "";
}

static bool is_shape(int c) {
    return strchr("bHnd", c) || c == KV_HEADS || c == SEQLEN_Q || c == SEQLEN_K;
}

static void finish(struct options *o, const struct lengths *n) {
    struct attn_problem *p = &o->problem;
    p->seqlen_q = n->q ? n->q : n->both ? n->both : 512;
    p->seqlen_k = n->k ? n->k : n->both ? n->both : 512;
    p->kv_heads = n->kv_heads ? n->kv_heads : p->heads;
}

static bool check_together(const struct options *o, char *why, size_t why_size) {
    if (o->fast && o->profile) {
        snprintf(why, why_size,
                 "--fast --profile: the profile needs the sectors that --fast skips");
        return false;
    }
    if (o->loads && o->shape_given && !o->data_given) {
        snprintf(why, why_size,
                 "--load %s: the files set the shape; leave out -b, -H, --kv-heads, -n, -d",
                 o->load[0]);
        return false;
    }
    if (o->dump && o->loads + (o->data_given || !o->loads) > 1) {
        snprintf(why, why_size, "--dump %s: takes one input; give one --load, or --data", o->dump);
        return false;
    }
    return true;
}

bool options_parse(int argc, char **argv, struct options *o, char *why, size_t why_size) {
    *o = (struct options){
        .problem = {.batch = 1, .heads = 2, .head_dim = 64}, .passes = ATTN_FORWARD, .seed = 1};
    struct lengths n = {0};
    opterr = 0; // our own messages: one line, with what to do
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, ":b:H:n:d:h", long_options, NULL)) != -1;) {
        if (c == '?' || c == ':') {
            char letter[] = {'-', (char)optopt,
                             0}; // optopt: the letter, or 0 or a number of ours for a word
            const char *word = optopt > 0 && optopt < KV_HEADS && strncmp(argv[optind - 1], "--", 2)
                                   ? letter
                                   : argv[optind - 1];
            snprintf(why, why_size,
                     c == ':' ? "%s: needs a value; --help lists the options"
                              : "%s: unknown option; --help lists them",
                     word);
            return false;
        }
        struct value v = {long_name(c), optarg ? optarg : "", why, why_size};
        if (!read_option(c, &v, o, &n)) return false;
        o->shape_given |= is_shape(c);
    }
    if (optind < argc) {
        snprintf(why, why_size, "%s: unexpected word; options begin with a dash, --help lists them",
                 argv[optind]);
        return false;
    }
    finish(o, &n);
    return check_together(o, why, why_size);
}

// main.c - the program: every step's, and the ladder's.
//
// A step's program is linked with its own kernels, the ladder with all; the registry (attn.h) says
// which are there. Exit status: 0 right; 1 a wrong result, a fault found, or other bytes than the
// model says; 2 bad usage; 3 this machine cannot.

#include "options.h"
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EXIT_RIGHT, EXIT_WRONG, EXIT_USAGE, EXIT_CANNOT };

static const char *program;

// One line, whatever control characters a name or a value brought along.
static int complain(int status, const char *line) {
    report_progress(NULL);
    fflush(stdout);
    fprintf(stderr, "%s: ", program);
    for (; *line; line++) fputc((unsigned char)*line < ' ' ? '?' : *line, stderr);
    fputc('\n', stderr);
    return status;
}

// A table that did not reach its file must not look like a success.
static int finish(int status) {
    if (!fflush(stdout) && !ferror(stdout)) return status;
    return complain(EXIT_CANNOT, "cannot write the output; is the disk full?");
}

// ---- what can be run ----------------------------------------------------------------------------

static void list_kernels(void) {
    printf("%-26s %-16s %-16s %s\n", "step", "kernel", "types", "idea");
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        char types[40] = "";
        for (int t = 0; t < ATTN_DTYPES; t++)
            if (k->dtypes >> t & 1)
                snprintf(types + strlen(types), sizeof types - strlen(types), "%s%s",
                         types[0] ? " " : "", attn_dtype_name((enum attn_dtype)t));
        printf("%-26s %-16s %-16s %s%s\n", k->step, k->name, types, k->variant ? "variant: " : "",
               k->idea);
    }
}

// Is this name, of `length` characters, that of the kernel?
static bool is_called(const struct attn_kernel *k, const char *name, size_t length) {
    return strlen(k->name) == length && !memcmp(k->name, name, length);
}

// The list "a,b" of --kernel, name by name: *at moves on to the next one. False at the end.
static bool next_name(const char **at, const char **name, size_t *length) {
    if (!*at) return false;
    *name = *at;
    *length = strcspn(*name, ",");
    *at = (*name)[*length] ? *name + *length + 1 : NULL;
    return true;
}

static bool kernels_exist(const char *list, char *why, size_t why_size) {
    const char *name;
    size_t length;
    while (next_name(&list, &name, &length)) {
        bool found = false;
        for (int i = 0; i < attn_kernel_count() && !found; i++)
            found = is_called(attn_kernel_at(i), name, length);
        if (found) continue;
        snprintf(why, why_size, "--kernel %.*s: no such kernel here; --list shows them",
                 length > 200 ? 200 : (int)length, name);
        return false;
    }
    return true;
}

// A kernel runs when --kernel names it (once, and in the registry's order, however the list is
// written); without --kernel, when it is not a variant.
static bool is_chosen(const struct options *o, const struct attn_kernel *k) {
    if (!o->kernel) return !k->variant;
    const char *list = o->kernel, *name;
    size_t length;
    while (next_name(&list, &name, &length))
        if (is_called(k, name, length)) return true;
    return false;
}

static int count_chosen(const struct options *o) {
    int count = 0;
    for (int i = 0; i < attn_kernel_count(); i++) count += is_chosen(o, attn_kernel_at(i));
    return count;
}

static enum attn_dtype first_dtype(const struct attn_kernel *k) {
    int t = 0;
    while (t < ATTN_DTYPES - 1 && !(k->dtypes >> t & 1)) t++;
    return (enum attn_dtype)t;
}

// ---- folders for --dump -------------------------------------------------------------------------

static bool make_folder(const char *path, char *why, size_t why_size) {
    struct stat s;
    if (mkdir(path, 0777) && !(errno == EEXIST && !stat(path, &s) && S_ISDIR(s.st_mode))) {
        snprintf(why, why_size, "--dump %s: cannot make this folder: %s", path, strerror(errno));
        return false;
    }
    if (!access(path, W_OK | X_OK)) return true;
    snprintf(why, why_size, "--dump %s: cannot write there: %s", path, strerror(errno));
    return false;
}

// DIR with one kernel, DIR/NAME with several.
static bool dump_folder(const struct options *o, const struct attn_kernel *k, char *out,
                        size_t size, char *why, size_t why_size) {
    snprintf(out, size, count_chosen(o) > 1 ? "%s/%s" : "%s", o->dump, k->name);
    return make_folder(o->dump, why, why_size) && make_folder(out, why, why_size);
}

// ---- one input through all kernels --------------------------------------------------------------

struct session {
    const struct options *options;
    struct machine machine;
    struct reporter reporter;
    int ran, wrong;           // wrong: in outputs or bytes
    int unsuited, impossible; // did not run: the problem is not for them; this machine cannot
    char why[700];
    char refusal[700]; // why the first of them did not run
};

// A refusal that no machine would take back comes before those of this machine.
static void note_refusal(struct session *s, const struct result *r) {
    bool unsuited = r->outcome == NOT_SUPPORTED;
    if (!s->unsuited && (unsuited || !s->impossible))
        snprintf(s->refusal, sizeof s->refusal, "--kernel %s: %.600s", r->kernel->name, r->why);
    if (unsuited)
        s->unsuited++;
    else
        s->impossible++;
}

// EXIT_RIGHT: go on with the next; the outcome is in the table and in `s`.
static int take_result(struct session *s, const struct result *r) {
    if (r->outcome == REFUSED) return complain(EXIT_USAGE, r->why);
    if (r->outcome == NOT_SUPPORTED || r->outcome == NOT_POSSIBLE) note_refusal(s, r);
    if (r->outcome == NOT_SUPPORTED && s->options->kernel && s->reporter.detail)
        return complain(EXIT_USAGE, s->refusal); // it is the only one
    report_result(&s->reporter, r);
    if (s->reporter.csv && s->reporter.profile && r->why[0]) { // a profile has no column for it
        snprintf(s->why, sizeof s->why, "%s: %.600s", r->kernel->name, r->why);
        complain(EXIT_WRONG, s->why);
    }
    bool wrong = r->outcome == RAN_WRONG || r->outcome == RAN_UNMODELLED;
    s->ran += r->outcome == RAN_RIGHT || wrong;
    s->wrong += wrong;
    return EXIT_RIGHT;
}

static int run_one(struct session *s, const struct attn_kernel *k, struct prepared *in) {
    char folder[1024];
    const char *dump = s->options->dump ? folder : NULL;
    if (dump && !dump_folder(s->options, k, folder, sizeof folder, s->why, sizeof s->why))
        return complain(EXIT_USAGE, s->why);
    int repeat = s->options->repeat     ? s->options->repeat
                 : s->machine.simulated ? 1
                                        : 20,
        status = EXIT_RIGHT;
    struct result r[2];
    report_progress("%s %s on %s ...", k->step, k->name, in->name);
    int results = run_kernel(k, in, s->options->passes, repeat, dump, r);
    for (int i = 0; i < results && status == EXIT_RIGHT; i++) status = take_result(s, &r[i]);
    for (int i = 0; i < results; i++) free(r[i].profile);
    return status;
}

// Makes the input ready in k's data type, unless the kernel before has left it so.
static int prepare_for(struct session *s, const struct attn_kernel *k, const struct source *source,
                       struct prepared *in) {
    struct attn_problem p = s->options->problem;
    if (!s->options->dtype_given) p.dtype = first_dtype(k);
    if (in->number && in->problem.dtype == p.dtype) return EXIT_RIGHT;
    prepared_free(in);
    report_progress("input %s ...", source->load ? source->load : data_family_name(source->family));
    switch (prepare(&p, s->options->passes, source, in, s->why, sizeof s->why)) {
    case NOT_SUPPORTED: return complain(EXIT_USAGE, s->why);
    case NOT_POSSIBLE: return complain(EXIT_CANNOT, s->why);
    default: return EXIT_RIGHT;
    }
}

static int run_input(struct session *s, const struct source *source) {
    struct prepared in = {0};
    int status = EXIT_RIGHT;
    for (int i = 0; i < attn_kernel_count() && status == EXIT_RIGHT; i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        if (!is_chosen(s->options, k)) continue;
        status = prepare_for(s, k, source, &in);
        if (status == EXIT_RIGHT) status = run_one(s, k, &in);
    }
    prepared_free(&in);
    return status;
}

// After all have had their turn: the rule that --help states. Of the kernels that --kernel names,
// one that no machine would run decides; where none is named, one that another machine would run.
static int tell_refusals(struct session *s) {
    int refused = s->unsuited + s->impossible;
    if (!s->options->kernel)
        return s->ran ? EXIT_RIGHT
                      : complain(s->impossible ? EXIT_CANNOT : EXIT_USAGE,
                                 "no kernel could run; the rows above say why");
    if (!refused) return EXIT_RIGHT;
    if (refused > 1)
        snprintf(s->refusal + strlen(s->refusal), sizeof s->refusal - strlen(s->refusal),
                 "; and %d more did not run, the rows say why", refused - 1);
    return complain(s->unsuited ? EXIT_USAGE : EXIT_CANNOT, s->refusal);
}

static int run_all(struct session *s) {
    const struct options *o = s->options;
    int status = EXIT_RIGHT;
    if (o->data_given || !o->loads) status = run_input(s, &(struct source){NULL, o->data, o->seed});
    for (int i = 0; i < o->loads && status == EXIT_RIGHT; i++)
        status = run_input(s, &(struct source){o->load[i], o->data, o->seed});
    if (status != EXIT_RIGHT) return status;
    return s->wrong ? EXIT_WRONG : tell_refusals(s);
}

// ---- main ---------------------------------------------------------------------------------------

static void join_words(int argc, char **argv, char *out, size_t size) {
    size_t used = 0;
    for (int i = 0; i < argc && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? " " : "", argv[i]);
}

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/');
    program = slash ? slash + 1 : argv[0];
    static char command[2000];
    join_words(argc, argv, command, sizeof command);

    struct options options;
    struct session s = {.options = &options};
    if (!options_parse(argc, argv, &options, s.why, sizeof s.why))
        return complain(EXIT_USAGE, s.why);
    switch (options.action) {
    case ACTION_HELP: return options_help(program), finish(EXIT_RIGHT);
    case ACTION_VERSION: return puts("flash-attention-tutorial 0.1"), finish(EXIT_RIGHT);
    case ACTION_LIST: return list_kernels(), finish(EXIT_RIGHT);
    case ACTION_RUN: break;
    }
    if (options.kernel && !kernels_exist(options.kernel, s.why, sizeof s.why))
        return complain(EXIT_USAGE, s.why);

    if (!machine_open(&(struct machine_options){.fast = options.fast,
                                                .profile = options.profile,
                                                .timeline = options.timeline,
                                                .fp8_14_bits = options.fp8_14_bits},
                      &s.machine, s.why, sizeof s.why))
        return complain(s.machine.simulated ? EXIT_USAGE : EXIT_CANNOT, s.why);
    if (options.profile && !s.machine.simulated) {
        complain(EXIT_RIGHT,
                 "--profile is the simulator's; on a GPU, ncu --set full --import-source yes "
                 "-o FILE PROGRAM shows its source view");
        options.profile = false;
    }
    if (options.timeline && !s.machine.simulated)
        complain(EXIT_RIGHT,
                 "--timeline is the simulator's; on a GPU, nsys profile PROGRAM has one");
    if (options.fp8_accumulator_given && !s.machine.simulated)
        complain(EXIT_RIGHT, "--fp8-accumulator is the simulator's; a GPU adds as it does");
    if (options.sram_text && (options.sram < 1 || options.sram > (long long)s.machine.smem)) {
        snprintf(
            s.why, sizeof s.why,
            "--sram %.200s: must be 1 .. %zu bytes (%zu KB), the most that a block has on this "
            "machine",
            options.sram_text, s.machine.smem, s.machine.smem / 1024);
        return complain(EXIT_USAGE, s.why);
    }
    options.problem.smem = options.sram_text ? (size_t)options.sram : s.machine.smem;
    options.problem.smem_given = options.problem.smem < s.machine.smem;
    options.problem.sm = s.machine.sm;
    options.problem.sm_count = s.machine.sm_count;
    s.reporter = (struct reporter){.csv = options.csv,
                                   .profile = options.profile,
                                   .detail = count_chosen(&options) == 1,
                                   .machine = &s.machine,
                                   .command = command,
                                   .seed = options.seed,
                                   .fp8_14_bits = options.fp8_14_bits};
    return finish(run_all(&s));
}

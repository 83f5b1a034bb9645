// main.c - the program: every step's, and the ladder's.
//
// A step's program is linked with its own kernels, the ladder with all; the registry (attn.h) says
// which are there. Exit status: 0 right; 1 a wrong result or a fault found; 2 bad usage; 3 this
// machine cannot.

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

static int complain(int status, const char *line) {
    report_progress(NULL);
    fprintf(stderr, "%s: %s\n", program, line);
    return status;
}

// ---- what can be run -------------------------------------------------------------------------------------

static void list_kernels(void) {
    printf("%-20s %-16s %-16s %s\n", "step", "kernel", "types", "idea");
    for (int i = 0; i < attn_kernel_count(); i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        char types[40] = "";
        for (int t = 0; t < ATTN_DTYPES; t++)
            if (k->dtypes >> t & 1)
                snprintf(types + strlen(types), sizeof types - strlen(types), "%s%s", types[0] ? " " : "",
                         attn_dtype_name((enum attn_dtype)t));
        printf("%-20s %-16s %-16s %s\n", k->step, k->name, types, k->idea);
    }
}

static bool kernel_exists(const char *name) {
    for (int i = 0; i < attn_kernel_count(); i++)
        if (!strcmp(attn_kernel_at(i)->name, name)) return true;
    return false;
}

static enum attn_dtype first_dtype(const struct attn_kernel *k) {
    int t = 0;
    while (t < ATTN_DTYPES - 1 && !(k->dtypes >> t & 1)) t++;
    return (enum attn_dtype)t;
}

// ---- folders for --dump ----------------------------------------------------------------------------------

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
static bool dump_folder(const struct options *o, const struct attn_kernel *k, char *out, size_t size, char *why,
                        size_t why_size) {
    bool several = !o->kernel && attn_kernel_count() > 1;
    snprintf(out, size, several ? "%s/%s" : "%s", o->dump, k->name);
    return make_folder(o->dump, why, why_size) && make_folder(out, why, why_size);
}

// ---- one input through all kernels -----------------------------------------------------------------------

struct session {
    const struct options *options;
    struct machine machine;
    struct reporter reporter;
    int ran, wrong;
    char why[700];
};

static int run_kernel(struct session *s, const struct attn_kernel *k, const struct prepared *in) {
    char folder[1024];
    const char *dump = s->options->dump ? folder : NULL;
    if (dump && !dump_folder(s->options, k, folder, sizeof folder, s->why, sizeof s->why))
        return complain(EXIT_USAGE, s->why);
    int repeat = s->options->repeat ? s->options->repeat : s->machine.simulated ? 1 : 20;
    struct result r;
    report_progress("%s %s on %s ...", k->step, k->name, in->name);
    run_forward(k, in, repeat, dump, &r);
    if (r.outcome == NOT_SUPPORTED && s->options->kernel) {
        snprintf(s->why, sizeof s->why, "--kernel %s: %.600s", k->name, r.why);
        return complain(EXIT_USAGE, s->why);
    }
    report_result(&s->reporter, &r);
    s->ran += r.outcome == RAN_RIGHT || r.outcome == RAN_WRONG;
    s->wrong += r.outcome == RAN_WRONG;
    return EXIT_RIGHT;
}

static int run_input(struct session *s, const struct source *source) {
    const struct options *o = s->options;
    struct prepared in;
    bool ready = false;
    int status = EXIT_RIGHT;
    for (int i = 0; i < attn_kernel_count() && status == EXIT_RIGHT; i++) {
        const struct attn_kernel *k = attn_kernel_at(i);
        if (o->kernel && strcmp(k->name, o->kernel)) continue;
        struct attn_problem p = o->problem;
        if (!o->dtype_given) p.dtype = first_dtype(k);
        if (ready && in.problem.dtype != p.dtype) {    // the next kernel computes in another type
            prepared_free(&in);
            ready = false;
        }
        if (!ready) {
            report_progress("input %s and its right answer ...", source->load ? source->load : data_family_name(source->family));
            enum outcome outcome = prepare(&p, source, &in, s->why, sizeof s->why);
            ready = true;    // as far as it came: prepared_free takes it from there
            if (outcome != RAN_RIGHT) status = complain(outcome == NOT_SUPPORTED ? EXIT_USAGE : EXIT_CANNOT, s->why);
        }
        if (status == EXIT_RIGHT) status = run_kernel(s, k, &in);
    }
    if (ready) prepared_free(&in);
    return status;
}

static int run_all(struct session *s) {
    const struct options *o = s->options;
    int status = EXIT_RIGHT;
    if (o->data_given || !o->loads) status = run_input(s, &(struct source){NULL, o->data, o->seed});
    for (int i = 0; i < o->loads && status == EXIT_RIGHT; i++)
        status = run_input(s, &(struct source){o->load[i], o->data, o->seed});
    if (status != EXIT_RIGHT) return status;
    if (!s->ran) return complain(EXIT_CANNOT, "no kernel could run; the rows above say why");
    return s->wrong ? EXIT_WRONG : EXIT_RIGHT;
}

// ---- main --------------------------------------------------------------------------------------------------

static bool check_options(const struct options *o, char *why, size_t why_size) {
    if (o->kernel && !kernel_exists(o->kernel)) {
        snprintf(why, why_size, "--kernel %s: no such kernel here; --list shows them", o->kernel);
        return false;
    }
    return attn_problem_check(&o->problem, why, why_size) == 0;
}

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
    if (!options_parse(argc, argv, &options, s.why, sizeof s.why)) return complain(EXIT_USAGE, s.why);
    switch (options.action) {
    case ACTION_HELP: return options_help(program), EXIT_RIGHT;
    case ACTION_VERSION: return puts("flash-attention-tutorial 0.1"), EXIT_RIGHT;
    case ACTION_LIST: return list_kernels(), EXIT_RIGHT;
    case ACTION_RUN: break;
    }
    if (!check_options(&options, s.why, sizeof s.why)) return complain(EXIT_USAGE, s.why);

    if (!machine_open(&(struct machine_options){.fast = options.fast}, &s.machine, s.why, sizeof s.why))
        return complain(EXIT_CANNOT, s.why);
    if (options.sram > s.machine.smem) {
        snprintf(s.why, sizeof s.why, "--sram %zu: a block has at most %zu bytes on this machine", options.sram, s.machine.smem);
        return complain(EXIT_USAGE, s.why);
    }
    options.problem.smem = options.sram ? options.sram : s.machine.smem;
    options.problem.sm = s.machine.sm;
    options.problem.sm_count = s.machine.sm_count;
    bool one_kernel = options.kernel || attn_kernel_count() == 1;
    s.reporter = (struct reporter){.csv = options.csv, .detail = one_kernel, .machine = &s.machine, .command = command, .seed = options.seed};
    return run_all(&s);
}

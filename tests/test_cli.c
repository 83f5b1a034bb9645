// test_cli.c - the ladder program as its users meet it: command lines in, exit status, stdout and
// stderr out.
//
// The program is $LADDER, or $BUILD/sim/ladder, or build/sim/ladder; some tests take the program
// `variants` beside it, which is step00 with the kernels of variants.c. Each test gets a folder of
// its own, which it makes its working directory; so the command lines below read as one would type
// them. The shell runs them: quotes and redirections mean what they mean there.
#include "../common/npy.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT = 1 << 16, WHY = 512 };

// ---- running the program -----------------------------------------------------------------------

static char program[PATH_MAX], sources[PATH_MAX], folder[64];

static void limit(int resource, rlim_t most) {
    struct rlimit r = {most, most};
    cr_assert_eq(setrlimit(resource, &r), 0, "%s", strerror(errno));
}

// The tests start where the sources are; $LADDER or $BUILD may lead elsewhere.
static void find_program(const char *name, const char *elsewhere) {
    const char *build = getenv("BUILD");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/sim/%s", build ? build : "build", name);
    if (elsewhere) snprintf(path, sizeof path, "%s", elsewhere);
    cr_assert_not_null(realpath(path, program), "%s: %s; build it with: make build/sim/%s", path,
                       strerror(errno), name);
}

static void start(void) {
    cr_assert_not_null(getcwd(sources, sizeof sources));
    find_program("ladder", getenv("LADDER"));
    snprintf(folder, sizeof folder, "%s/test_cli_XXXXXX", P_tmpdir);
    cr_assert_not_null(mkdtemp(folder), "no scratch folder in %s", P_tmpdir);
    cr_assert_eq(chdir(folder), 0);
    // Seconds that one program may compute: one that never ends fails one test and no more. It is
    // not there to measure: the longest run takes 2 or 3, and more where others use the same cores.
    limit(RLIMIT_CPU, 120);
    limit(RLIMIT_CORE, 0);
    unsetenv("NO_COLOR");
    setenv("SIM_PATIENCE", "100000", 1); // on a busy machine a launch may take long
}

static void clean_up(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (chdir("/") || system(command)) cr_log_warn("%s is left behind", folder);
}

// Seconds by the clock, for a program that waits for ever; a busy machine must not reach them.
TestSuite(cli, .init = start, .fini = clean_up, .timeout = 900);

static void use_program(const char *name) {
    cr_assert_eq(chdir(sources), 0);
    find_program(name, NULL);
    cr_assert_eq(chdir(folder), 0);
}

static void use_variants(void) { use_program("variants"); }

struct output {
    int status; // as a shell gives it: 128 + the signal, if one ended the program
    char out[TEXT], err[TEXT];
};

// A missing file reads as an empty one: stdout may have gone elsewhere.
static void read_text(const char *path, char text[TEXT]) {
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(text, 1, TEXT - 1, file) : 0;
    cr_assert_lt(length, TEXT - 1, "more output than this test reads");
    text[length] = '\0';
    if (file) fclose(file);
}

// A redirection among the arguments comes after ours, and wins.
static struct output run_program(const char *path, const char *arguments) {
    static struct output o; // large
    char command[2 * PATH_MAX + 1024];
    snprintf(command, sizeof command, "exec '%s' </dev/null >.out 2>.err %s", path, arguments);
    int status = system(command);
    o.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    read_text(".out", o.out);
    read_text(".err", o.err);
    return o;
}

static struct output ladder(const char *arguments) { return run_program(program, arguments); }

static struct output ladder_ok(const char *arguments) {
    struct output o = ladder(arguments);
    cr_assert_eq(o.status, 0, "%s: exit status %d\n%s%s", arguments, o.status, o.out, o.err);
    cr_expect_str_empty(o.err, "%s: stderr: %s", arguments, o.err);
    return o;
}

// ---- what is refused ---------------------------------------------------------------------------

static bool is_one_line(const char *text) {
    const char *end = strchr(text, '\n');
    return end && end > text && end[1] == '\0';
}

static void expect_one_line(const char *arguments, const struct output *o, int status) {
    cr_expect_eq(o->status, status, "%s: exit status %d, not %d\n%s", arguments, o->status, status,
                 o->err);
    cr_expect(is_one_line(o->err), "%s: not one line on stderr: \"%s\"", arguments, o->err);
}

struct refusal {
    const char *arguments;
    int status;
    const char *words[3]; // that the line must hold; up to the first NULL
};

static void expect_refusal(const struct refusal *r) {
    struct output o = ladder(r->arguments);
    expect_one_line(r->arguments, &o, r->status);
    cr_expect_str_empty(o.out, "%s: printed on stdout too: %.80s", r->arguments, o.out);
    for (int i = 0; i < 3 && r->words[i]; i++) {
        cr_expect(strstr(o.err, r->words[i]), "%s: \"%s\" is missing in: %s", r->arguments,
                  r->words[i], o.err);
    }
}

static void expect_refusals(const struct refusal *r, size_t count) {
    for (size_t i = 0; i < count; i++) expect_refusal(&r[i]);
}

#define EXPECT_REFUSALS(table) expect_refusals(table, sizeof(table) / sizeof *(table))

Test(cli, unknown_words_are_refused) {
    static const struct refusal table[] = {
        {"--nonsuch", 2, {"--nonsuch", "unknown", "--help"}},
        {"-x", 2, {"-x", "unknown", "--help"}},
        {"-xn 4", 2, {"-x", "unknown", "--help"}},
        {"--causal=1", 2, {"--causal"}},
        {"--s 1", 2, {"--s"}}, // seqlen, scale, seed, sram
        {"stray", 2, {"stray", "--help"}},
        {"--causal true", 2, {"true"}},
        {"-n 4 -- stray", 2, {"stray"}},
        {"-n", 2, {"-n", "value"}},
        {"-n 4 --scale", 2, {"--scale", "value"}},
        {"--kernel", 2, {"--kernel", "value"}},
        {"--help stray", 2, {"stray"}},
    };
    EXPECT_REFUSALS(table);
}

Test(cli, numbers_out_of_range_are_refused) {
    static const struct refusal table[] = {
        {"-n 0", 2, {"--seqlen", "0", "16777216"}},
        {"-n -1", 2, {"--seqlen", "-1"}},
        {"-n 1e9", 2, {"--seqlen", "1e9", "whole number"}},
        {"-n 1000000000", 2, {"--seqlen", "1000000000", "16777216"}},
        {"-n 99999999999999999999", 2, {"--seqlen", "16777216"}},
        {"-n 4294967300", 2, {"--seqlen", "16777216"}}, // 4, in 32 bits
        {"-n ''", 2, {"--seqlen", "whole number"}},
        {"-n 12x", 2, {"--seqlen", "12x", "whole number"}},
        {"--seqlen-q 0", 2, {"--seqlen-q", "0"}},
        {"--seqlen-k 0", 2, {"--seqlen-k", "0"}},
        {"-b 0", 2, {"--batch", "0", "65535"}},
        {"-b 65536", 2, {"--batch", "65536", "65535"}},
        {"-H 0", 2, {"--heads", "0"}},
        {"-b 65535 -H 65535", 2, {"batch", "heads", "2147483647"}},
        {"-d 0", 2, {"--head-dim 0: must be a multiple of 8, 8 .. 256"}},
        {"-d 7", 2, {"--head-dim 7: must be a multiple of 8, 8 .. 256"}},
        {"-d 12", 2, {"--head-dim 12: must be a multiple of 8, 8 .. 256"}},
        {"-d 264", 2, {"--head-dim 264: must be a multiple of 8, 8 .. 256"}},
        {"-d -8", 2, {"--head-dim -8: must be a multiple of 8, 8 .. 256"}},
        {"-d 4294967304", 2, {"--head-dim 4294967304: must be"}}, // 8, in 32 bits
        {"-d 8x", 2, {"--head-dim 8x: not a whole number"}},
        {"-H 4 --kv-heads 3", 2, {"--heads 4: must be a multiple of --kv-heads 3"}},
        {"-H 2 --kv-heads 4", 2, {"--heads 2: must be a multiple of --kv-heads 4"}},
        {"--kv-heads 0", 2, {"--kv-heads", "0"}},
        {"--repeat 0", 2, {"--repeat", "0"}},
        {"--repeat x", 2, {"--repeat", "x"}},
        {"--seed -1", 2, {"--seed", "-1"}},
        {"--seed abc", 2, {"--seed", "abc"}},
        {"--seed 18446744073709551616", 2, {"--seed", "18446744073709551615"}},
        {"--scale 0", 2, {"--scale", "above 0"}},
        {"--scale -1", 2, {"--scale", "-1", "above 0"}},
        {"--scale nan", 2, {"--scale", "nan", "finite"}},
        {"--scale inf", 2, {"--scale", "inf", "finite"}},
        {"--scale 1e39", 2, {"--scale", "1e39", "finite"}},
        {"--scale abc", 2, {"--scale", "abc", "not a number"}},
        {"--scale 1x", 2, {"--scale", "1x", "not a number"}},
    };
    EXPECT_REFUSALS(table);
}

// However it is written: the limit is the machine's, and the message names it.
Test(cli, sram_out_of_range_is_refused) {
    static const char *const too_much[] = {"0",        "-1",           "-5K", "228K",
                                           "300k",     "232449",       "64M", "1g",
                                           "1048576K", "17179869184G", "-1G", "1000m"};
    char arguments[64], line[200];
    for (size_t i = 0; i < sizeof too_much / sizeof *too_much; i++) {
        snprintf(arguments, sizeof arguments, "--sram %s", too_much[i]);
        snprintf(line, sizeof line,
                 "--sram %s: must be 1 .. 232448 bytes (227 KB), the most that a block has on this "
                 "machine\n",
                 too_much[i]);
        expect_refusal(&(struct refusal){arguments, 2, {line}});
    }
    static const char *const no_number[] = {"64KK", "64KB", "abc", "K", "''", "1.5K", "0x10", "T"};
    for (size_t i = 0; i < sizeof no_number / sizeof *no_number; i++) {
        snprintf(arguments, sizeof arguments, "--sram %s", no_number[i]);
        expect_refusal(&(struct refusal){arguments, 2, {"not a number of bytes; write 65536 or"}});
    }
}

Test(cli, names_that_mean_nothing_are_refused) {
    static const struct refusal table[] = {
        {"--dtype fp64", 2, {"--dtype", "fp64", "bf16"}},
        {"--kernel nonsuch", 2, {"--kernel", "nonsuch", "--list"}},
        {"--kernel ''", 2, {"--kernel", "--list"}},
        {"--pass sideways", 2, {"--pass", "sideways", "backward"}},
        {"--fp8-scale row", 2, {"--fp8-scale", "row", "tensor, head or block"}},
        {"--fp8-accumulator 22bit", 2, {"--fp8-accumulator", "22bit", "exact or 14bit"}},
        {"--kernel naive --rotate", 2, {"--kernel naive", "fp32", "--rotate is for FP8"}},
        {"--kernel naive --fp8-scale block", 2, {"naive", "--fp8-scale is for FP8"}},
        {"--rotate -d 96", 2, {"--head-dim 96: must be a power of two with --rotate"}},
        {"--data nonsense", 2, {"--data", "nonsense", "one-hot"}},
        {"--format xml", 2, {"--format", "xml", "csv"}},
        {"--kernel naive --dtype bf16", 2, {"naive", "bf16"}},
        {"--data one-hot --seqlen-k 70000 --seqlen-q 1 -d 8",
         2,
         {"--data one-hot: tells 65536 keys apart with --head-dim 8, not 70000;"}}, // 16^4
    };
    EXPECT_REFUSALS(table);
}

// Not the machine's fault: no other one could do it.
Test(cli, inputs_that_overflow_are_refused) {
    expect_refusal(&(struct refusal){"--scale 3e38 -n 4 -d 8", 2, {"overflow", "scale"}});
}

// Minutes of arithmetic must not come before an answer that needs none.
Test(cli, a_named_kernel_refuses_a_type_at_once) {
    expect_refusal(&(struct refusal){"--kernel naive --dtype bf16 -n 60000 -d 8", 2, {"bf16"}});
}

// A value that holds a line break is printed so that the message stays one line.
Test(cli, a_message_is_one_line_whatever_the_value) {
    static const struct refusal table[] = {
        {"--kernel 'two\nlines'", 2, {"two"}},
        {"'two\nwords'", 2, {"two"}},
        {"--load 'no\nfolder'", 2, {"folder"}},
    };
    EXPECT_REFUSALS(table);
}

// The test may run as root, which may write to every folder: below a file there is none.
Test(cli, a_folder_that_cannot_be_written_is_refused) {
    static const struct refusal table[] = {
        {"-n 4 -d 8 --dump file", 2, {"--dump", "file"}},
        {"-n 4 -d 8 --dump file/below", 2, {"--dump", "file/below"}},
        {"-n 4 -d 8 --dump missing/below", 2, {"--dump", "missing/below"}},
        {"-n 4 -d 8 --dump ''", 2, {"--dump"}},
        {"-n 4 -d 8 --dump taken --kernel naive", 2, {"taken/O.npy"}},
        {"-n 4 -d 8 --dump file --load missing --data normal", 2, {"--dump", "one input"}},
    };
    fclose(fopen("file", "w"));
    mkdir("taken", 0777);
    mkdir("taken/O.npy", 0777); // a folder where a file should go
    EXPECT_REFUSALS(table);
}

Test(cli, output_that_cannot_be_written_is_an_error) {
    struct output o = ladder("-n 4 -d 8 >/dev/full");
    cr_expect_neq(o.status, 0, "the rows were lost, and the exit status is 0");
    cr_expect(is_one_line(o.err), "\"%s\"", o.err);
}

// ---- files to load -----------------------------------------------------------------------------

static void in_folder(const char *dir, const char *name, char path[256]) {
    mkdir(dir, 0777);
    snprintf(path, 256, "%s/%s.npy", dir, name);
}

// Small numbers, the same in every run; `odd_one` is the last of them.
static void write_tensor(const char *dir, const char *name, int dims, const uint64_t *shape,
                         float odd_one) {
    char path[256], why[WHY] = "";
    uint64_t count = 1;
    for (int i = 0; i < dims; i++) count *= shape[i];
    float *x = malloc((count + 1) * sizeof *x);
    for (uint64_t i = 0; i < count; i++) x[i] = (float)(i * 7 % 16) / 8 - 1;
    if (count) x[count - 1] = odd_one;
    in_folder(dir, name, path);
    cr_assert(npy_write(path, dims, shape, x, why, sizeof why), "%s", why);
    free(x);
}

// [1, heads, 4, d] for Q, [1, kv_heads, 5, d] for K and V
static void write_inputs(const char *dir, uint64_t heads, uint64_t kv_heads, uint64_t d) {
    const uint64_t q[4] = {1, heads, 4, d}, kv[4] = {1, kv_heads, 5, d};
    write_tensor(dir, "Q", 4, q, 0.5f);
    write_tensor(dir, "K", 4, kv, 0.5f);
    write_tensor(dir, "V", 4, kv, 0.5f);
}

// Puts `with`, of the same length, in the place of `what` in the file's header.
static void edit_header(const char *dir, const char *name, const char *what, const char *with) {
    char path[256], header[128];
    in_folder(dir, name, path);
    FILE *file = fopen(path, "r+b");
    cr_assert(file && fread(header, 1, sizeof header, file) == sizeof header);
    char *at = memmem(header, sizeof header, what, strlen(what));
    cr_assert_not_null(at, "no %s in the header of %s", what, path);
    memcpy(at, with, strlen(with));
    rewind(file);
    fwrite(header, 1, sizeof header, file);
    fclose(file);
}

static void write_bad_folders(void) {
    const uint64_t kv[4] = {1, 2, 5, 8}, more_keys[4] = {1, 2, 6, 8}, two[4] = {2, 2, 5, 8};
    static const char *const copies[] = {"malformed", "fortran", "integers", "truncated", "nan",
                                         "infinity",  "keys",    "batch",    "flat",      "no_V"};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) write_inputs(copies[i], 2, 2, 8);
    fclose(fopen("malformed/K.npy", "w"));
    edit_header("fortran", "Q", "False", "True ");
    edit_header("integers", "Q", "<f4", "<i4");
    cr_assert_eq(truncate("truncated/V.npy", 128 + 4 * 80 - 1), 0);
    write_tensor("nan", "V", 4, kv, NAN);
    write_tensor("infinity", "K", 4, kv, -INFINITY);
    write_tensor("keys", "V", 4, more_keys, 0);
    write_tensor("batch", "K", 4, two, 0);
    write_tensor("batch", "V", 4, two, 0);
    write_tensor("flat", "Q", 3, kv, 0);
    cr_assert_eq(unlink("no_V/V.npy"), 0);
}

Test(cli, bad_files_are_refused) {
    static const struct refusal table[] = {
        {"--load missing", 2, {"missing/Q.npy", "No such file"}},
        {"--load no_V", 2, {"no_V/V.npy", "No such file"}},
        {"--load no_V/Q.npy", 2, {"no_V/Q.npy", "Not a directory"}},
        {"--load malformed", 2, {"malformed/K.npy", "not a .npy file"}},
        {"--load truncated", 2, {"truncated/V.npy", "truncated"}},
        {"--load fortran", 2, {"fortran/Q.npy", "Fortran order", "ascontiguousarray"}},
        {"--load integers", 2, {"integers/Q.npy", "<i4", "float32"}},
        {"--load nan", 2, {"nan/V.npy", "79", "not finite"}},
        {"--load infinity", 2, {"infinity/K.npy", "79", "not finite"}},
        {"--load keys", 2, {"[1, 2, 5, 8]", "[1, 2, 6, 8]", "same shape"}},
        {"--load batch", 2, {"[1, 2, 4, 8]", "[2, 2, 5, 8]", "batch"}},
        {"--load flat", 2, {"flat/Q.npy", "3 dimensions"}},
        {"--load batch -n 4", 2, {"--load", "-n"}},
        {"-d 8 --load batch", 2, {"--load", "-d"}},
    };
    write_bad_folders();
    EXPECT_REFUSALS(table);
}

// Files meet the same limits as the command line.
Test(cli, files_of_a_shape_that_is_not_defined_are_refused) {
    static const struct refusal table[] = {
        {"--load d7", 2, {"--load d7: --head-dim 7: must be a multiple of 8, 8 .. 256"}},
        {"--load d12", 2, {"--load d12: --head-dim 12: must be"}},
        {"--load d264", 2, {"--load d264: --head-dim 264: must be"}},
        {"--load kv3", 2, {"--load kv3: --heads 4: must be a multiple of --kv-heads 3"}},
        {"--load kv4", 2, {"--load kv4: --heads 2: must be a multiple of --kv-heads 4"}},
    };
    write_inputs("d7", 2, 2, 7);
    write_inputs("d12", 2, 2, 12);
    write_inputs("d264", 2, 2, 264);
    write_inputs("kv3", 4, 3, 8);
    write_inputs("kv4", 2, 4, 8);
    EXPECT_REFUSALS(table);
}

// ---- what the machine cannot do ----------------------------------------------------------------

// S and P would take 16 TB each. The answer needs no arithmetic, so it comes before any.
Test(cli, no_memory_for_the_workspace) {
    struct output o = ladder("--kernel naive -H 1 -n 2000000 -d 8");
    expect_one_line("-n 2000000", &o, 3);
    cr_expect(strstr(o.out, "memory") || strstr(o.err, "memory"), "%s%s", o.out, o.err);
}

Test(cli, no_memory_for_the_inputs) {
#ifdef SANITIZED
    cr_skip_test("AddressSanitizer reserves terabytes of addresses when the program starts");
#endif
    limit(RLIMIT_AS, 2000000000); // 2 GB: less than Q alone
    struct output o = ladder("--kernel naive -n 2000000 -d 256");
    expect_one_line("-n 2000000 -d 256", &o, 3);
    cr_expect(strstr(o.out, "memory") || strstr(o.err, "memory"), "%s%s", o.out, o.err);
}

// ---- --help, --version, --list -----------------------------------------------------------------

Test(cli, help_lists_every_option) {
    static const char *const options[] = {
        "-b, --batch", "-H, --heads", "--kv-heads",     "-n, --seqlen",
        "--seqlen-q",  "--seqlen-k",  "-d, --head-dim", "--causal",
        "--scale",     "--dtype",     "--kernel",       "--pass",
        "--data",      "--seed",      "--sram",         "--repeat",
        "--fast",      "--format",    "--profile",      "--timeline",
        "--dump",      "--load",      "--list",         "--help",
        "--version",   "--fp8-scale", "--rotate",       "--fp8-accumulator",
    };
    struct output o = ladder_ok("--help");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        cr_expect(strstr(o.out, options[i]), "--help does not list %s", options[i]);
    struct output h = ladder_ok("-h");
    cr_expect_str_eq(h.out, ladder_ok("--help").out);
}

Test(cli, version_is_one_line) {
    struct output o = ladder_ok("--version");
    cr_expect(is_one_line(o.out), "%s", o.out);
    cr_expect(strpbrk(o.out, "0123456789"), "no number in %s", o.out);
}

enum { MAX_KERNELS = 64, NAME = 64 };

struct list {
    int kernels, rungs;
    char name[MAX_KERNELS][NAME];
    char ladder[MAX_KERNELS][NAME];
    char text[TEXT];
};

// --list: a heading, then a line for each kernel, with its step's folder, its name and more. Those
// that run without --kernel stand in `ladder`, too.
static const struct list *list_kernels(void) {
    static struct list list;
    struct output o = ladder_ok("--list");
    list = (struct list){0};
    memcpy(list.text, o.out, TEXT);
    char *rest, *line = strtok_r(o.out, "\n", &rest);
    cr_assert(line && !strncmp(line, "step ", 5), "the heading of --list: %s", line);
    while ((line = strtok_r(NULL, "\n", &rest))) {
        cr_assert_lt(list.kernels, MAX_KERNELS);
        cr_assert_eq(sscanf(line, "step%*s %63s", list.name[list.kernels]), 1, "%s", line);
        if (!strstr(line, " variant: ")) strcpy(list.ladder[list.rungs++], list.name[list.kernels]);
        list.kernels++;
    }
    return &list;
}

Test(cli, list_shows_the_kernels) {
    const struct list *list = list_kernels();
    char arguments[NAME + 64];
    cr_assert_geq(list->kernels, 1);
    cr_expect_str_eq(list->name[0], "naive");
    cr_expect(strstr(list->text, "fp32"));
    for (int i = 0; i < list->kernels; i++) {
        snprintf(arguments, sizeof arguments, "--kernel %s -H 1 -n 4", list->name[i]);
        cr_expect(strstr(ladder_ok(arguments).out, list->name[i]));
    }
}

// ---- several kernels, and variants -------------------------------------------------------------

Test(cli, list_marks_the_variants) {
    use_variants();
    const struct list *list = list_kernels();
    cr_expect_eq(list->kernels, 6);
    cr_expect_eq(list->rungs, 1);
    cr_expect_str_eq(list->ladder[0], "naive");
    cr_expect_str_eq(list->name[1], "naive-described"); // by rung, not as registered
    cr_expect_str_eq(list->name[2], "naive-64");
    cr_expect_str_eq(list->name[3], "fp8-on-host");
    cr_expect_str_eq(list->name[4], "naive-unmasked");
    cr_expect_str_eq(list->name[5], "naive-newer");
    cr_expect(strstr(list->text, " variant: says how"), "%s", list->text);
}

// The names in the rows of a table, with commas between them.
static const char *rows_of(const struct output *o) {
    static char names[TEXT];
    names[0] = '\0';
    for (const char *line = strstr(o->out, "\nstep0"); line; line = strstr(line + 1, "\nstep0")) {
        char name[NAME];
        cr_assert_eq(sscanf(line, "\nstep%*s %63s", name), 1);
        sprintf(names + strlen(names), "%s%s", names[0] ? "," : "", name);
    }
    return names;
}

static void expect_rows(const char *arguments, const char *names, bool details) {
    struct output o = ladder_ok(arguments);
    cr_expect_str_eq(rows_of(&o), names, "%s: rows %s, not %s", arguments, rows_of(&o), names);
    cr_expect_eq(strstr(o.out, "\n  launch 1") != NULL, details, "%s: details", arguments);
}

// A buffer that a pass finds full of zeros and does not leave so: the next launch would go wrong.
Test(cli, zeros_must_be_left) {
    use_variants();
    struct output o = ladder("--kernel naive-64 -n 13 -d 64");
    cr_expect_eq(o.status, 1, "%s", o.out);
    cr_expect(strstr(o.out, "the pass has not left zeros there"), "%s", o.out);
    ladder_ok("--kernel naive-64 -n 12 -d 64");
    // Of P all but the last rows are 0: 1008 queries see no key.
    o = ladder("--kernel naive-64 -H 1 --seqlen-q 1013 --seqlen-k 5 -d 64 --causal");
    cr_expect_eq(o.status, 1, "%s", o.out);
    cr_expect(strstr(o.out, "P: the pass has not left zeros there"), "%s", o.out);
}

// The default leaves variants out, and what is left here is one kernel, so it is explained.
Test(cli, a_variant_runs_when_it_is_named) {
    use_variants();
    expect_rows("-n 4", "naive", true);
    expect_rows("-n 4 --kernel all", "naive", true);
    expect_rows("-n 4 --kernel naive-64", "naive-64", true);
    expect_rows("-n 4 --kernel naive-described", "naive-described", true);
}

Test(cli, several_kernels_run_once_each_and_in_the_order_of_the_list) {
    use_variants();
    expect_rows("-n 4 --kernel naive,naive-64", "naive,naive-64", false);
    expect_rows("-n 4 --kernel naive-64,naive-described,naive", "naive,naive-described,naive-64",
                false);
    expect_rows("-n 4 --kernel naive-64,naive,naive-64", "naive,naive-64", false);
    expect_rows("-n 4 --kernel naive,naive", "naive", true);
    expect_rows("-n 4 --kernel naive --kernel naive-64", "naive-64", true); // the last one counts
}

Test(cli, each_name_of_several_must_be_right) {
    static const struct refusal table[] = {
        {"--kernel naive,nonsuch", 2, {"--kernel nonsuch:", "--list"}},
        {"--kernel nonsuch,naive", 2, {"--kernel nonsuch:", "--list"}},
        {"--kernel naive,naive-", 2, {"--kernel naive-:", "--list"}},
        {"--kernel naive,naiv", 2, {"--kernel naiv:", "--list"}},
        {"--kernel naive,", 2, {"--kernel :", "--list"}},
        {"--kernel ,naive", 2, {"--kernel :", "--list"}},
        {"--kernel naive,all", 2, {"--kernel all:", "--list"}},
    };
    use_variants();
    EXPECT_REFUSALS(table);
}

// What is refused of a named kernel is so of each of several; but the others run.
Test(cli, a_shape_that_one_of_several_does_not_take) {
    use_variants();
    const char *arguments = "-n 4 -d 32 --kernel naive-64,naive-described,naive";
    struct output o = ladder(arguments);
    expect_one_line(arguments, &o, 2);
    cr_expect(strstr(o.err, "--kernel naive-64: takes d = 64 alone"), "%s", o.err);
    cr_expect(strstr(o.out, "not run: takes d = 64 alone"), "%s", o.out);
    cr_expect_str_eq(rows_of(&o), "naive,naive-described,naive-64");
    arguments = "-n 4 --dtype fp16 --kernel naive-64,naive-described"; // and if none takes it
    o = ladder(arguments);
    expect_one_line(arguments, &o, 2);
    cr_expect_str_eq(rows_of(&o), "naive-described,naive-64");
    ladder_ok("-n 4 -d 32 --kernel naive,naive-described");
}

// The line on stderr, and the exit status, by the rule of --help.
static void expect_reason(const char *arguments, int status, const char *line) {
    struct output o = ladder(arguments);
    expect_one_line(arguments, &o, status);
    cr_expect(strstr(o.err, line), "%s: \"%s\" is missing in: %s", arguments, line, o.err);
}

#define CANNOT "needs compute capability 20.0 or newer, this GPU has 9.0; DEVICE=sim runs it"

// The machine is asked for before the shape: with d = 64 the kernel would not run either.
Test(cli, a_kernel_of_another_machine) {
    use_variants();
    expect_reason("-n 4 -d 32 --kernel naive-newer", 3,
                  "variants: --kernel naive-newer: " CANNOT "\n");
    expect_reason("-n 4 --kernel naive-newer", 3, "variants: --kernel naive-newer: " CANNOT "\n");
    cr_expect(strstr(ladder("-n 4 --kernel naive-newer").out, "not run: " CANNOT "\n"));
    expect_reason("-n 4 --kernel naive-newer --dtype fp16", 2,
                  "naive-newer: does not compute in fp16");
}

Test(cli, a_mix_of_reasons_has_one_exit_status) {
    use_variants();
    expect_reason("-n 4 --kernel naive,naive-newer", 3, "--kernel naive-newer: " CANNOT "\n");
    expect_reason(
        "-n 4 -d 32 --kernel naive,naive-64,naive-newer", 2,
        "--kernel naive-64: takes d = 64 alone; and 1 more did not run, the rows say why\n");
    expect_reason("-n 4 --pass both --kernel naive-newer,naive-64", 2,
                  "--kernel naive-64: has no backward pass; and 2 more did not run");
    expect_reason("-n 4 -d 8 --kernel naive-newer,naive-64,fp8-on-host --dtype fp32", 2,
                  "--kernel naive-64: takes d = 64 alone; and 2 more did not run");
    write_inputs("one", 2, 2, 8);
    expect_reason("--load one --data normal -n 4 --kernel naive-newer", 3,
                  CANNOT "; and 1 more did");
    expect_reason("-n 4 --dtype fp16", 2, "no kernel could run"); // no other machine helps
    expect_reason("-H 1 -n 2000000 -d 8", 3, "no kernel could run");
}

#undef CANNOT

Test(cli, too_little_shared_memory) {
    if (!strstr(list_kernels()->text, " fused ")) cr_skip_test("another program");
    static const char line[] = "a block needs at least 9056 bytes of shared memory at d = 64, and "
                               "--sram gives 8192; give a larger --sram, or try a smaller -d\n";
    expect_reason("-n 4 --kernel fused --sram 8K", 2, line);
    struct output o = ladder_ok("-n 4 -H 1 --sram 8K"); // of all kernels some run
    cr_expect(strstr(o.out, line), "%s", o.out);
}

Test(cli, help_states_the_rule_of_the_exit_status) {
    struct output o = ladder_ok("--help");
    cr_expect(strstr(o.out,
                     "\nA kernel that cannot run says why in its row. If --kernel names it, or"
                     " if none can run, the status\nis 2, or 3 where another machine could "
                     "run it.\n"),
              "%s", o.out);
}

Test(cli, dump_of_several_named_kernels) {
    use_variants();
    ladder_ok("-n 4 --kernel naive-64,naive --dump several");
    ladder_ok("-n 4 --kernel naive-64 --dump one");
    ladder_ok("-n 4 --dump default");
    static const char *const files[] = {"several/naive/O.npy", "several/naive-64/O.npy",
                                        "one/O.npy", "default/O.npy"};
    for (int i = 0; i < 4; i++)
        cr_expect_eq(access(files[i], R_OK), 0, "%s: %s", files[i], strerror(errno));
    cr_expect_neq(access("several/O.npy", F_OK), 0);
    cr_expect_neq(access("several/naive-described", F_OK), 0);
}

// ---- CSV ---------------------------------------------------------------------------------------

// A contract: scripts, and the tables of the chapters, read these columns by name.
static const char heading[] =
    "date,device,driver,step,rung,kernel,pass,input,seed,dtype,"
    "batch,heads,kv_heads,seqlen_q,seqlen_k,head_dim,causal,scale,smem_limit,"
    "result,why,error_O,of_bar_O,error_LSE,of_bar_LSE,"
    "model_load,model_store,model_atomic,model_tma_load,model_tma_store,"
    "asked_load,asked_store,asked_atomic,asked_tma_load,asked_tma_store,"
    "L2_read,L2_write,DRAM_read,DRAM_write,distinct_read,distinct_write,"
    "compulsory,workspace,smem_per_block,bank_conflicts,launches,"
    "time_us,TFLOPs,peak_TFLOPs,peak_GBs,launch_us,command,"
    "error_dQ,of_bar_dQ,error_dK,of_bar_dK,error_dV,of_bar_dV,"
    "tiles,NxN_passes,rmse_O,rmse_LSE,base_rmse_O,fp8_scale,rotate,fp8_sums";

// Of --profile.
static const char profile_heading[] =
    "step,kernel,pass,input,launch,file,line,memory,kind,name,requests,lanes,"
    "sectors,ideal_sectors,used_bytes,wavefronts,ideal_wavefronts,source";

enum { COLUMNS = 66, PROFILE_COLUMNS = 18, MAX_ROWS = 16 * MAX_KERNELS };

struct csv {
    struct output output;
    int rows, columns;
    char *field[MAX_ROWS + 1][COLUMNS]; // the heading is row 0
};

// Takes one field off *at, without its quotes, and tells whether it was the last of its line.
static bool take_field(char **at, char **field) {
    char *to = *field = *at;
    bool quoted = **at == '"';
    if (quoted) ++*at;
    for (; **at && (quoted || (**at != ',' && **at != '\n')); ++*at) {
        if (quoted && **at == '"' && *++*at != '"') break; // "" stands for one quote
        *to++ = **at;
    }
    bool last = **at != ',';
    if (**at) ++*at;
    *to = '\0';
    return last;
}

static void take_row(struct csv *c, char **at, const char *arguments) {
    cr_assert_leq(c->rows, MAX_ROWS);
    int fields = 0;
    for (bool last = false; !last; fields++) {
        cr_assert_lt(fields, c->columns, "%s: row %d has too many fields", arguments, c->rows);
        last = take_field(at, &c->field[c->rows][fields]);
    }
    cr_assert_eq(fields, c->columns, "%s: row %d has %d fields", arguments, c->rows, fields);
}

static void parse_rows(struct csv *c, const struct output *o, const char *first_line,
                       const char *arguments) {
    c->output = *o;
    c->rows = 0;
    cr_assert(!strncmp(o->out, first_line, strlen(first_line)) &&
                  o->out[strlen(first_line)] == '\n',
              "%s: the columns are not those of the contract: %s", arguments, o->out);
    for (char *at = c->output.out; *at; c->rows++) take_row(c, &at, arguments);
    cr_assert_geq(c->rows, 2, "%s: no rows", arguments);
    c->rows--; // from here on without the heading: rows 1 .. c->rows
}

static struct csv *parse_csv(const struct output *o, const char *arguments) {
    static struct csv c = {.columns = COLUMNS};
    parse_rows(&c, o, heading, arguments);
    return &c;
}

static struct csv *ladder_csv(const char *arguments) {
    char with_format[1024];
    snprintf(with_format, sizeof with_format, "--format csv %s", arguments);
    struct output o = ladder_ok(with_format);
    return parse_csv(&o, arguments);
}

static const char *cell(const struct csv *c, int row, const char *column) {
    for (int i = 0; i < c->columns; i++)
        if (!strcmp(c->field[0][i], column)) return c->field[row][i];
    cr_assert_fail("the test asks for a column %s", column);
    return "";
}

static void expect_cell(const struct csv *c, int row, const char *column, const char *value) {
    cr_expect_str_eq(cell(c, row, column), value, "row %d: %s is \"%s\", not \"%s\"", row, column,
                     cell(c, row, column), value);
}

static void expect_cells(const struct csv *c, const char *column, const char *value) {
    for (int row = 1; row <= c->rows; row++) expect_cell(c, row, column, value);
}

// "batch=1 why= seqlen_q=33": several cells of one row.
static void expect_values(const struct csv *c, int row, const char *values) {
    char text[512], *rest;
    snprintf(text, sizeof text, "%s", values);
    for (char *at = strtok_r(text, " ", &rest); at; at = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(at, '=');
        *value++ = '\0';
        expect_cell(c, row, at, value);
    }
}

static void expect_asked_is_model(const struct csv *c, int row) {
    static const char *const kinds[] = {"load", "store", "atomic", "tma_load", "tma_store"};
    for (int i = 0; i < 5; i++) {
        char model[32], asked[32];
        snprintf(model, sizeof model, "model_%s", kinds[i]);
        snprintf(asked, sizeof asked, "asked_%s", kinds[i]);
        expect_cell(c, row, asked, cell(c, row, model));
    }
    cr_expect_gt(atoll(cell(c, row, "asked_load")) + atoll(cell(c, row, "asked_tma_load")), 0);
    cr_expect_gt(atoll(cell(c, row, "asked_store")) + atoll(cell(c, row, "asked_tma_store")), 0);
}

static void expect_right_row(const struct csv *c, int row) {
    expect_values(c, row, "result=ok why= time_us= DRAM_read= L2_read="); // a simulator has no L2
    expect_asked_is_model(c, row);
    cr_expect(atof(cell(c, row, "of_bar_O")) <= 1);
    cr_expect(atof(cell(c, row, "of_bar_LSE")) <= 1);
    cr_expect_gt(atoi(cell(c, row, "launches")), 0);
}

// The naive kernel takes every shape; another may refuse this one, and says why.
Test(cli, csv_has_the_documented_columns) {
    const struct list *list = list_kernels();
    struct csv *c = ladder_csv("-H 2 --kv-heads 1 --seqlen-q 33 --seqlen-k 40 --causal --seed 7");
    cr_assert_eq(c->rows, list->rungs, "one row a kernel that is not a variant");
    for (int row = 1; row <= c->rows; row++) {
        expect_cell(c, row, "kernel", list->ladder[row - 1]);
        expect_cell(c, row, "device", "SIMT simulator");
        expect_values(c, row,
                      "pass=forward input=normal seed=7 batch=1 heads=2 kv_heads=1 "
                      "seqlen_q=33 seqlen_k=40 head_dim=64 causal=1 scale=0.125 "
                      "smem_limit=232448");
        if (row > 1 && !strcmp(cell(c, row, "result"), "unsupported"))
            cr_expect_str_not_empty(cell(c, row, "why"));
        else
            expect_right_row(c, row);
    }
}

Test(cli, csv_quotes_what_needs_quotes) {
    write_inputs("a \"b\", c", 2, 1, 8);
    struct csv *c = ladder_csv("--load 'a \"b\", c' --kernel naive");
    expect_cell(c, 1, "input", "a \"b\", c");
    cr_expect(strstr(cell(c, 1, "command"), "--load a \"b\", c --kernel naive"));
}

// Outputs that are right, by other bytes than the model says, are not called wrong; the backward
// goes on from them.
Test(cli, bytes_that_the_model_does_not_say_have_a_word_of_their_own) {
    use_variants();
    struct output o = ladder("--kernel naive-described -n 13 -d 64");
    cr_expect_eq(o.status, 1, "%s", o.out);
    cr_expect(strstr(o.out, " bytes\n    the outputs are right, but it asked for "), "%s", o.out);
    cr_expect(strstr(o.out, "\n  O: largest error "), "%s", o.out);
    cr_expect_not(strstr(o.out, "WRONG"), "%s", o.out);
    o = ladder("--kernel naive-described -n 13 -d 64 --format csv");
    cr_expect_eq(o.status, 1, "%s", o.out);
    expect_cell(parse_csv(&o, "-n 13"), 1, "result", "bytes");
    cr_expect(strstr(ladder_ok("--help").out, "bytes, right outputs"));
}

// To stderr, so that a table and CSV stay as they are.
Test(cli, a_launch_that_takes_long_says_how_far_it_is) {
    setenv("SIM_PATIENCE", "0.02", 1);
    struct output o = ladder("--kernel naive -n 500 --format csv");
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.err, "still in kernel scores after "), "\"%s\"", o.err);
    cr_expect(strstr(o.err, " blocks done\n"), "\"%s\"", o.err);
    expect_cell(parse_csv(&o, "-n 500"), 1, "result", "ok");
}

// A log that cannot be written, or not whole.
Test(cli, a_timeline_that_cannot_be_written) {
    struct output o = ladder("--kernel naive -n 4 --timeline /nowhere/at/all");
    cr_expect_eq(o.status, 2, "%s", o.err);
    cr_expect(strstr(o.err, "--timeline /nowhere/at/all: No such file or directory; give a file"));
    o = ladder("--kernel naive -n 4 --timeline /dev/full");
    cr_expect_eq(o.status, 3, "%s", o.err);
    cr_expect(strstr(o.err, "is the disk full?"), "%s", o.err);
}

// ---- tests/check.sh ----------------------------------------------------------------------------

static struct output check(const char *arguments) {
    char script[PATH_MAX + 64], with_program[PATH_MAX + 256];
    snprintf(script, sizeof script, "%s/tests/check.sh", sources);
    snprintf(with_program, sizeof with_program, "'%s' %s", program, arguments);
    return run_program(script, with_program);
}

static void expect_end(const struct output *o, const char *end, int status) {
    size_t length = strlen(o->out), n = strlen(end);
    cr_expect(length >= n && !strcmp(o->out + length - n, end), "not at the end, \"%s\": %s", end,
              o->out);
    cr_expect_eq(o->status, status, "exit status %d, not %d: %s%s", o->status, status, o->out,
                 o->err);
}

// A program of ours in place of a step: a script.
static struct output check_script(const char *body) {
    char path[] = "script", script[PATH_MAX + 64];
    FILE *file = fopen(path, "w");
    cr_assert(file && fprintf(file, "#!/bin/sh\n%s\n", body) > 0 && !fclose(file));
    cr_assert_eq(chmod(path, 0755), 0);
    snprintf(script, sizeof script, "%s/tests/check.sh", sources);
    return run_program(script, "./script");
}

// One shape is a row that is right, and then what the program is to do in the second.
static void expect_second_shape(const char *does, const char *line, int status) {
    char body[600];
    snprintf(body, sizeof body,
             "echo kernel,pass,result,why\n"
             "case \"$*\" in *'-H 1 -n 1') echo naive,forward,ok,;; *) %s;; esac",
             does);
    struct output o = check_script(body);
    cr_expect_eq(o.status, status, "%s: status %d: %s%s", does, o.status, o.out, o.err);
    cr_expect(strstr(o.out, line), "%s: \"%s\" is missing in: %s", does, line, o.out);
}

Test(cli, check_takes_no_failure_for_right) {
    expect_second_shape("echo naive,forward,ok,", "script: 10 of 10 ok", 0);
    expect_second_shape("echo naive,forward,bytes,other; exit 1", "script: 1 of 10 ok", 1);
    expect_second_shape("echo naive,forward,wrong,off; exit 1", "script: 1 of 10 ok", 1);
    expect_second_shape("kill -SEGV $$", "ended by signal 11", 1);
    expect_second_shape("exit 124", "script: 1 of 2 ok", 1); // as timeout does
    expect_second_shape("echo 'x: --kernel naive: takes d = 64 alone' >&2; exit 2",
                        "script: 1 of 1 ok, 9 not for this kernel", 0);
}

// Nothing to check with: a line, and 2.
Test(cli, check_refuses_what_is_no_program) {
    char script[PATH_MAX + 64];
    snprintf(script, sizeof script, "%s/tests/check.sh", sources);
    cr_expect_eq(run_program(script, "/tmp").status, 2);
    cr_expect_eq(run_program(script, "./nonsuch").status, 2);
    cr_expect_eq(check_script("echo 'script: --foo: unknown option' >&2; exit 2").status, 2);
}

Test(cli, check_passes_a_right_kernel) {
    use_variants();
    struct output o = check("");
    expect_end(&o, "\nvariants: 10 of 10 ok\n", 0);
    cr_expect(strstr(o.out, "ok      -H 1 -n 1: 1 forward, 1 backward\n"), "%s", o.out);
    cr_expect_not(strstr(o.out, "WRONG"), "%s", o.out);
}

// --sram and the shapes of other steps come with their programs.
Test(cli, check_knows_the_step) {
    use_program("step03");
    struct output o = check("");
    expect_end(&o, "\nstep03: 11 of 11 ok\n", 0);
    cr_expect(strstr(o.out, "ok      -H 2 -n 130 --sram 24K --causal: 2 forward\n"), "%s", o.out);
}

// On the shapes that have a mask, and by the kernel's name, the pass and why.
Test(cli, check_fails_a_wrong_kernel) {
    use_variants();
    struct output o = check("--kernel naive-unmasked");
    expect_end(&o, "\nvariants: 4 of 10 ok\n", 1);
    cr_expect(strstr(o.out, "WRONG   -H 2 -n 130 --causal --data rising: 0 forward ok\n"
                            "        naive-unmasked, forward: wrong: O["),
              "%s", o.out);
    cr_expect(strstr(o.out, "\nTo see it:  "), "%s", o.out);
}

Test(cli, check_leaves_out_what_a_kernel_does_not_take) {
    use_variants();
    struct output o = check("--kernel naive-64");
    expect_end(&o, "\nvariants: 6 of 6 ok, 4 not for this kernel\n", 0);
    cr_expect(strstr(o.out, "none    -H 2 -n 130 -d 40 --data constant: "), "%s", o.out);
}

Test(cli, check_says_when_it_cannot_check) {
    use_variants();
    struct output o = check("--kernel nonsuch");
    expect_one_line("--kernel nonsuch", &o, 2);
    cr_expect(strstr(o.err, "nonsuch"), "%s", o.err);
    o = check("--dtype bf16");
    cr_expect_eq(o.status, 2, "%s%s", o.out, o.err);
    cr_expect(strstr(o.err, "nothing could be checked"), "%s", o.err);
}

// ---- tiles, and passes over N x N --------------------------------------------------------------

Test(cli, tiles_are_the_kernels_own_words) {
    use_variants();
    struct output o = ladder_ok("-n 4 --kernel naive-described");
    cr_expect(strstr(o.out, "\n  tiles: Br 8, \"Bc\" 4\n  launch 1: "), "%s", o.out);
    cr_expect_not(strstr(ladder_ok("-n 4").out, "tiles"));
    struct csv *c = ladder_csv("-n 4 --kernel naive,naive-described");
    expect_cell(c, 1, "tiles", "");
    expect_cell(c, 2, "tiles", "Br 8, \"Bc\" 4");
}

// At d = 64 scores writes S and softmax reads it three times; softmax writes P, and weighted_sum
// asks for 32 bytes of it in each of d / 32 tiles of columns where 4 would do: 3 + 1 + 1 + 16.
Test(cli, passes_over_the_matrices_are_counted) {
    use_variants();
    struct csv *c = ladder_csv("-n 64 --kernel naive,naive-64");
    expect_cell(c, 1, "NxN_passes", "21");
    expect_cell(c, 2, "NxN_passes", "0");
    cr_expect(strstr(ladder_ok("-n 64").out, "  21.0  "));
    expect_cell(ladder_csv("-n 64 -d 32"), 1, "NxN_passes", "13");
    expect_cell(ladder_csv("-n 64 -H 3 -b 2"), 1, "NxN_passes", "21");
    expect_cell(ladder_csv("-n 64 --fast"), 1, "NxN_passes", "");
    // P is read 16 times by dV's sums and twice by softmax_backward; dP is written once and read
    // twice; dS is written once and read 16 times each for dQ and dK.
    c = ladder_csv("-n 64 --pass both --kernel naive");
    expect_cell(c, 1, "NxN_passes", "21");
    expect_cell(c, 2, "NxN_passes", "54");
    expect_cell(ladder_csv("-n 64 --pass backward --kernel naive"), 1, "NxN_passes", "54");
}

// A row fits a wide terminal, and each input's title names the columns above it.
Test(cli, rows_of_the_table_are_no_longer_than_the_title_of_their_columns) {
    struct output o = ladder_ok("-n 64 --pass both --kernel naive");
    char *title = strstr(o.out, "\nstep ");
    cr_assert_not_null(title);
    int wide = (int)strcspn(title + 1, "\n");
    cr_expect_leq(wide, 142, "%d columns", wide);
    for (char *row = strstr(o.out, "\nstep00"); row; row = strstr(row + 1, "\nstep00"))
        cr_expect_leq((int)strcspn(row + 1, "\n"), wide, "%s", row);
    cr_expect(strstr(title, "compulsory") && strstr(title, "NxN"), "%s", title);
}

// ---- one option at a time ----------------------------------------------------------------------

Test(cli, the_default_problem) {
    expect_values(ladder_csv("--kernel naive"), 1,
                  "batch=1 heads=2 kv_heads=2 seqlen_q=512 seqlen_k=512 head_dim=64 causal=0 "
                  "scale=0.125 dtype=fp32 pass=forward input=normal seed=1");
}

static void expect_lengths(const char *arguments, const char *q, const char *k) {
    char whole[256];
    snprintf(whole, sizeof whole, "--kernel naive -d 8 %s", arguments);
    struct csv *c = ladder_csv(whole);
    expect_cell(c, 1, "seqlen_q", q);
    expect_cell(c, 1, "seqlen_k", k);
}

Test(cli, one_length_overrides_both_wherever_it_stands) {
    expect_lengths("-n 4 --seqlen-q 7", "7", "4");
    expect_lengths("--seqlen-q 7 -n 4", "7", "4");
    expect_lengths("-n 4 --seqlen-k 7", "4", "7");
    expect_lengths("--seqlen-k 7 -n 4", "4", "7");
    expect_lengths("--seqlen-q 3 --seqlen-k 5 -n 4", "3", "5");
    expect_lengths("-n 4 -n 6", "6", "6");
    expect_lengths("--seqlen-q 3", "3", "512");
}

// kv-heads and scale follow heads and head-dim that come after them.
Test(cli, defaults_follow_the_whole_line) {
    struct csv *c = ladder_csv("--kernel naive -n 4 --scale 0.3 -H 6 -d 16");
    expect_cell(c, 1, "kv_heads", "6");
    expect_cell(c, 1, "scale", "0.300000012");
    c = ladder_csv("--kernel naive -n 4 -d 16");
    expect_cell(c, 1, "scale", "0.25");
}

// In units of 1024 bytes, everywhere; less than one of them in bytes.
Test(cli, shared_memory_is_shown_in_KB) {
    static const struct {
        const char *sram, *title;
    } sizes[] = {{"227K", "227 KB"}, {"64K", "64 KB"},   {"9055", "8.84 KB"},
                 {"1K", "1 KB"},     {"1023", "1023 B"}, {"1", "1 B"}};
    char arguments[64], title[64];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(arguments, sizeof arguments, "-n 4 -d 8 --kernel naive --sram %s", sizes[i].sram);
        snprintf(title, sizeof title, "SIMT simulator, %s of shared memory", sizes[i].title);
        struct output o = ladder_ok(arguments);
        cr_expect(!strncmp(o.out, title, strlen(title)), "%s: %.80s", arguments, o.out);
        cr_expect(strstr(o.out, "     0 B         0        3  ok"), "%s", o.out);
    }
    if (!strstr(list_kernels()->text, " tiled ")) return;
    struct output o = ladder_ok("-n 4 --kernel tiled"); // 2 * 32 * 32.5 floats
    cr_expect(strstr(o.out, " 8.12 KB         0        3  ok"), "%s", o.out);
}

Test(cli, sram_in_bytes_and_in_K) {
    expect_cells(ladder_csv("-n 33 --sram 64K"), "smem_limit", "65536");
    expect_cells(ladder_csv("-n 33 --sram 65536"), "smem_limit", "65536");
    expect_cells(ladder_csv("-n 33 --sram 227k"), "smem_limit", "232448");
}

Test(cli, every_family_can_be_had) {
    static const char *const families[] = {"normal",   "large",    "rising",
                                           "outliers", "constant", "one-hot"};
    char arguments[64];
    for (int i = 0; i < 6; i++) {
        snprintf(arguments, sizeof arguments, "-n 33 --data %s", families[i]);
        expect_cells(ladder_csv(arguments), "input", families[i]);
    }
}

Test(cli, a_run_can_be_repeated) {
    ladder_ok("-n 33 --repeat 3");
    expect_cells(ladder_csv("-n 33 --repeat 3"), "result", "ok");
}

Test(cli, fast_asks_no_number_of_sectors) {
    struct csv *c = ladder_csv("-n 33 --fast");
    expect_cells(c, "result", "ok");
    expect_cells(c, "asked_load", "");
    expect_cells(c, "asked_store", "");
    expect_cells(c, "distinct_read", "");
    cr_expect_not(strstr(ladder_ok("-n 33 --fast --kernel naive").out, "\n  asked"));
    cr_expect(strstr(ladder_ok("-n 33 --kernel naive").out, "\n  asked"));
}

// ---- FP8 ---------------------------------------------------------------------------------------

Test(cli, fp8_shows_its_rmse_and_how_it_was_quantised) {
    use_variants();
    struct output o = ladder_ok("-n 40 --kernel fp8-on-host");
    cr_expect(strstr(o.out, "fp8 (a scale for each tensor), scale"), "%s", o.out);
    cr_expect(strstr(o.out, "    RMSE of bar "), "%s", o.out);
    cr_expect(strstr(o.out, "\n  O: RMSE "), "%s", o.out);
    o = ladder_ok("-n 40 --kernel fp8-on-host --rotate --fp8-scale block --fp8-accumulator 14bit");
    cr_expect(strstr(o.out, "fp8 (a scale for each block, Q and K rotated, sums of 14 bits)"), "%s",
              o.out);
    o = ladder_ok("-n 40 --kernel naive");
    cr_expect(strstr(o.out, "   error of bar ") && !strstr(o.out, "RMSE"), "%s", o.out);
}

Test(cli, csv_of_fp8) {
    use_variants();
    struct csv *c = ladder_csv("-n 40 --kernel fp8-on-host --rotate --fp8-scale head");
    expect_cells(c, "fp8_scale", "head");
    expect_cells(c, "rotate", "1");
    expect_cells(c, "fp8_sums", "exact");
    cr_expect_str_eq(cell(c, 1, "rmse_O"), cell(c, 1, "base_rmse_O"), "it is the baseline");
    double rotated = atof(cell(c, 1, "rmse_O"));
    c = ladder_csv("-n 40 --kernel fp8-on-host --fp8-accumulator 14bit");
    expect_cells(c, "fp8_scale", "tensor");
    expect_cells(c, "rotate", "0");
    expect_cells(c, "fp8_sums", "14bit");
    double plain = atof(cell(c, 1, "rmse_O"));
    cr_expect(plain > 1e-4 && plain < 1e-1 && rotated > 1e-4 && rotated < 1e-1 && plain != rotated);
    c = ladder_csv("-n 40 --kernel naive");
    expect_cells(c, "fp8_scale", "");
    expect_cells(c, "base_rmse_O", "");
    cr_expect(atof(cell(c, 1, "rmse_O")) > 0 && atof(cell(c, 1, "rmse_O")) < 1e-6);
}

Test(cli, fp8_names_the_worst_of_a_wrong_output) {
    use_variants();
    struct output o = ladder("-n 13 --kernel fp8-on-host -d 8");
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.out, "the RMSE of O is "), "%s", o.out);
    cr_expect(strstr(o.out, "(1 row is wrong); O[0, 0, 1, 0] is 100 and should be "), "%s", o.out);
}

// Whether or not a kernel has the pass: a forward must not pass for it.
Test(cli, pass_backward_is_not_the_forward) {
    const char *arguments = "--format csv --pass backward -n 33";
    struct output o = ladder(arguments);
    struct csv *c = parse_csv(&o, arguments);
    expect_cells(c, "pass", "backward");
    bool ran = false;
    for (int row = 1; row <= c->rows; row++) ran |= !strcmp(cell(c, row, "result"), "ok");
    cr_expect_eq(o.status, ran ? 0 : 2, "exit status %d", o.status);
}

// The program's own name for a type that no kernel lists; NULL when each type has a kernel.
static const char *type_without_kernel(void) {
    static const char *const types[] = {"fp16", "bf16", "fp8"};
    const struct list *list = list_kernels();
    for (int i = 0; i < 3; i++)
        if (!strstr(list->text, types[i])) return types[i];
    return NULL;
}

Test(cli, nothing_could_run) {
    const char *type = type_without_kernel();
    char arguments[64];
    if (!type) cr_skip_test("every type has a kernel");
    snprintf(arguments, sizeof arguments, "--format csv -n 4 --dtype %s --kernel all", type);
    struct output o = ladder(arguments);
    expect_one_line(arguments, &o, 2);
    struct csv *c = parse_csv(&o, arguments);
    expect_cells(c, "result", "unsupported");
    expect_cells(c, "dtype", type);
    for (int row = 1; row <= c->rows; row++)
        cr_expect(strstr(cell(c, row, "why"), type), "%s", cell(c, row, "why"));
}

// ---- --profile ---------------------------------------------------------------------------------

// The line of step00's source that holds this text, by which the tests know it: numbers change.
static int source_line_of(const char *text) {
    char path[PATH_MAX + 64], line[512];
    int number = 0;
    snprintf(path, sizeof path, "%s/step00_naive/attention.cu", sources);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s: %s", path, strerror(errno));
    do {
        cr_assert_not_null(fgets(line, sizeof line, file), "no %s in %s", text, path);
        number++;
    } while (!strstr(line, text));
    fclose(file);
    return number;
}

// The line of the table that holds `access`, without its end.
static const char *profile_row(const struct output *o, const char *access) {
    static char row[512];
    const char *at = strstr(o->out, access);
    cr_assert_not_null(at, "no %s in: %s", access, o->out);
    while (at > o->out && at[-1] != '\n') at--;
    snprintf(row, sizeof row, "%.*s", (int)strcspn(at, "\n"), at);
    return row;
}

// 64 rows of S, 2 tiles of 32 keys, 64 turns: 8192 requests, each of 32 rows of K, 4 bytes of each.
static const char K_numbers[] = "8388608   83.4%        8192   32.0      32.00   4.00     12.5%  ";

Test(cli, profile_shows_a_source_line_and_its_numbers) {
    char link_to[PATH_MAX + 64], place[256];
    snprintf(link_to, sizeof link_to, "%s/step00_naive", sources);
    cr_assert_eq(symlink(link_to, "step00_naive"), 0); // so that the text can be read from here
    struct output o = ladder_ok("--kernel naive -n 64 -H 1 --profile");
    const char *row = profile_row(&o, "load K in scores");
    cr_expect(strstr(row, K_numbers), "\"%s\" is missing in: %s", K_numbers, row);
    snprintf(place, sizeof place, "step00_naive/attention.cu:%d  for (int c",
             source_line_of("+= q[c] * k[c]"));
    cr_expect(strstr(row, place), "\"%s\" is missing in: %s", place, row);
    cr_expect(strstr(row, "+= q[c] * k[c];"), "%s", row);
}

// Same numbers, same places, and no text: the row ends after the place.
Test(cli, profile_does_not_need_the_source) {
    char end[256];
    struct output o = ladder_ok("--kernel naive -n 64 -H 1 --profile");
    const char *row = profile_row(&o, "load K in scores");
    cr_expect(strstr(row, K_numbers), "%s", row);
    snprintf(end, sizeof end, "step00_naive/attention.cu:%d", source_line_of("+= q[c] * k[c]"));
    const char *at = strstr(row, end);
    cr_expect(at && !at[strlen(end)], "does not end with \"%s\": \"%s\"", end, row);
}

// What the kernel's lines of the profile add up to.
struct sums {
    long long load, store, atomic, tma_load, tma_store; // bytes in sectors
    long long wavefronts, conflicts;
};

static struct sums add_profile(const struct csv *c, const char *kernel) {
    struct sums s = {0};
    for (int row = 1; row <= c->rows; row++) {
        if (strcmp(cell(c, row, "kernel"), kernel)) continue;
        bool shared = !strcmp(cell(c, row, "memory"), "shared");
        const char *kind = cell(c, row, "kind");
        long long *sum = !strcmp(kind, "load")       ? &s.load
                         : !strcmp(kind, "store")    ? &s.store
                         : !strcmp(kind, "atomic")   ? &s.atomic
                         : !strcmp(kind, "tma_load") ? &s.tma_load
                                                     : &s.tma_store;
        cr_expect_eq(shared, !*cell(c, row, "sectors"), "row %d", row);
        cr_expect_eq(shared, !!*cell(c, row, "wavefronts"), "row %d", row);
        cr_expect_gt(atoi(cell(c, row, "line")), 0, "row %d", row);
        if (!shared) *sum += 32 * atoll(cell(c, row, "sectors"));
        s.wavefronts += atoll(cell(c, row, "wavefronts"));
        s.conflicts += atoll(cell(c, row, "wavefronts")) - atoll(cell(c, row, "ideal_wavefronts"));
    }
    return s;
}

static void expect_sum(const struct csv *c, int row, const char *column, long long sum) {
    char text[32];
    snprintf(text, sizeof text, "%lld", sum);
    expect_cell(c, row, column, text);
}

Test(cli, profile_as_csv_adds_up) {
    static struct csv profile = {.columns = PROFILE_COLUMNS};
    const char *shape = "-H 2 --kv-heads 1 --seqlen-q 33 --seqlen-k 40 --causal";
    char arguments[256];
    snprintf(arguments, sizeof arguments, "--format csv --profile %s", shape);
    struct output o = ladder_ok(arguments);
    parse_rows(&profile, &o, profile_heading, arguments);
    struct csv *runs = ladder_csv(shape);
    for (int row = 1; row <= runs->rows; row++) {
        if (strcmp(cell(runs, row, "result"), "ok")) continue;
        struct sums s = add_profile(&profile, cell(runs, row, "kernel"));
        expect_sum(runs, row, "asked_load", s.load);
        expect_sum(runs, row, "asked_store", s.store);
        expect_sum(runs, row, "asked_atomic", s.atomic);
        expect_sum(runs, row, "asked_tma_load", s.tma_load);
        expect_sum(runs, row, "asked_tma_store", s.tma_store);
        expect_sum(runs, row, "bank_conflicts", s.conflicts);
    }
    struct sums naive = add_profile(&profile, "naive");
    expect_sum(runs, 1, "model_load", naive.load);
    expect_sum(runs, 1, "model_store", naive.store);
}

// The committed row of this kernel: its wavefronts, and the fewest that were possible.
static void read_wavefronts(const char *kernel, long long *wavefronts, long long *ideal) {
    char path[PATH_MAX + 64], line[200], start[64];
    snprintf(path, sizeof path, "%s/notes/results/sim_wavefronts.csv", sources);
    snprintf(start, sizeof start, "%s,1024,64,", kernel);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    while (fgets(line, sizeof line, file) && strncmp(line, start, strlen(start))) continue;
    fclose(file);
    cr_assert_eq(sscanf(line, "%*[^,],1024,64,%lld,%lld", wavefronts, ideal), 2, "%s: no row %s",
                 path, start);
}

// One kernel with static and one with dynamic shared memory; all seven would take long.
Test(cli, the_committed_wavefronts_are_those_of_todays_kernels) {
    static const char *const kernels[] = {"blocked", "fused"};
    static struct csv profile = {.columns = PROFILE_COLUMNS};
    const char *arguments = "-n 1024 -H 1 --kernel blocked,fused --profile --format csv";
    struct output o = ladder_ok(arguments);
    parse_rows(&profile, &o, profile_heading, arguments);
    for (int k = 0; k < 2; k++) {
        struct sums s = add_profile(&profile, kernels[k]);
        long long wavefronts, ideal;
        read_wavefronts(kernels[k], &wavefronts, &ideal);
        cr_expect_eq(s.wavefronts, wavefronts, "make wavefronts: %s has %lld, not %lld", kernels[k],
                     s.wavefronts, wavefronts);
        cr_expect_eq(s.conflicts, wavefronts - ideal, "make wavefronts: %s has %lld conflicts",
                     kernels[k], s.conflicts);
    }
}

// A repeated run is one run's profile.
Test(cli, profile_is_of_one_run) {
    struct output once = ladder_ok("-n 33 --kernel naive --profile");
    cr_expect_str_eq(ladder_ok("-n 33 --kernel naive --profile --repeat 3").out, once.out);
}

Test(cli, profile_needs_sectors) {
    static const struct refusal table[] = {
        {"--fast --profile", 2, {"--fast", "--profile", "sectors"}},
        {"-n 4 --profile --format csv --fast", 2, {"--fast", "--profile", "sectors"}},
        {"--profile=1", 2, {"--profile"}},
    };
    EXPECT_REFUSALS(table);
}

// The reason has no column in a profile, so it goes to stderr.
Test(cli, profile_as_csv_of_what_could_not_run) {
    const char *type = type_without_kernel();
    char arguments[96];
    if (!type) cr_skip_test("every type has a kernel");
    snprintf(arguments, sizeof arguments, "--format csv --profile -n 4 --dtype %s", type);
    struct output o = ladder(arguments);
    cr_expect_eq(o.status, 2);
    cr_expect(strstr(o.err, "naive: does not compute in"), "%s", o.err);
    o.out[strcspn(o.out, "\n")] = 0;
    cr_expect_str_eq(o.out, profile_heading);
}

// ---- several inputs ----------------------------------------------------------------------------

Test(cli, each_input_has_its_rows_and_its_title) {
    write_inputs("one", 2, 2, 8);
    write_inputs("two", 4, 1, 16);
    const char *arguments = "--kernel naive --data constant -n 4 --load one --load two";
    struct csv *c = ladder_csv(arguments);
    static const char *const inputs[] = {"constant", "one", "two"};
    cr_assert_eq(c->rows, 3);
    for (int i = 0; i < 3; i++) expect_cell(c, i + 1, "input", inputs[i]);
    struct output o = ladder_ok(arguments);
    for (int i = 0; i < 3; i++) {
        char title[32];
        snprintf(title, sizeof title, "input %s:", inputs[i]);
        cr_expect(strstr(o.out, title), "the table has no \"%s\"", title);
    }
}

// The shape is the files', and so is the scale that follows from it.
Test(cli, files_set_the_shape) {
    write_inputs("files", 4, 1, 16);
    expect_values(ladder_csv("--kernel naive --load files"), 1,
                  "batch=1 heads=4 kv_heads=1 seqlen_q=4 seqlen_k=5 head_dim=16 scale=0.25");
    expect_cell(ladder_csv("--kernel naive --load files --scale 2"), 1, "scale", "2");
    expect_cell(ladder_csv("--kernel naive --load files -d 8 -n 4 --data normal"), 2, "scale",
                "0.25");
}

// ---- --dump ------------------------------------------------------------------------------------

static double *read_tensor(const char *dir, const char *name, const uint64_t *shape, int dims,
                           uint64_t *count) {
    char path[256], why[WHY] = "";
    int got_dims;
    uint64_t got[NPY_MAX_DIMS];
    double *data;
    in_folder(dir, name, path);
    cr_assert(npy_read(path, &got_dims, got, &data, why, sizeof why), "%s", why);
    cr_assert_eq(got_dims, dims, "%s", path);
    *count = 1;
    for (int i = 0; i < dims; i++) {
        cr_assert_eq(got[i], shape[i], "side %d of %s", i, path);
        *count *= got[i];
    }
    return data;
}

static void expect_same_tensor(const char *a, const char *b, const char *name,
                               const uint64_t *shape, int dims) {
    uint64_t count;
    double *x = read_tensor(a, name, shape, dims, &count);
    double *y = read_tensor(b, name, shape, dims, &count);
    cr_expect_arr_eq(x, y, count * sizeof *x, "%s/%s.npy and %s/%s.npy differ", a, name, b, name);
    free(x), free(y);
}

// What was dumped, loaded and run again, gives the same bits.
static void expect_round_trip(const char *shape_options, const char *others, const uint64_t q[4],
                              const uint64_t kv[4]) {
    char arguments[256];
    snprintf(arguments, sizeof arguments, "--kernel naive %s %s --dump first", shape_options,
             others);
    ladder_ok(arguments);
    snprintf(arguments, sizeof arguments, "--kernel naive --load first %s --dump second", others);
    ladder_ok(arguments);
    expect_same_tensor("first", "second", "Q", q, 4);
    expect_same_tensor("first", "second", "K", kv, 4);
    expect_same_tensor("first", "second", "V", kv, 4);
    expect_same_tensor("first", "second", "O", q, 4);
    expect_same_tensor("first", "second", "LSE", q, 3);
}

Test(cli, dump_and_load) {
    const uint64_t q[4] = {1, 2, 33, 64}, q_gqa[4] = {2, 4, 9, 8}, kv_gqa[4] = {2, 2, 5, 8};
    expect_round_trip("-n 33", "", q, q);
    expect_round_trip("-b 2 -H 4 --kv-heads 2 --seqlen-q 9 --seqlen-k 5 -d 8", "--causal", q_gqa,
                      kv_gqa);
    expect_round_trip("-b 2 -H 4 --kv-heads 2 --seqlen-q 9 --seqlen-k 5 -d 8", "--scale 0.7", q_gqa,
                      kv_gqa);
}

// 9 queries, 5 keys: the first four see none.
Test(cli, rows_without_keys_are_dumped_as_minus_infinity) {
    const uint64_t shape[3] = {1, 1, 9};
    uint64_t count;
    ladder_ok("--kernel naive -H 1 --seqlen-q 9 --seqlen-k 5 -d 8 --causal --dump d");
    double *LSE = read_tensor("d", "LSE", shape, 3, &count);
    for (int i = 0; i < 9; i++) cr_expect_eq(isinf(LSE[i]) != 0, i < 4, "LSE[%d] is %g", i, LSE[i]);
    free(LSE);
}

Test(cli, seeds_differ_and_repeat) {
    const uint64_t shape[4] = {1, 2, 4, 8};
    uint64_t count;
    ladder_ok("--kernel naive -n 4 -d 8 --dump default");
    ladder_ok("--kernel naive -n 4 -d 8 --dump one --seed 1");
    ladder_ok("--kernel naive -n 4 -d 8 --dump two --seed 2");
    expect_same_tensor("default", "one", "Q", shape, 4);
    double *one = read_tensor("one", "Q", shape, 4, &count);
    double *two = read_tensor("two", "Q", shape, 4, &count);
    cr_expect_arr_neq(one, two, count * sizeof *one, "--seed changes nothing");
    free(one), free(two);
}

// With one kernel, by name or because no other is chosen, files lie right in the folder.
Test(cli, dump_makes_a_folder_for_each_of_several_kernels) {
    const struct list *list = list_kernels();
    bool several = list->rungs > 1;
    char path[NAME + 64];
    ladder_ok("-n 33 --kernel naive --dump named");
    cr_expect_eq(access("named/O.npy", R_OK), 0, "named/O.npy: %s", strerror(errno));
    ladder_ok("-n 33 --dump all");
    for (int i = 0; i < list->rungs; i++) {
        snprintf(path, sizeof path, several ? "all/%s/O.npy" : "all/O.npy", list->ladder[i]);
        cr_expect_eq(access(path, R_OK), 0, "%s: %s", path, strerror(errno));
    }
}

// ---- the gallery -------------------------------------------------------------------------------

Test(cli, a_mistake_that_the_gallery_does_not_have) {
    use_program("gallery");
    expect_refusal(&(struct refusal){"nonsuch", 2, {"nonsuch: no such mistake", "make gallery"}});
    cr_expect(strstr(ladder_ok("missing_barrier").out, "race in shared memory"));
}

// ---- colour ------------------------------------------------------------------------------------

Test(cli, no_colour_in_files) {
    struct output o = ladder_ok("-n 33");
    cr_expect_not(strchr(o.out, '\033'));
    setenv("NO_COLOR", "1", 1);
    cr_expect_str_eq(ladder_ok("-n 33").out, o.out);
    cr_expect_not(strchr(ladder("--nonsuch").err, '\033'));
}

// Runs with stdout on the terminal, and gives what the terminal got. A small kernel: nobody reads
// the other end until the program is done.
static void run_on_terminal(int terminal, char text[TEXT]) {
    char arguments[256];
    snprintf(arguments, sizeof arguments, "--kernel naive -n 4 -d 8 --fast >%s", ptsname(terminal));
    ladder_ok(arguments);
    // All has been written, but a read may give one line at a time.
    size_t used = 0;
    for (ssize_t n; used < TEXT - 1 && (n = read(terminal, text + used, TEXT - 1 - used)) > 0;)
        used += (size_t)n;
    text[used] = '\0';
}

Test(cli, colour_on_a_terminal_unless_NO_COLOR) {
    char text[TEXT];
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (terminal < 0 || grantpt(terminal) || unlockpt(terminal)) cr_skip_test("no terminals here");
    int other_end = open(ptsname(terminal), O_RDWR | O_NOCTTY); // held open: the text stays
    run_on_terminal(terminal, text);
    cr_expect(strstr(text, "\033[32mok"), "%s", text);
    setenv("NO_COLOR", "1", 1);
    run_on_terminal(terminal, text);
    cr_expect(strstr(text, "ok") && !strchr(text, '\033'), "%s", text);
    close(other_end), close(terminal);
}

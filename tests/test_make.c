// test_make.c - `make diff`, `make help`, what is compiled again, what `make clean` removes, and what
// make says where something is missing: in a small tree of its own, with the project's Makefile.
#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char sources[PATH_MAX], folder[64], text[1 << 14];

static void write_file(const char *path, const char *content) {
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs(content, file) >= 0 && !fclose(file), "%s: %s", path, strerror(errno));
}

static void start(void) {
    cr_assert_not_null(getcwd(sources, sizeof sources));
    snprintf(folder, sizeof folder, "%s/test_make_XXXXXX", P_tmpdir);
    cr_assert_not_null(mkdtemp(folder), "no scratch folder in %s", P_tmpdir);
    cr_assert_eq(chdir(folder), 0);
    // This make is no part of the one that runs the tests.
    static const char *const variables[] = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "BUILD", "STEP",
                                            "RUNG",      "DEVICE", "NO_COLOR",  "STRICT"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    mkdir("step00_a", 0777), mkdir("step01_b", 0777), mkdir("step02_c", 0777);
    mkdir("common", 0777);
    write_file("step00_a/Makefile", "STEP := step00_a\ninclude ../common/step.mk\n");
    write_file("step01_b/Makefile", "STEP := step01_b\ninclude ../common/step.mk\n");
    write_file("step02_c/Makefile", "STEP := step02_c\ninclude ../common/step.mk\n");
    write_file("step00_a/attention.cu", "same\nzero\n");
    write_file("step01_b/1_x.cu", "same\none\n");
    write_file("step01_b/2_y.cu", "same\ntwo\n");
    write_file("step02_c/attention.cu", "same\ntwo\n");
    char command[2 * PATH_MAX + 64];
    snprintf(command, sizeof command, "ln -s '%s/Makefile' . && ln -s '%s/common/step.mk' common",
             sources, sources);
    cr_assert_eq(system(command), 0);
}

static void clean_up(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (chdir("/") || system(command)) cr_log_warn("%s is left behind", folder);
}

TestSuite(make, .init = start, .fini = clean_up, .timeout = 300);

// Runs make with these arguments; what it prints, errors too, is in `text`. Gives its exit status.
static int make(const char *arguments) {
    char command[256];
    snprintf(command, sizeof command, "make %s 2>&1", arguments);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    text[fread(text, 1, sizeof text - 1, pipe)] = '\0';
    return WEXITSTATUS(pclose(pipe));
}

static void expect_diff(const char *arguments, const char *all) {
    cr_expect_eq(make(arguments), 0, "%s: %s", arguments, text);
    cr_expect_str_eq(text, all, "%s: %s", arguments, text);
}

Test(make, a_step_differs_from_the_last_rung_of_the_step_before) {
    static const char to_1[] = "From step00_a/attention.cu to step01_b/1_x.cu:\n"
                               "--- step00_a/attention.cu\n+++ step01_b/1_x.cu\n"
                               "@@ -1,2 +1,2 @@\n same\n-zero\n+one\n";
    expect_diff("diff STEP=01", to_1);
    expect_diff("diff STEP=01 RUNG=1", to_1);
    expect_diff("-C step01_b --no-print-directory diff", to_1);
    expect_diff("diff STEP=02", "From step01_b/2_y.cu to step02_c/attention.cu:\n"); // the same
}

Test(make, a_rung_differs_from_the_one_before) {
    static const char to_2[] = "From step01_b/1_x.cu to step01_b/2_y.cu:\n"
                               "--- step01_b/1_x.cu\n+++ step01_b/2_y.cu\n"
                               "@@ -1,2 +1,2 @@\n same\n-one\n+two\n";
    expect_diff("diff STEP=01 RUNG=2", to_2);
    expect_diff("-C step01_b --no-print-directory diff RUNG=2", to_2);
}

static void expect_error(const char *arguments, const char *words) {
    cr_expect_eq(make(arguments), 2, "%s", arguments);
    cr_expect(strstr(text, words), "%s: \"%s\" is missing in: %s", arguments, words, text);
    const char *end = strchr(text, '\n');
    cr_expect(end && !end[1], "%s: not one line: %s", arguments, text);
}

Test(make, diff_says_what_it_cannot_show) {
    expect_error("diff", "needs a step: STEP=01");
    expect_error("diff RUNG=2", "needs a step");
    expect_error("diff STEP=00", "STEP=00: nothing comes before");
    expect_error("diff STEP=03", "No step 03; there are: 00 01 02");
    expect_error("diff STEP=01 RUNG=3", "RUNG=3: the rungs of step 01 are 1 2");
    expect_error("diff STEP=01 RUNG=0", "RUNG=0: the rungs of step 01 are 1 2");
    expect_error("diff STEP=01 RUNG=x", "RUNG=x: the rungs of step 01 are 1 2");
    expect_error("diff STEP=02 RUNG=2", "RUNG=2: the rungs of step 02 are 1");
}

// More than a pipe holds, to a reader that has seen enough.
Test(make, diff_ends_in_silence_when_nobody_reads_on) {
    FILE *file = fopen("step01_b/1_x.cu", "w");
    for (int i = 0; i < 100000; i++) fprintf(file, "line %d\n", i);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(system("{ make diff STEP=01 2>err; echo $? >status; } | head -n 1 >out"), 0);
    cr_expect_eq(system("grep -qx 'From step00_a/attention.cu to step01_b/1_x.cu:' out"), 0);
    cr_expect_eq(system("grep -qx 0 status"), 0);
    cr_expect_eq(system("cat err >&2; [ ! -s err ]"), 0, "make complained");
}

// ---- make clean
// ----------------------------------------------------------------------------------

static void expect_files(const char *there, const char *gone) {
    char command[512];
    snprintf(command, sizeof command, "for f in %s; do [ -e build/$f ] || exit 1; done", there);
    cr_expect_eq(system(command), 0, "one is gone of: %s", there);
    snprintf(command, sizeof command, "for f in %s; do [ ! -e build/$f ] || exit 1; done", gone);
    cr_expect_eq(system(command), 0, "one is left of: %s", gone);
}

Test(make, clean_of_a_step_leaves_the_others) {
    static const char built[] =
        "mkdir -p build/sim/step00_a build/sim/step01_b build/gpu/step01_b && "
        "touch build/sim/step00 build/sim/step01 build/gpu/step01";
    static const char zero[] = "sim/step00 sim/step00_a",
                      one[] = "sim/step01 sim/step01_b gpu/step01 gpu/step01_b";
    cr_assert_eq(system(built), 0);
    cr_expect_eq(make("-C step01_b clean"), 0, "%s", text);
    expect_files(zero, one);
    cr_assert_eq(system(built), 0);
    cr_expect_eq(make("clean STEP=00"), 0, "%s", text);
    expect_files(one, zero);
    cr_expect_eq(make("clean"), 0, "%s", text);
    cr_expect_eq(system("[ ! -e build ]"), 0);
}

// ---- what is compiled again
// ----------------------------------------------------------------------

// A compiler that writes down what it was asked for.
static void write_nvcc(const char *path) {
    write_file(path, "#!/bin/sh\nwords=\"$*\"\nwhile [ \"$1\" != -o ]; do shift; done\n"
                     "echo \"$words\" >\"$2\"\n");
    chmod(path, 0755);
}

static void expect_compiled(const char *arguments, bool compiled, const char *arch) {
    static const char object[] = "build/gpu/step00_a/attention.o";
    char command[256];
    snprintf(command, sizeof command, "DEVICE=sim %s %s", arguments, object);
    cr_expect_eq(make(command), 0, "%s", text);
    cr_expect_eq(strstr(text, "  NVCC   build/gpu/step00_a/attention.o\n") != NULL, compiled,
                 "%s: %s", arguments, text);
    snprintf(command, sizeof command, "grep -q 'code=%s' %s", arch, object);
    cr_expect_eq(system(command), 0, "%s: not for %s", arguments, arch);
}

Test(make, another_card_or_nvcc_compiles_again) {
    write_nvcc("nvcc"), write_nvcc("nvcc2");
    expect_compiled("NVCC=./nvcc ARCH=75", true, "sm_75");
    expect_compiled("NVCC=./nvcc ARCH=75", false, "sm_75");
    expect_compiled("NVCC=./nvcc ARCH=90", true, "sm_90");
    expect_compiled("NVCC=./nvcc ARCH=90", false, "sm_90");
    expect_compiled("NVCC=./nvcc ARCH='75 90'", true, "sm_75 -gencode arch=compute_90,code=sm_90");
    expect_compiled("NVCC=./nvcc2 ARCH='75 90'", true, "sm_90");
    expect_compiled("NVCC=./nvcc2 ARCH='75 90'", false, "sm_90");
}

// A terminal gets colour, a file none; `script` makes one where it is installed.
Test(make, diff_is_coloured_on_a_terminal) {
    if (system("script --version >/dev/null 2>&1")) cr_skip_test("no script(1) here");
    setenv("TERM", "xterm", 1);
    FILE *pipe = popen("script -qec 'make diff STEP=01' /dev/null </dev/null 2>&1", "r");
    cr_assert_not_null(pipe);
    text[fread(text, 1, sizeof text - 1, pipe)] = '\0';
    pclose(pipe);
    cr_expect(strstr(text, "\033[31m-zero"), "%s", text);
    make("diff STEP=01");
    cr_expect_not(strchr(text, '\033'));
}

// ---- make help ---------------------------------------------------------------------------------

// The targets of the Makefile whose lines have a text for it.
static int documented(char name[64][32]) {
    char path[PATH_MAX + 16], line[1024];
    int count = 0;
    snprintf(path, sizeof path, "%s/Makefile", sources);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file)) {
        size_t n = strcspn(line, ":");
        if (strchr("\t #", line[0]) || n > 31 || !strstr(line + n, "## ")) continue;
        cr_assert_lt(count, 64);
        snprintf(name[count++], 32, "%.*s", (int)n, line);
    }
    fclose(file);
    return count;
}

Test(make, help_shows_every_target_that_has_a_text) {
    char name[64][32], line[48];
    int count = documented(name), lines = 0;
    cr_assert_gt(count, 20);
    cr_expect_eq(make("help"), 0, "%s", text);
    for (int i = 0; i < count; i++) {
        snprintf(line, sizeof line, "  make %.31s ", name[i]);
        cr_expect(strstr(text, line), "make help does not show %s: %s", name[i], text);
    }
    for (const char *at = text; *at; at += strcspn(at, "\n") + 1, lines++)
        cr_expect_leq(strcspn(at, "\n"), 100, "a long line: %s", at);
    cr_expect_eq(lines, count);
}

// ---- what is missing ---------------------------------------------------------------------------

// Its first line, before anything is compiled; then make's own, with the recipe's exit status.
static void expect_missing(const char *arguments, const char *line) {
    cr_expect_eq(make(arguments), 2, "%s: %s", arguments, text);
    cr_expect(!strncmp(text, line, strlen(line)), "%s: %s", arguments, text);
    cr_expect(strstr(text, "Error 3"), "%s: %s", arguments, text);
    cr_expect_not(strstr(text, "\n  CC "), "%s: %s", arguments, text);
}

Test(make, what_needs_criterion_says_so) {
    static const char line[] = "the tests need Criterion; make deps installs it\n";
    expect_missing("mutants CC=false", line);
    expect_missing("mutants STEP=01 CC=false", line);
    expect_missing("test CC=false PYTHON=true", line);
    expect_missing("test-programs CC=false PYTHON=true", line);
    expect_missing("test-shapes CC=false", line);
}

Test(make, what_needs_numpy_says_so) {
    expect_missing("need-numpy PYTHON=false", "the tests need NumPy; make deps installs it\n");
}

// ---- what is unused in a kernel ----------------------------------------------------------------

Test(make, what_is_unused_in_a_kernel_is_an_error_for_the_tests_only) {
    const char *object = "build/sim/step00_a/attention.o";
    write_file("step00_a/attention.cu", "static int nobody(int x) { int y; return 3; }\n");
    cr_expect_eq(make(object), 0, "%s", text);
    cr_expect(strstr(text, "-Wunused-function") && strstr(text, "-Wunused-variable"), "%s", text);
    cr_assert_eq(unlink(object), 0);
    char strict[64];
    snprintf(strict, sizeof strict, "%s STRICT=1", object);
    cr_expect_eq(make(strict), 2, "%s", text);
    cr_expect(strstr(text, "error: unused variable"), "%s", text); // gcc and clang say it alike
}

// report.c - what the reader sees.
//
// Four kinds of numbers speak of HBM traffic, and they are never mixed:
//   model     what the step's own function computes for this shape
//   asked     32-byte sectors that warps asked for, counted once per warp request, times 32
//   L2, DRAM  what the GPU's counters saw behind the L1 caches, and behind L2 (GPU only)
//   distinct  sectors touched, counted once per launch: what must move if nothing stays in a cache
//             from one launch to the next (simulator only)
//
// Beside them stand compulsory (each input read once, each output written once) and, from the
// simulator, NxN: how often a matrix of N x N elements went through HBM.

#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const pass_name[] = {[ATTN_FORWARD] = "forward", [ATTN_BACKWARD] = "backward"};

// ---- words and numbers --------------------------------------------------------------------------

// "1.28 GB": three digits, decimal units. Several results can stand in one printf.
static const char *bytes_text(double bytes) {
    static char ring[16][24];
    static int next;
    char *out = ring[next++ % 16];
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int u = 0;
    for (; bytes >= 999.5 && u < 5; u++) bytes /= 1000;
    int digits = u == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
    snprintf(out, sizeof ring[0], "%.*f %s", digits, bytes, unit[u]);
    return out;
}

// Shared memory is sold in KB of 1024 bytes.
static const char *smem_text(size_t bytes) {
    static char text[24];
    if (bytes < 1024)
        snprintf(text, sizeof text, "%zu B", bytes);
    else
        snprintf(text, sizeof text, "%.3g KB", (double)bytes / 1024);
    return text;
}

static double total(const struct attn_traffic *t) {
    return (double)t->load + (double)t->store + (double)t->atomic + (double)t->tma_load +
           (double)t->tma_store;
}

static double tflops(const struct result *r) {
    return attn_flops(&r->prepared->problem, r->pass) / r->measured.microseconds / 1e6;
}

static const char *coloured(const char *word, int colour) {
    static char text[48];
    const char *no_color = getenv("NO_COLOR"); // no-color.org: set and not empty
    if (!isatty(STDOUT_FILENO) || (no_color && no_color[0])) return word;
    snprintf(text, sizeof text, "\033[%dm%s\033[0m", colour, word);
    return text;
}

static bool has_run(const struct result *r) {
    return r->outcome == RAN_RIGHT || r->outcome == RAN_WRONG || r->outcome == RAN_UNMODELLED;
}

static const char *outcome_text(const struct result *r) {
    enum { RED = 31, GREEN = 32, YELLOW = 33 };
    switch (r->outcome) {
    case RAN_RIGHT: return coloured("ok", GREEN);
    case RAN_WRONG: return coloured("WRONG", RED);
    case RAN_UNMODELLED: return coloured("bytes", RED);
    default: return coloured("not run", YELLOW);
    }
}

// ---- the table ----------------------------------------------------------------------------------

// FP8: with what is done about its few bits.
static const char *type_text(const struct reporter *to, const struct attn_problem *p) {
    static char text[96];
    if (p->dtype != ATTN_FP8) return attn_dtype_name(p->dtype);
    snprintf(text, sizeof text, "fp8 (a scale for each %s%s%s)", fp8_scale_name(p->fp8_scale),
             p->rotate ? ", Q and K rotated" : "",
             to->machine->simulated && to->fp8_14_bits ? ", sums of 14 bits" : "");
    return text;
}

static void print_title(struct reporter *to, const struct result *r) {
    const struct attn_problem *p = &r->prepared->problem;
    const struct machine *m = to->machine;
    if (to->titled) printf("\n");
    to->titled = r->prepared->number;
    printf("%s%s%s, %s of shared memory a block\n", m->name, m->driver[0] ? ", driver " : "",
           m->driver, smem_text(p->smem));
    printf("input %s: B %d, H %d, Hkv %d, Nq %d, Nk %d, d %d, %s, %s, scale %g\n\n",
           r->prepared->name, p->batch, p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k,
           p->head_dim, p->causal ? "causal" : "no mask", type_text(to, p), p->scale);
    printf("%-6s %-16s %-4s %-8s %7s %6s %7s %7s   ", "step", "kernel", "type", "pass",
           p->dtype == ATTN_FP8 ? "RMSE" : "error", "of bar", "model", "asked");
    if (m->simulated)
        printf("%8s ", "distinct");
    else
        printf("%7s %7s %9s %8s %8s ", "L2", "DRAM", "time us", "TFLOP/s", "of peak");
    printf("%10s %6s %9s %7s %9s %8s  %s\n", "compulsory", "NxN", "workspace", "smem", "conflicts",
           "launches", "result");
}

static void print_cell(bool known, int width, const char *text) {
    printf("%*s ", width, known ? text : "-");
}

static void print_gpu_cells(const struct result *r) {
    const struct measurement *m = &r->measured;
    char time[24] = "", speed[24] = "", share[24] = "";
    double peak = machine_peak_flops(r->prepared->problem.dtype);
    print_cell(m->has_l2, 7, bytes_text((double)m->l2_read + (double)m->l2_write));
    print_cell(m->has_dram, 7, bytes_text((double)m->dram_read + (double)m->dram_write));
    if (m->has_time) {
        snprintf(time, sizeof time, "%.1f", m->microseconds);
        snprintf(speed, sizeof speed, "%.3g", tflops(r));
        if (peak > 0) snprintf(share, sizeof share, "%.2f%%", 100e12 * tflops(r) / peak);
    }
    print_cell(m->has_time, 9, time);
    print_cell(m->has_time, 8, speed);
    print_cell(share[0] != 0, 8, share);
}

// The largest of all checked tensors; NaN counts as infinite. FP8: the RMSE of O, which comes
// first.
static void print_error(const struct result *r) {
    double error = 0, of_bar = 0;
    bool fp8 = r->prepared->problem.dtype == ATTN_FP8;
    for (int i = 0; i < (fp8 && r->checks ? 1 : r->checks); i++) {
        double mine = fp8 ? r->check[i].rmse : r->check[i].error;
        error = fmax(error, isnan(mine) ? INFINITY : mine);
    }
    for (int i = 0; i < r->checks; i++) {
        of_bar = fmax(of_bar, isnan(r->check[i].of_bar) ? INFINITY : r->check[i].of_bar);
    }
    if (!r->checks)
        printf("%7s %6s ", "-", "-");
    else if (of_bar < 100)
        printf("%7.1e %5.0f%% ", error, 100 * of_bar);
    else
        printf("%7.1e %6s ", error, ">9999%");
}

static void print_row(const struct reporter *to, const struct result *r) {
    const struct measurement *m = &r->measured;
    char passes[24];
    // "step00": the folder's whole name is in --list.
    printf("%-6.*s %-16s %-4s %-8s ", (int)strcspn(r->kernel->step, "_"), r->kernel->step,
           r->kernel->name, attn_dtype_name(r->prepared->problem.dtype), pass_name[r->pass]);
    if (!has_run(r)) {
        printf("%s: %s\n", outcome_text(r), r->why);
        return;
    }
    print_error(r);
    printf("%7s ", bytes_text(total(&r->model)));
    printf("%7s %s ", m->has_asked ? bytes_text(total(&m->asked)) : "-",
           !m->has_asked       ? " "
           : r->asked_is_model ? "="
           : r->asked_is_more  ? ">"
                               : "!");
    if (to->machine->simulated)
        print_cell(m->has_distinct, 8,
                   bytes_text((double)m->distinct_read + (double)m->distinct_write));
    else
        print_gpu_cells(r);
    snprintf(passes, sizeof passes, "%.1f", r->matrix_passes);
    printf("%10s ", bytes_text((double)r->compulsory));
    print_cell(r->has_matrix_passes, 6, passes);
    printf("%9s %7s ", bytes_text((double)r->workspace), smem_text(m->smem_per_block));
    if (m->has_conflicts)
        printf("%9" PRIu64 " ", m->bank_conflicts);
    else
        printf("%9s ", "-");
    printf("%8d  %s\n", m->launches, outcome_text(r));
    if (r->outcome != RAN_RIGHT) printf("    %s\n", r->why);
    if (m->note[0]) printf("    note: %s\n", m->note);
}

// ---- the numbers explained, for one kernel ------------------------------------------------------

static void print_traffic(const char *label, const struct attn_traffic *t, const char *meaning) {
    printf("  %-11s%18" PRIu64 "%18" PRIu64 "%16" PRIu64 "   %s\n", label, t->load + t->tma_load,
           t->store + t->tma_store, t->atomic, meaning);
}

static void print_pair(const char *label, uint64_t load, uint64_t store, const char *meaning) {
    printf("  %-11s%18" PRIu64 "%18" PRIu64 "%16s   %s\n", label, load, store, "", meaning);
}

static void print_buffer(const struct machine_buffer *b, const char *kind, uint64_t wanted,
                         uint64_t sectors) {
    if (!wanted) return;
    printf("  %-8s%15" PRIu64 "   %-7s%18" PRIu64, b->name, b->size, kind, wanted);
    if (sectors)
        printf("%18" PRIu64 "%10.1f%%", 32 * sectors,
               100.0 * (double)wanted / (32.0 * (double)sectors));
    printf("\n");
}

static void print_buffers(const struct measurement *m) {
    printf("\n  %-8s%15s   %-7s%18s", "buffer", "size", "", "threads want");
    printf(m->has_asked ? "%18s%11s\n" : "\n", "sectors move", "used");
    for (int i = 0; i < m->buffers; i++) {
        const struct machine_buffer *b = &m->buffer[i];
        print_buffer(b, "load", b->load_bytes, b->load_sectors);
        print_buffer(b, "store", b->store_bytes, b->store_sectors);
        print_buffer(b, "atomic", b->atomic_bytes, b->atomic_sectors);
    }
}

static void print_detail(const struct reporter *to, const struct result *r) {
    const struct measurement *m = &r->measured;
    printf("\n  %-11s%18s%18s%16s\n", "bytes", "load", "store", "atomic");
    print_traffic("model", &r->model,
                  r->pass == ATTN_FORWARD ? r->kernel->formula : r->kernel->backward_formula);
    if (m->has_asked)
        print_traffic("asked", &m->asked, "32-byte sectors, counted once per warp request");
    if (m->has_l2) print_pair("L2", m->l2_read, m->l2_write, "what missed L1");
    if (m->has_dram)
        print_pair("DRAM", m->dram_read, m->dram_write, "what missed L2, or was written back");
    if (m->has_distinct)
        print_pair("distinct", m->distinct_read, m->distinct_write,
                   "sectors, counted once per launch");
    if (to->machine->simulated) print_buffers(m);
    printf("\n");
    if (r->tiles[0]) printf("  tiles: %s\n", r->tiles);
    for (int i = 0; i < m->launches && i < MACHINE_MAX_LAUNCHES; i++) {
        printf("  launch %d: %s", i + 1, m->launch[i].kernel);
        if (m->launch[i].microseconds > 0) printf(", %.1f us", m->launch[i].microseconds);
        printf("\n");
    }
    for (int i = 0; i < r->checks; i++) {
        const struct check *c = &r->check[i];
        printf("  %s: ", c->tensor);
        if (r->prepared->problem.dtype == ATTN_FP8)
            printf("RMSE %.3g, the FP8 baseline's %.3g, ", c->rmse, c->base_rmse);
        printf("largest error %.3g, at most %.0f%% of what the bar allows\n", c->error,
               100 * c->of_bar);
    }
}

// ---- CSV ----------------------------------------------------------------------------------------

void csv_text(const char *text) {
    putchar('"');
    for (; *text; text++) {
        if (*text == '"') putchar('"');
        putchar(*text);
    }
    putchar('"');
}

static void csv_number(bool known, double x) {
    putchar(',');
    if (known) printf("%.9g", x);
}

static void csv_bytes(bool known, uint64_t x) {
    putchar(',');
    if (known) printf("%" PRIu64, x);
}

static void csv_traffic(bool known, const struct attn_traffic *t) {
    csv_bytes(known, t->load);
    csv_bytes(known, t->store);
    csv_bytes(known, t->atomic);
    csv_bytes(known, t->tma_load);
    csv_bytes(known, t->tma_store);
}

static void csv_today(void) {
    char day[16];
    time_t now = time(NULL);
    strftime(day, sizeof day, "%Y-%m-%d", gmtime(&now));
    printf("%s,", day);
}

static void csv_problem(const struct reporter *to, const struct result *r) {
    const struct attn_problem *p = &r->prepared->problem;
    printf(",%s,%d,%s,%s,", r->kernel->step, r->kernel->rung, r->kernel->name, pass_name[r->pass]);
    csv_text(r->prepared->name);
    printf(",%" PRIu64 ",%s,%d,%d,%d,%d,%d,%d,%d,%.9g,%zu", to->seed, attn_dtype_name(p->dtype),
           p->batch, p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim, p->causal,
           p->scale, p->smem);
}

// In quotes: a template's arguments bring commas.
static void csv_launches(const struct measurement *m) {
    putchar(',');
    if (!m->has_time) return;
    for (int i = 0; i < m->launches && i < MACHINE_MAX_LAUNCHES; i++)
        printf("%s%s:%.2f", i ? ";" : "\"", m->launch[i].kernel, m->launch[i].microseconds);
    if (m->launches) putchar('"');
}

static void csv_header(void) {
    printf("date,device,driver,step,rung,kernel,pass,input,seed,dtype,batch,heads,kv_heads,seqlen_"
           "q,seqlen_k,head_dim,"
           "causal,scale,smem_limit,result,why,error_O,of_bar_O,error_LSE,of_bar_LSE,"
           "model_load,model_store,model_atomic,model_tma_load,model_tma_store,"
           "asked_load,asked_store,asked_atomic,asked_tma_load,asked_tma_store,"
           "L2_read,L2_write,DRAM_read,DRAM_write,distinct_read,distinct_write,"
           "compulsory,workspace,smem_per_block,bank_conflicts,launches,time_us,TFLOPs,peak_TFLOPs,"
           "peak_GBs,"
           "launch_us,command,error_dQ,of_bar_dQ,error_dK,of_bar_dK,error_dV,of_bar_dV,"
           "tiles,NxN_passes,rmse_O,rmse_LSE,base_rmse_O,fp8_scale,rotate,fp8_sums\n");
}

// The columns of a pass's checks: filled in rows of that pass.
static void csv_checks(const struct result *r, unsigned pass, int tensors) {
    for (int i = 0; i < tensors; i++) {
        bool known = r->pass == pass && i < r->checks;
        csv_number(known, known ? r->check[i].error : 0);
        csv_number(known, known ? r->check[i].of_bar : 0);
    }
}

// The forward's root mean square errors, and of FP8 how it was quantised and added.
static void csv_rmse(const struct reporter *to, const struct result *r) {
    const struct attn_problem *p = &r->prepared->problem;
    bool known = r->pass == ATTN_FORWARD && r->checks > 1, fp8 = p->dtype == ATTN_FP8;
    csv_number(known, known ? r->check[0].rmse : 0);
    csv_number(known, known ? r->check[1].rmse : 0);
    csv_number(known && fp8, known ? r->check[0].base_rmse : 0);
    printf(",%s,%s,%s", fp8 ? fp8_scale_name(p->fp8_scale) : "",
           !fp8        ? ""
           : p->rotate ? "1"
                       : "0",
           !fp8                      ? ""
           : !to->machine->simulated ? "hardware"
           : to->fp8_14_bits         ? "14bit"
                                     : "exact");
}

static void csv_row(const struct reporter *to, const struct result *r) {
    static const char *const words[] = {[RAN_RIGHT] = "ok",
                                        [RAN_WRONG] = "wrong",
                                        [RAN_UNMODELLED] = "bytes",
                                        [NOT_SUPPORTED] = "unsupported",
                                        [NOT_POSSIBLE] = "impossible",
                                        [REFUSED] = "refused"};
    const struct measurement *m = &r->measured;
    bool ran = has_run(r);
    csv_today();
    csv_text(to->machine->name);
    printf(",%s", to->machine->driver);
    csv_problem(to, r);
    printf(",%s,", words[r->outcome]);
    csv_text(r->why);
    csv_checks(r, ATTN_FORWARD, 2);
    csv_traffic(ran, &r->model);
    csv_traffic(m->has_asked, &m->asked);
    csv_bytes(m->has_l2, m->l2_read);
    csv_bytes(m->has_l2, m->l2_write);
    csv_bytes(m->has_dram, m->dram_read);
    csv_bytes(m->has_dram, m->dram_write);
    csv_bytes(m->has_distinct, m->distinct_read);
    csv_bytes(m->has_distinct, m->distinct_write);
    csv_bytes(true, r->compulsory);
    csv_bytes(ran, r->workspace);
    csv_bytes(ran, m->smem_per_block);
    csv_bytes(m->has_conflicts, m->bank_conflicts);
    csv_bytes(ran, (uint64_t)m->launches);
    double peak = m->has_time ? machine_peak_flops(r->prepared->problem.dtype) : 0;
    csv_number(m->has_time, m->microseconds);
    csv_number(m->has_time, m->has_time ? tflops(r) : 0);
    csv_number(peak > 0, peak / 1e12);
    csv_number(m->has_time, m->has_time ? machine_peak_bandwidth() / 1e9 : 0);
    csv_launches(m);
    putchar(',');
    csv_text(to->command);
    csv_checks(r, ATTN_BACKWARD, 3);
    putchar(',');
    csv_text(r->tiles);
    csv_number(r->has_matrix_passes, r->matrix_passes);
    csv_rmse(to, r);
    putchar('\n');
}

// ---- --profile ----------------------------------------------------------------------------------

static void print_profile(const struct reporter *to, const struct result *r) {
    profile_table(r->profile, r->profile_lines);
    if (r->profile_lines && !to->detail) printf("\n"); // the next kernel's row follows
}

static void csv_profile_header(void) { printf("step,kernel,pass,input," PROFILE_CSV_COLUMNS "\n"); }

static void csv_profile(const struct result *r) {
    for (int i = 0; i < r->profile_lines; i++) {
        printf("%s,%s,%s,", r->kernel->step, r->kernel->name, pass_name[r->pass]);
        csv_text(r->prepared->name);
        profile_csv(&r->profile[i]);
    }
}

static void print_csv(struct reporter *to, const struct result *r) {
    bool first = !to->titled;
    to->titled = r->prepared->number;
    if (to->profile) {
        if (first) csv_profile_header();
        csv_profile(r);
    } else {
        if (first) csv_header();
        csv_row(to, r);
    }
}

// ---- for main.c ---------------------------------------------------------------------------------

void report_result(struct reporter *to, const struct result *r) {
    report_progress(NULL);
    if (to->csv) {
        print_csv(to, r);
    } else {
        if (to->titled != r->prepared->number) print_title(to, r);
        print_row(to, r);
        if (to->detail && has_run(r) && !r->measured.error[0])
            print_detail(to, r); // after a fault the counts are of a part
        if (to->profile) print_profile(to, r);
    }
    fflush(stdout);
}

void report_progress(const char *format, ...) {
    if (!isatty(STDERR_FILENO)) return;
    fputs("\r\033[K", stderr);
    if (!format) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(stderr);
}

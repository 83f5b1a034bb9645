// profile.c - the table and the CSV of --profile: what each source line asks of memory.

#include "profile.h"
#include "report.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// ---- the source itself --------------------------------------------------------------------------

static void trim(char *text) {
    size_t n = strlen(text), skip = strspn(text, " \t");
    while (n > skip && isspace((unsigned char)text[n - 1])) n--;
    text[n] = 0;
    memmove(text, text + skip, n - skip + 1);
}

// The line without its indentation; empty when the file cannot be read from this folder.
static const char *source_text(const struct profile_line *l) {
    static char text[256];
    FILE *f = l->line ? fopen(l->file, "r") : NULL;
    int number = 0;
    bool whole = true; // a line longer than `text` comes in pieces, and only the first counts
    text[0] = 0;
    while (f && number < l->line && fgets(text, sizeof text, f)) {
        number += whole;
        whole = strchr(text, '\n') != NULL;
    }
    if (f) fclose(f);
    if (!f || number < l->line) text[0] = 0;
    trim(text);
    return text;
}

// ---- the table ----------------------------------------------------------------------------------

static struct profile_line sum(const struct profile_line *lines, int count) {
    struct profile_line all = {0};
    for (int i = 0; i < count; i++) {
        all.requests += lines[i].requests;
        all.lanes += lines[i].lanes;
        all.cost += lines[i].cost;
        all.ideal += lines[i].ideal;
        all.used += lines[i].used;
    }
    return all;
}

static double ratio(uint64_t a, uint64_t b) { return (double)a / (double)b; }

static void print_heading(bool shared, int wide) {
    const char *unit = shared ? "wavefronts" : "sectors";
    printf(
        "\n  %s memory; lanes, %s and the fewest %s possible (ideal) are per request of a warp\n",
        shared ? "shared" : "global", unit, unit);
    printf("  %15s %7s %11s %6s %10s %6s %9s  %-*s  %s\n", shared ? "wavefronts" : "bytes asked",
           "share", "requests", "lanes", unit, "ideal", shared ? "conflicts" : "used", wide,
           "access", "source");
}

// `all`: the section's total, for the share.
static void print_numbers(const struct profile_line *l, bool shared,
                          const struct profile_line *all) {
    printf("  %15" PRIu64 " %6.1f%%", shared ? l->cost : 32 * l->cost,
           100 * ratio(l->cost, all->cost));
    printf(" %11" PRIu64 " %6.1f", l->requests, ratio(l->lanes, l->requests));
    printf(" %10.2f %6.2f", ratio(l->cost, l->requests), ratio(l->ideal, l->requests));
    if (shared)
        printf(" %9" PRIu64, l->cost - l->ideal);
    else
        printf(" %8.1f%%", 100 * ratio(l->used, 32 * l->cost));
}

// "load K in scores"
static const char *describe(const struct profile_line *l) {
    static char text[100];
    snprintf(text, sizeof text, "%s %s in %s", l->kind, l->name, l->kernel);
    return text;
}

static void print_place(const struct profile_line *l, int wide) {
    const char *text = source_text(l);
    printf("  %-*s  %s", wide, describe(l), l->file);
    if (l->line) printf(":%d", l->line);
    printf("%s%s\n", text[0] ? "  " : "", text);
}

static void print_section(const struct profile_line *lines, int count) {
    if (!count) return;
    bool shared = lines[0].shared;
    struct profile_line all = sum(lines, count);
    int wide = 6; // "access"
    for (int i = 0; i < count; i++)
        if ((int)strlen(describe(&lines[i])) > wide) wide = (int)strlen(describe(&lines[i]));
    print_heading(shared, wide);
    for (int i = 0; i < count; i++) {
        print_numbers(&lines[i], shared, &all);
        print_place(&lines[i], wide);
    }
    print_numbers(&all, shared, &all);
    printf("  all\n");
}

void profile_table(const struct profile_line *lines, int count) {
    int global = 0;
    while (global < count && !lines[global].shared) global++;
    print_section(lines, global);
    print_section(lines + global, count - global);
}

// ---- CSV ----------------------------------------------------------------------------------------

// The cells of one memory; the other one's are empty.
static void csv_cells(bool known, const uint64_t *cell, int cells) {
    for (int i = 0; i < cells; i++) {
        putchar(',');
        if (known) printf("%" PRIu64, cell[i]);
    }
}

void profile_csv(const struct profile_line *l) {
    putchar(',');
    csv_text(l->kernel);
    putchar(',');
    csv_text(l->file);
    printf(",%d,%s,%s,", l->line, l->shared ? "shared" : "global", l->kind);
    csv_text(l->name);
    printf(",%" PRIu64 ",%" PRIu64, l->requests, l->lanes);
    csv_cells(!l->shared, (const uint64_t[]){l->cost, l->ideal, l->used}, 3);
    csv_cells(l->shared, (const uint64_t[]){l->cost, l->ideal}, 2);
    putchar(',');
    csv_text(source_text(l));
    putchar('\n');
}

// profile.c - which source line asks for what: the counts behind --profile.
//
// The meter hands over each request that it has counted. Each worker has a hash table of its own,
// so that nobody waits for a lock, with a row for each instruction (pc) and each buffer or
// __shared__ array that the instruction goes to. At the end of a launch the workers' rows are added
// to one table, and when somebody asks, instructions become source lines, and rows of one line one
// row.

#include "internal.h"
#include "profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
    const char *kernel; // the launch's text; NULL: an empty place of the table
    uint32_t pc;
    uint8_t kind, space;
    uint64_t start, end; // of the buffer, or of the array in the TLS segment
    char name[32];
    uint64_t requests, lanes, cost, ideal, used; // as in struct profile_line
};

static struct profile all; // rows of all launches since sim_reset

static void *make(size_t count, size_t size) { return sim_memory(calloc(count + 1, size)); }

// ---- the table: open addressing, a power of two of places, at most half of them taken -----------

static bool is_row_of(const struct row *r, const struct row *key) {
    return r->pc == key->pc && r->kind == key->kind && r->space == key->space &&
           r->kernel == key->kernel && key->start >= r->start && key->start < r->end;
}

// The row that holds key->start, or the empty place where it belongs.
static struct row *place_of(const struct profile *p, const struct row *key) {
    uint32_t hash = (key->pc * 4 + key->kind) * 2654435761u; // Knuth's: 2^32 / golden ratio
    for (uint32_t i = hash >> 8;; i++) {
        struct row *r = &p->row[i & (p->room - 1)];
        if (!r->kernel || is_row_of(r, key)) return r;
    }
}

static void grow(struct profile *p) {
    struct profile old = *p;
    p->room = old.room ? 2 * old.room : 256;
    p->row = make(p->room, sizeof *p->row);
    for (uint32_t i = 0; i < old.room; i++)
        if (old.row[i].kernel) *place_of(p, &old.row[i]) = old.row[i];
    free(old.row);
}

static struct row *add_row(struct profile *p, const struct row *new) {
    if (2 * (p->used + 1) > p->room) grow(p);
    p->used++;
    struct row *r = place_of(p, new);
    *r = *new;
    return r;
}

static struct row *find_row(const struct profile *p, const struct row *key) {
    struct row *r = p->room ? place_of(p, key) : NULL;
    return r && r->kernel ? r : NULL;
}

// ---- the row of an access -----------------------------------------------------------------------

static void name_buffer(struct row *r, uint64_t address) {
    const struct buffer *b = &sim_buffer[sim_buffer_at(address)];
    r->start = b->start;
    r->end = b->start + b->size;
    snprintf(r->name, sizeof r->name, "%s", b->name);
}

static void name_array(struct row *r, uint64_t offset) {
    size_t start, size;
    snprintf(r->name, sizeof r->name, "%s", symbols_shared_name(offset, &start, &size));
    r->start = start;
    r->end = start + size;
    if (offset >= r->end) r->end = UINT64_MAX; // a stripped program has no names
}

static struct row *row_of(struct worker *w, const struct access *a) {
    struct row key = {.kernel = sim_now->kernel, .pc = a->pc, .kind = a->kind, .space = a->space};
    key.start = a->space == SHARED ? a->address - w->shared_base : a->address;
    struct row *r = find_row(&w->profile, &key);
    if (r) return r;
    if (a->space == SHARED)
        name_array(&key, key.start);
    else
        name_buffer(&key, key.start);
    return add_row(&w->profile, &key);
}

// ---- one request --------------------------------------------------------------------------------

// The different sectors that some lanes touch, and which of a sector's 32 bytes, a bit each.
struct footprint {
    uint64_t sector[32];
    uint32_t bytes[32];
    int sectors;
};

// An access of at most 16 bytes at a multiple of its size lies in one sector.
static void touch(struct footprint *f, const struct access *a) {
    uint32_t bytes = ((1u << a->size) - 1) << a->address % 32;
    int i = f->sectors - 1;
    while (i >= 0 && f->sector[i] != a->address / 32) i--;
    if (i < 0) {
        i = f->sectors++;
        f->sector[i] = a->address / 32;
        f->bytes[i] = 0;
    }
    f->bytes[i] |= bytes;
}

static void count_footprint(struct row *r, const struct footprint *f, const struct sectors *s) {
    unsigned used = 0;
    for (int i = 0; i < f->sectors; i++) used += (unsigned)__builtin_popcount(f->bytes[i]);
    r->requests++;
    for (int i = 0; i < s->count; i++)
        if (s->number[i] * 32 >= r->start && s->number[i] * 32 < r->end) r->cost += s->times[i];
    r->ideal += (used + 31) / 32;
    r->used += used;
}

// Lanes of one request may follow pointers into different buffers. No sector lies in two of them,
// so each buffer's part is counted in a row of its own, and the sectors still add up.
void profile_global(struct worker *w, const struct request *request, const struct sectors *s) {
    uint32_t left = UINT32_MAX >> (32 - request->lanes);
    while (left) {
        struct row *r = row_of(w, request->lane[__builtin_ctz(left)]);
        struct footprint f = {.sectors = 0};
        for (int i = 0; i < request->lanes; i++) {
            const struct access *a = request->lane[i];
            if (a->address < r->start || a->address >= r->end) continue;
            touch(&f, a);
            r->lanes++;
            left &= ~(1u << i);
        }
        count_footprint(r, &f, s);
    }
}

void profile_shared(struct worker *w, const struct request *request, int wavefronts, int ideal) {
    struct row *r = row_of(w, request->lane[0]);
    r->requests++;
    r->lanes += (unsigned)request->lanes;
    r->cost += (unsigned)wavefronts;
    r->ideal += (unsigned)ideal;
}

// A TMA copy is one thread's.
void profile_box(struct worker *w, const void *global, size_t bytes, uint64_t sectors, int kind,
                 uint32_t pc) {
    struct access a = {
        .address = (uintptr_t)global, .pc = pc, .kind = (uint8_t)kind, .space = GLOBAL};
    struct row *r = row_of(w, &a);
    r->requests++;
    r->lanes++;
    r->cost += sectors;
    r->ideal += (bytes + 31) / 32;
    r->used += bytes;
}

// ---- at the end of a launch ---------------------------------------------------------------------

void profile_add(struct profile *from) {
    for (uint32_t i = 0; i < from->room; i++) {
        const struct row *r = &from->row[i];
        if (!r->kernel) continue;
        struct row *sum = find_row(&all, r);
        if (!sum) {
            add_row(&all, r);
            continue;
        }
        sum->requests += r->requests;
        sum->lanes += r->lanes;
        sum->cost += r->cost;
        sum->ideal += r->ideal;
        sum->used += r->used;
    }
    profile_forget(from);
}

void profile_forget(struct profile *p) {
    free(p->row);
    *p = (struct profile){0};
}

void profile_reset(void) { profile_forget(&all); }

// ---- from instructions to lines -----------------------------------------------------------------

static struct profile_line line_of(const struct row *r, const char *place) {
    struct profile_line l = {.shared = r->space == SHARED,
                             .kind = memory_verb(r->kind),
                             .requests = r->requests,
                             .lanes = r->lanes,
                             .cost = r->cost,
                             .ideal = r->ideal,
                             .used = r->used};
    const char *colon = strrchr(place, ':');
    l.line = colon ? atoi(colon + 1) : 0;
    snprintf(l.file, sizeof l.file, "%.*s", l.line ? (int)(colon - place) : (int)strlen(place),
             place);
    snprintf(l.name, sizeof l.name, "%s", r->name);
    sim_kernel_name(r->kernel, l.kernel, sizeof l.kernel);
    return l;
}

static bool same_line(const struct profile_line *a, const struct profile_line *b) {
    return a->line == b->line && a->shared == b->shared && a->kind == b->kind &&
           !strcmp(a->name, b->name) && !strcmp(a->file, b->file) && !strcmp(a->kernel, b->kernel);
}

static int add_line(struct profile_line *lines, int count, const struct profile_line *new) {
    int i = 0;
    while (i < count && !same_line(&lines[i], new)) i++;
    if (i == count) {
        lines[i] = *new;
        return count + 1;
    }
    lines[i].requests += new->requests;
    lines[i].lanes += new->lanes;
    lines[i].cost += new->cost;
    lines[i].ideal += new->ideal;
    lines[i].used += new->used;
    return count;
}

// Global memory before shared, then the most expensive first; equal ones as in the source.
static int compare(const void *left, const void *right) {
    const struct profile_line *a = left, *b = right;
    int order;
    if (a->shared != b->shared) return a->shared - b->shared;
    if (a->cost != b->cost) return a->cost < b->cost ? 1 : -1;
    if ((order = strcmp(a->file, b->file))) return order;
    if (a->line != b->line) return a->line - b->line;
    if ((order = strcmp(a->kind, b->kind))) return order;
    if ((order = strcmp(a->name, b->name))) return order;
    return strcmp(a->kernel, b->kernel);
}

// The rows that the table holds, one after the other.
static int list_rows(const struct row **out, uint32_t *pc) {
    int n = 0;
    for (uint32_t i = 0; i < all.room; i++)
        if (all.row[i].kernel) {
            out[n] = &all.row[i];
            pc[n++] = all.row[i].pc;
        }
    return n;
}

int sim_profile(struct profile_line **out) {
    struct profile_line *lines = make(all.used, sizeof *lines);
    const struct row **row = make(all.used, sizeof *row);
    uint32_t *pc = make(all.used, sizeof *pc);
    struct place *place = make(all.used, sizeof *place);
    int rows = list_rows(row, pc), count = 0;
    symbols_places(pc, rows, place);
    for (int i = 0; i < rows; i++) {
        struct profile_line l = line_of(row[i], place[i].text);
        count = add_line(lines, count, &l);
    }
    qsort(lines, (size_t)count, sizeof *lines, compare);
    free(row), free(pc), free(place);
    *out = lines;
    return count;
}

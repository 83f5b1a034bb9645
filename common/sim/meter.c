// meter.c - from what lanes do to what a warp asks of the memory system.
//
// On a GPU the 32 lanes of a warp execute an instruction together, and the load/store unit turns
// their 32 addresses into one request: the set of 32-byte sectors they touch. Here the lanes run
// one after the other, each leaving a log of its accesses. When the whole warp has come to rest (at
// a barrier, in a collective, at the end), the logs are put together again: of all lanes' next
// accesses those at the smallest pc form one request. Lanes that are behind in the code catch up
// first, which is how a diverged warp reconverges; and since the end of a loop's iteration leaves a
// mark (memory.c), a lane that had nothing to load in this iteration waits at the mark for the
// others instead of running one iteration ahead of them.

#include "internal.h"

#include <string.h>

// ---- global memory: sectors --------------------------------------------------------------------
//
// Each rule is what an H200 counted (notes/results/h200_instructions.csv; `make test` compares).

// Where sector `number` stands in the list. Most requests walk upwards: only what is not larger
// than all others has to be looked for.
static int find_or_add(struct sectors *s, uint64_t number) {
    if (s->count && number <= s->largest) {
        for (int i = s->count - 1; i >= 0; i--)
            if (s->number[i] == number) return i;
    } else
        s->largest = number;
    s->number[s->count] = number;
    s->times[s->count] = 0;
    return s->count++;
}

// Lanes that add to one word do so one after the other.
static uint8_t lanes_at_word_of(const struct request *r, int lane) {
    uint8_t lanes = 0;
    for (int i = 0; i < r->lanes; i++)
        lanes += r->lane[i]->address / 4 == r->lane[lane]->address / 4;
    return lanes;
}

// cp.async: does a lane before this one copy from the same line of HBM, 128 bytes, to the same
// sector of shared memory? It is such pairs that count. So a copy from where no sector begins costs
// more: a line fills three sectors of shared memory and halves of two others, and counts 5.
static bool is_counted_before(const struct request *r, int lane) {
    const struct access *a = r->lane[lane];
    for (int i = lane - 1; i >= 0; i--)
        if (r->lane[i]->address / 128 == a->address / 128 &&
            r->lane[i][1].address / 32 == a[1].address / 32) // the entry behind it: the store
            return true;
    return false;
}

static void find_sectors(const struct request *r, struct sectors *s) {
    bool copy = r->lane[0]->flags & COPY, atomic = r->lane[0]->kind == SIM_ATOMIC;
    s->count = 0;
    for (int i = 0; i < r->lanes; i++) {
        uint8_t *times = &s->times[find_or_add(s, r->lane[i]->address / 32)];
        if (copy)
            *times += !is_counted_before(r, i);
        else if (!atomic)
            *times = 1;
        else if (lanes_at_word_of(r, i) > *times)
            *times = lanes_at_word_of(r, i);
    }
}

static void count_sector(struct worker *w, uint64_t sector, int kind, int times) {
    int b = sim_buffer_at(sector * 32);
    struct buffer *buffer = &sim_buffer[b];
    w->tally.buffer[b].sectors[kind] += (unsigned)times;
    uint8_t *touched = &buffer->touched[sector - buffer->start / 32], bit = (uint8_t)(1 << kind);
    if (!(__atomic_load_n(touched, __ATOMIC_RELAXED) & bit))
        __atomic_fetch_or(touched, bit, __ATOMIC_RELAXED);
}

static void count_global(struct worker *w, const struct request *r) {
    struct sectors s;
    find_sectors(r, &s);
    for (int i = 0; i < s.count; i++) count_sector(w, s.number[i], r->lane[0]->kind, s.times[i]);
    if (w->profiling) profile_global(w, r, &s);
}

// ---- shared memory: wavefronts ---------------------------------------------------------------

// Shared memory has 32 banks of 4 bytes; word w lies in bank w mod 32. In one wavefront a bank
// delivers one word, to any number of lanes. So a group of lanes takes as many wavefronts as the
// busiest bank has different words. Wider accesses go in groups of fewer lanes: 16 at 8 bytes, 8 at
// 16 bytes, so that a conflict-free group is 128 bytes in each case.
static int group_wavefronts(const struct request *r, int first, int last) {
    uint64_t word[32][32];
    uint8_t words[32] = {0};
    int worst = 1;
    for (int i = first; i < last; i++) {
        uint64_t from = r->lane[i]->address / 4,
                 to = (r->lane[i]->address + r->lane[i]->size - 1) / 4;
        for (uint64_t a = from; a <= to; a++) {
            int bank = a % 32, k = words[bank] - 1;
            while (k >= 0 && word[bank][k] != a) k--;
            if (k >= 0) continue;
            word[bank][words[bank]++] = a;
            if (words[bank] > worst) worst = words[bank];
        }
    }
    return worst;
}

static void count_shared(struct worker *w, const struct request *r) {
    int size = r->lane[0]->size, group = 128 / (size < 4 ? 4 : size), wavefronts = 0, groups = 0;
    for (int first = 0, last; first < r->lanes; first = last) {
        for (last = first; last < r->lanes && r->number[last] / group == r->number[first] / group;)
            last++;
        wavefronts += group_wavefronts(r, first, last);
        groups++;
    }
    w->tally.wavefronts += (unsigned)wavefronts;
    w->tally.ideal_wavefronts += (unsigned)groups;
    if (w->profiling) profile_shared(w, r, wavefronts, groups);
}

// ---- putting the lanes' logs together ----------------------------------------------------------

static void count_request(struct worker *w, struct warp *warp, const struct request *r) {
    if (r->lane[0]->space == MARK) {
        detect_turn(w, warp, r);
        return;
    }
    if (r->lane[0]->space > MARK) {
        sm90_replay(w, r);
        return;
    }
    detect_request(w, r);
    if (r->lane[0]->flags & (LANDED | UNCOUNTED)) return;
    w->tally.accesses += (unsigned)r->lanes;
    if (r->lane[0]->space == GLOBAL) {
        w->global_requests++;
        count_global(w, r);
    } else
        count_shared(w, r);
}

// Where all lanes' logs stand. Each ends with an entry of pc END_OF_LOG, the largest.
struct heads {
    const struct access *next[32];
    int lanes;
    uint32_t smallest; // of their pcs
};

// The lanes' accesses at the smallest pc; one walk over the heads finds the next such pc, too.
static void take_request(struct heads *h, struct request *r) {
    uint32_t pc = h->smallest, smallest = END_OF_LOG;
    r->lanes = 0;
    for (int i = 0; i < h->lanes; i++) {
        const struct access *a = h->next[i];
        if (a->pc == pc) {
            r->number[r->lanes] = i;
            r->lane[r->lanes++] = a;
            h->next[i] = ++a;
        }
        if (a->pc < smallest) smallest = a->pc;
    }
    h->smallest = smallest;
}

static struct heads start(struct warp *warp) {
    struct heads h = {.lanes = warp->size, .smallest = END_OF_LOG};
    for (int i = 0; i < warp->size; i++) {
        struct thread *t = warp->lane[i];
        t->log_next->pc = END_OF_LOG;
        h.next[i] = t->log;
        if (t->log->pc < h.smallest) h.smallest = t->log->pc;
    }
    return h;
}

// Is a log used up whose lane has more to come? Then nobody knows which of the next accesses is
// first.
static bool must_stop(const struct heads *h, const struct warp *warp) {
    for (int i = 0; i < h->lanes; i++)
        if (warp->lane[i]->log_full && h->next[i] == warp->lane[i]->log_next) return true;
    return false;
}

static void keep_rest(const struct heads *h, struct warp *warp) {
    for (int i = 0; i < h->lanes; i++) {
        struct thread *t = warp->lane[i];
        size_t left = (size_t)(t->log_next - h->next[i]);
        memmove(t->log, h->next[i], left * sizeof *t->log);
        t->log_next = t->log + left;
    }
}

void meter_warp(struct worker *w, struct warp *warp) {
    struct heads h = start(warp);
    struct request r = {.warp = warp};
    bool some_full = false;
    for (int i = 0; i < warp->size; i++) some_full |= warp->lane[i]->log_full;
    while (h.smallest != END_OF_LOG) {
        if (some_full && must_stop(&h, warp)) break;
        take_request(&h, &r);
        count_request(w, warp, &r);
    }
    keep_rest(&h, warp);
}

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

enum { MAX_SECTORS = 64 }; // 32 lanes; an aligned access of 16 bytes or less touches one

// Adds a sector to the set; most requests walk upwards, so look at the end first.
static int add_sector(uint64_t *set, int n, uint64_t sector) {
    if (n == 0 || sector > set[n - 1]) {
        set[n] = sector;
        return n + 1;
    }
    for (int i = n - 1; i >= 0; i--)
        if (set[i] == sector) return n;
    // Keep the largest at the end, so that the shortcut above stays right.
    set[n] = set[n - 1];
    set[n - 1] = sector;
    return n + 1;
}

static void count_sector(struct worker *w, uint64_t sector, int kind) {
    int b = sim_buffer_at(sector * 32);
    struct buffer *buffer = &sim_buffer[b];
    w->tally.buffer[b].sectors[kind]++;
    uint8_t *touched = &buffer->touched[sector - buffer->start / 32], bit = (uint8_t)(1 << kind);
    if (!(__atomic_load_n(touched, __ATOMIC_RELAXED) & bit))
        __atomic_fetch_or(touched, bit, __ATOMIC_RELAXED);
}

static void count_global(struct worker *w, const struct request *r) {
    uint64_t set[MAX_SECTORS];
    int n = 0;
    for (int i = 0; i < r->lanes; i++) n = add_sector(set, n, r->lane[i]->address / 32);
    for (int i = 0; i < n; i++) count_sector(w, set[i], r->lane[0]->kind);
    if (w->profiling) profile_global(w, r);
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
};

static uint32_t smallest_pc(const struct heads *h) {
    uint32_t pc = h->next[0]->pc;
    for (int i = 1; i < h->lanes; i++)
        if (h->next[i]->pc < pc) pc = h->next[i]->pc;
    return pc;
}

static void take_request(struct heads *h, uint32_t pc, struct request *r) {
    r->lanes = 0;
    for (int i = 0; i < h->lanes; i++)
        if (h->next[i]->pc == pc) {
            r->number[r->lanes] = i;
            r->lane[r->lanes++] = h->next[i]++;
        }
}

static struct heads start(struct warp *warp) {
    struct heads h = {.lanes = warp->size};
    for (int i = 0; i < warp->size; i++) {
        struct thread *t = warp->lane[i];
        t->log_next->pc = END_OF_LOG;
        h.next[i] = t->log;
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
    for (uint32_t pc; (pc = smallest_pc(&h)) != END_OF_LOG;) {
        if (some_full && must_stop(&h, warp)) break;
        take_request(&h, pc, &r);
        count_request(w, warp, &r);
    }
    keep_rest(&h, warp);
}

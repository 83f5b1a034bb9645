// internal.h - what the simulator's own files share.
#ifndef SIM_INTERNAL_H
#define SIM_INTERNAL_H

#include "fiber.h"
#include "sim.h"

#include <string.h>

// ---- one access, as a hook saw it -----------------------------------------------------------

// `pc` is where in the executable the access stands (the hook's return address minus the load
// address): lanes that access at the same pc do so in the same instruction.
// No accesses are: MARK, the lane jumped backwards from this pc; and what order.c replays: RELEASE,
// it arrived at a barrier; FENCE, fence.proxy.async; BOX, it started a TMA copy. `address` is then
// a pointer to what belongs to it.
enum space { GLOBAL, SHARED, MARK, RELEASE, FENCE, BOX };
enum {
    PART_SYNCS = 1, // the lane's part_syncs when it made the access
    BY_WARP = 2,    // what is loaded goes to all lanes of the warp (ldmatrix)
    IN_FLIGHT = 4,  // a store that only begins here: a copy in the background (async.c)
    LANDED = 8,     // and here it is complete; already counted
    UNCOUNTED = 16, // for the detectors alone
    ASYNC = 32,     // by the async proxy: TMA or wgmma
    COPY = 64,      // a load whose store, to shared memory, is the lane's next entry (async.c)
};
struct access {
    uint64_t address;
    uint32_t pc;
    uint8_t size;  // bytes, at most 16
    uint8_t kind;  // enum sim_kind
    uint8_t space; // enum space
    uint8_t flags; // of the enum above
};
enum { END_OF_LOG = UINT32_MAX, LOG_ENTRIES = 2048 };

struct place {
    char text[300];   // "step00_naive/attention.cu:41"
    char caller[300]; // where the helper that this is in is called; "": it is in the kernel itself
};

// ---- CUDA threads, warps, blocks --------------------------------------------------------------

// Copies in the background, oldest first. A group is closed by a commit; `groups` of them are, and
// copies started now belong to the next.
struct copies {
    struct copy *copy;
    uint32_t count, room, groups;
};

struct thread {
    struct fiber fiber;
    struct sim_dim3 idx;
    int id, lane;
    struct warp *warp;
    bool exited;
    const char *waits_for;  // NULL: running or ready
    struct sim_place where; // of the wait
    struct thread *next;    // in the queue it stands in
    void *argument;         // brought to a warp collective

    // LOG_ENTRIES of them, and two places: for a copy's store, beside its load in any case, and for
    // the meter's end mark.
    struct access *log;
    struct access *log_next, *log_end;
    bool log_full;        // it waits for room
    uint32_t last_block;  // pc of the basic block it entered last
    uint8_t part_syncs;   // 1: it met a part of its warp in __syncwarp() since the whole last met
    struct copies copies; // that it has started (async.c)

    // Hopper (sm90.h): NULL or 0 in blocks that use none of it.
    struct knowledge *known;     // whose accesses are over, as far as this thread can tell
    const struct phases *awaits; // it waits for phase `awaited` of this barrier
    uint32_t awaited;
    uint32_t fenced;             // time of its last fence.proxy.async
    uint32_t store_groups;       // of TMA stores, closed
    uint32_t store_end;          // it waits for the groups before this one; 0: it does not
    bool store_read;             // for their reading of shared memory only
    struct registers *registers; // arrays that wgmma uses (wgmma.c)
    bool wgmma_fenced;           // since it waited last
};

struct queue {
    struct thread *first, *last;
};

// Some lanes of a warp on their way to a collective.
struct meeting {
    uint32_t mask, arrived; // arrived == 0: this place is free
    sim_warp_op op;
    const char *what;
    struct sim_place where; // of the first to arrive
};

// A loop that a warp is in: where it jumps back from, and which lanes did so last time.
struct loop {
    uint32_t pc, lanes;
    uint64_t global_requests; // of the worker, then
};
enum { MAX_LOOPS = 16 };

struct warp {
    struct thread *lane[32];
    int size, running;          // running: neither waiting nor exited
    uint32_t sync_clock;        // of the last __syncwarp() of all lanes
    struct meeting meeting[32]; // a lane waits in one at most, so there are never more
    int loops;
    struct loop loop[MAX_LOOPS]; // the innermost last
    uint32_t told_from, told_to; // the last row of the timeline
    int told_line;
};

struct barrier {
    int arrived, votes, result;
    struct queue waiting;
    const char *what;
    struct sim_place where; // of the first to arrive
};

// ---- counts ------------------------------------------------------------------------------------

struct traffic {
    uint64_t bytes[SIM_KINDS], sectors[SIM_KINDS];
};

struct tally {
    struct traffic buffer[SIM_MAX_BUFFERS];
    uint64_t shared_bytes[SIM_KINDS];
    uint64_t accesses, wavefronts, ideal_wavefronts;
};

// Counts for each access instruction (profile.c).
struct profile {
    struct row *row; // a hash table
    uint32_t room, used;
};

// One per OS thread: runs one block at a time.
struct worker {
    struct thread *self;   // the CUDA thread that runs now; NULL outside kernels
    bool fast;             // count bytes only
    bool profiling;        // count for each source line, too
    bool fp8_14_bits;      // as in sim_options
    uintptr_t shared_base; // this OS thread's copy of the TLS segment: __shared__ memory
    size_t shared_bytes;
    uintptr_t stack_base; // the OS thread's stack, around it: nothing there is a kernel's
    size_t stack_bytes;
    const uint8_t *shared_owner; // per byte: may this launch use it (symbols.c)
    struct tally tally;
    struct profile profile;

    struct sim_dim3 block_idx;
    uint32_t block;           // its number in the grid
    uint64_t global_requests; // so far
    bool made_atomic;         // this block has made an atomic operation
    // Time, for detect.c: goes on by one at each block's start, barrier and full __syncwarp().
    uint32_t clock, block_clock, barrier_clock; // now; this block's start; its last barrier
    struct cell *shared_cell;                   // one for each 4 bytes of the TLS segment
    // A read of what nobody has written yet: an error, unless it was a race. Or a race of lanes of
    // one warp, of which other warps may still turn out to be a part.
    char suspicion[900];
    bool suspicion_is_global;
    uintptr_t suspicion_address; // 0: a race
    const struct thread *suspect;
    int threads, warps, live;
    int made;              // of the threads' fibers and logs; a small block uses a part of them
    struct thread *thread; // room for as many as a block can have
    struct warp *warp;
    struct queue ready;
    struct barrier barrier;
    struct sm90 *sm90; // NULL: nobody has used Hopper's instructions yet
    bool uses_sm90;    // this block does
    uint32_t step;     // of this block, for the timeline: see there
    struct fiber home; // the OS thread's own stack
    char place[640];   // symbols_place() answers here
    char name[100];    // and memory_name() here
};

// The only thread-local variable of the simulator's own: all others in the program are __shared__.
extern _Thread_local struct worker *sim_worker;
extern const struct sim_launch *sim_now; // the launch in progress, NULL between launches

// ---- launch.c -----------------------------------------------------------------------------------

// Ends the launch with an error, in one line, and never returns. From a CUDA thread only: sim_fail
// blames the one that runs, sim_fail_at another of its block.
_Noreturn void sim_fail_at(const struct thread *, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// "<what>, thread (…) of block (…)"
void sim_blame(const struct thread *, const char *what, char *out, size_t size);
#define sim_fail(...) sim_fail_at(sim_worker->self, __VA_ARGS__)
bool sim_fast(void);                   // --fast: bytes only
bool sim_block_fenced(uint32_t block); // has it called __threadfence() in this launch?
void sim_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
// "(flash<64, 64>)" as LAUNCH was given it -> "flash<64, 64>".
void sim_kernel_name(const char *text, char *out, size_t size);

// ---- scheduler.c --------------------------------------------------------------------------------

// Are these names of one instruction? (Mostly they are one and the same literal.)
static inline bool same_name(const char *a, const char *b) { return a == b || !strcmp(a, b); }
void scheduler_run_block(struct worker *, uint64_t number);
// The running thread's log is full: returns when there is room again.
void scheduler_catch_up(struct worker *);
// The running thread waits until somebody wakes it.
void scheduler_wait(const char *what, struct sim_place);
void scheduler_wake(struct thread *);
// Puts together what the running thread's warp has logged, if its other lanes are at rest.
void scheduler_rest(struct worker *);
// All 32 lanes meet at one instruction of the source, which PTX calls .sync.aligned.
void scheduler_whole_warp(sim_warp_op, void *mine, const char *what, struct sim_place);

// ---- memory.c ----------------------------------------------------------------------------------

struct buffer {
    uintptr_t start;
    size_t size;
    char name[24];
    bool live;
    bool input;        // written by the host: a kernel may only read it
    uint8_t *written;  // per 4 bytes, a bit for each byte that holds a value
    struct cell *cell; // per 4 bytes: who touched it in this launch (detect.c)
    struct traffic total;
    uint64_t distinct[SIM_KINDS];
    uint8_t *touched; // per sector, bit 1 << kind: in this launch
};
extern struct buffer sim_buffer[SIM_MAX_BUFFERS]; // number 0 is "no buffer"
extern int sim_buffers;
int sim_buffer_at(uintptr_t address); // 0 if none
void memory_launch_begin(void);       // clears `touched`
void memory_launch_end(void);         // adds `touched` to `distinct`

// Passes on what malloc() or one of its kin gave. If that is nothing the program ends, with status
// 3: this is for the simulator's own notes, which are small, and without which it cannot go on.
void *sim_memory(void *given);

const char *memory_verb(int kind); // "load", "store", "atomic"

// What an instruction of ptx.h does with memory: checked, counted and logged like an access that
// the compiler's hooks have seen.
void memory_access(const void *, unsigned size, int kind, unsigned flags, uint32_t pc);
// A line of the log that nobody counts, for detect.c alone.
void memory_note(const void *, unsigned size, int kind, unsigned flags, uint32_t pc);
bool memory_is_shared(const void *);
void memory_log(enum space, const void *, uint32_t pc); // an entry that is no access
bool memory_owns(const void *shared, size_t bytes);     // does the launch have all of these?
const char *memory_name(const void *);                  // "smem + 16", until asked again
bool memory_is_global(const void *);

struct request; // meter.c, below

// ---- sm90.h: only what the other files call -----------------------------------------------------

void sm90_block_begins(struct worker *);
void sm90_thread_exits(struct thread *);
void sm90_forget(struct thread *); // at the start of a block: nothing is under way
void sm90_block_ends(struct worker *);
bool sm90_step(struct worker *); // nobody can run: does something happen by itself?
void sm90_explain(struct worker *, char *out, size_t size);     // a deadlock
void sm90_replay(struct worker *, const struct request *);      // RELEASE, FENCE, BOX
void order_warp(struct worker *, struct warp *, uint32_t mask); // the lanes met in __syncwarp()
// Does the thread know that what an agent (a thread, or one of sm90.h) did at `time` is over?
bool order_knows(const struct thread *, unsigned agent_thread, uint32_t time);
uint32_t order_latest(const struct thread *); // the youngest thing that it knows to be over
void wgmma_touch(struct thread *, uintptr_t, unsigned size, int kind, uint32_t pc);

// ---- timeline.c ---------------------------------------------------------------------------------

bool timeline_wanted(void);
void timeline_launch(void);
void timeline_wait(const struct thread *, uint32_t from, const char *what, struct sim_place);
void timeline_exit(const struct thread *);
// An interval that ends now.
void timeline_add(const char *who, int number, const char *event, uint32_t from, const char *what,
                  struct sim_place);

// ---- async.c ------------------------------------------------------------------------------------

void async_forget(struct thread *); // at the start of a block: what was in flight never lands

// ---- meter.c ------------------------------------------------------------------------------------

// What some lanes of a warp do in one instruction.
struct request {
    const struct warp *warp;
    const struct access *lane[32];
    int number[32]; // which lanes they are, ascending
    int lanes;
};

// The sectors of HBM that a request touches, and how often each counts.
struct sectors {
    uint64_t number[32]; // 32 lanes; an aligned access of 16 bytes or less lies in one sector
    uint8_t times[32];
    int count;
    uint64_t largest; // of the numbers
};

// Puts the lanes' logs together and counts, as far as it is known what each lane does next.
void meter_warp(struct worker *, struct warp *);

// ---- profile.c ----------------------------------------------------------------------------------

void profile_global(struct worker *, const struct request *, const struct sectors *);
void profile_shared(struct worker *, const struct request *, int wavefronts, int ideal);
void profile_box(struct worker *, const void *global, size_t bytes, uint64_t sectors, int kind,
                 uint32_t pc);
void profile_add(struct profile *); // to the sums of all workers; empties this one
void profile_forget(struct profile *);
void profile_reset(void); // forgets the sums

// ---- detect.c -----------------------------------------------------------------------------------

void detect_request(struct worker *, const struct request *);
// The lanes of `request` jumped backwards together: is somebody missing who was there last time?
void detect_turn(struct worker *, struct warp *, const struct request *);
size_t detect_cell_bytes(size_t bytes); // that the cells for so many bytes of memory take
// A TMA copy or wgmma reads or writes `bytes` bytes, multiples of 16; flags as in struct access.
// `agent` is who does it, for others to see; the accesses of `thread` are what it comes after.
void detect_range(const struct thread *thread, unsigned agent, const void *, size_t bytes, int kind,
                  unsigned flags, uint32_t pc);
void detect_settle(struct worker *);         // at a barrier, and at the end of a block
struct cell *detect_new_cells(size_t bytes); // NULL: no memory
void detect_free_cells(struct cell *, size_t bytes);
void detect_forget(struct cell *, size_t bytes); // at the start of a launch

// ---- faults.c -----------------------------------------------------------------------------------

void faults_catch(void); // makes a wild pointer an error of the kernel

// ---- symbols.c ---------------------------------------------------------------------------------

extern uintptr_t sim_load_address; // of the executable
static inline uint32_t symbols_pc(const void *return_address) {
    return (uint32_t)((uintptr_t)return_address - sim_load_address);
}
// "step00_naive/attention.cu:41" of the access before `pc`, or "step03_fused_fwd/tiles.h:109
// (called at step03_fused_fwd/1_fused.cu:64)"; valid until this thread asks again.
const char *symbols_place(uint32_t pc);
// For many pcs at once.
void symbols_places(const uint32_t *pc, int count, struct place *out);
// Bytes of __shared__ arrays that the kernel declares.
size_t symbols_static_smem(const void *kernel);
// A map of the TLS segment: 1 for each byte of the kernel's __shared__ arrays and of the first
// `dynamic` bytes of smem. Valid until the next call.
const uint8_t *symbols_shared_map(const void *kernel, size_t dynamic);
// Which of the running kernel's __shared__ arrays is at or before this offset of the TLS segment;
// "": it has none.
const char *symbols_shared_name(size_t offset, size_t *start, size_t *size);
// Code and constants of the executable: a kernel may read them.
bool symbols_is_constant(uintptr_t address);
// This OS thread's copy of the TLS segment, and its stack.
void symbols_own_segments(struct worker *);

#endif

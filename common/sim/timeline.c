// timeline.c - --timeline FILE: who waits for what, and what is under way meanwhile.
//
// There are no clocks here. A block's time goes on by one step whenever none of its threads can run
// and something happens by itself (sm90.h), and at each __syncthreads(). So what lies in one step
// can overlap, and what lies in a later one has to come later; how long a step would take is not
// said. Each row is an interval, written when it ends:
//
//     wait     a warp came to `what` in step `from` and went on in step `to`
//     copy     cp.async or TMA, from the instruction that started it to its landing
//     product  wgmma, the same
//     exit     the end of a warp, when its last lane ends
//
// A warp that has a row `wait` up to step t and one from step s on has run in the steps t to s.

#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static FILE *file;
static int launch;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// At exit: a log of which a part is missing must not look whole.
static void close_file(void) {
    bool bad = file && ferror(file);
    if (file && fclose(file)) bad = true;
    file = NULL;
    if (!bad) return;
    fputs("--timeline: cannot write it all; is the disk full?\n", stderr);
    _exit(3);
}

bool sim_timeline(const char *path) {
    static bool registered;
    if (!registered) registered = !atexit(close_file);
    if (file) fclose(file);
    file = path ? fopen(path, "w") : NULL;
    launch = 0;
    if (file) fprintf(file, "launch,kernel,block,who,event,from,to,what,file,line\n");
    return file || !path;
}

bool timeline_wanted(void) { return file != NULL; }

void timeline_launch(void) { launch++; }

void timeline_add(const char *who, int number, const char *event, uint32_t from, const char *what,
                  struct sim_place place) {
    if (!file) return;
    const struct worker *w = sim_worker;
    char kernel[48];
    sim_kernel_name(sim_now->kernel, kernel, sizeof kernel);
    pthread_mutex_lock(&lock);
    fprintf(file, "%d,\"%s\",%u,%s %d,%s,%u,%u,\"%s\",%s,%d\n", launch, kernel, w->block, who,
            number, event, from, w->step, what, place.file ? place.file : "", place.line);
    pthread_mutex_unlock(&lock);
}

// One row for all lanes of a warp that wait together.
void timeline_wait(const struct thread *t, uint32_t from, const char *what,
                   struct sim_place place) {
    const struct worker *w = sim_worker;
    struct warp *warp = t->warp;
    if (!file || from == w->step) return;
    if (warp->told_from == from && warp->told_to == w->step && warp->told_line == place.line)
        return;
    warp->told_from = from;
    warp->told_to = w->step;
    warp->told_line = place.line;
    timeline_add("warp", t->id / 32, "wait", from, what, place);
}

void timeline_exit(const struct thread *t) {
    for (int i = 0; file && i < t->warp->size; i++)
        if (!t->warp->lane[i]->exited) return;
    timeline_add("warp", t->id / 32, "exit", sim_worker->step, "", (struct sim_place){0});
}

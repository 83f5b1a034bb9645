// main.c - shows the gallery: without a name the list, with one what the simulator says of it.

#include "gallery.h"
#include "sim/sim.h"

#include <stdio.h>
#include <string.h>

static void run(void (*launch)(const float *, float *)) {
    float *in = sim_alloc("in", GALLERY_N * sizeof *in),
          *out = sim_alloc("out", GALLERY_N * sizeof *out);
    for (int i = 0; i < GALLERY_N; i++) in[i] = (float)i;
    sim_set_written(in, true);
    sim_reset(&(struct sim_options){0});
    launch(in, out);
    sim_free(in), sim_free(out);
}

static void say(const char *which) {
    if (sim_error()[0])
        printf("  %-8s %s\n", which, sim_error());
    else if (sim_warning()[0])
        printf("  %-8s warning: %s\n", which, sim_warning());
    else
        printf("  %-8s nothing found\n", which);
}

static int show(const char *name) {
    for (int i = 0; i < gallery_count(); i++) {
        const struct gallery_entry *e = gallery_at(i);
        if (strcmp(e->name, name)) continue;
        printf("%s: %s\n", e->file, e->title);
        run(e->faulty);
        say("faulty");
        run(e->correct);
        say("correct");
        return 0;
    }
    fprintf(stderr, "gallery: %s: no such mistake; make gallery lists them\n", name);
    return 2;
}

int main(int argc, char **argv) {
    if (argc > 1) return show(argv[1]);
    for (int i = 0; i < gallery_count(); i++)
        printf("%-26s %s\n", gallery_at(i)->name, gallery_at(i)->title);
    return 0;
}

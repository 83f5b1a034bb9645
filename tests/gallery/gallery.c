// gallery.c - the list of mistakes, kept by name while the files' initialisers add to it.

#include "gallery.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };
static const struct gallery_entry *entries[MOST];
static int count;

bool gallery_add(const struct gallery_entry *e) {
    if (count == MOST) {
        fprintf(stderr, "the gallery is full; raise MOST in gallery.c\n");
        abort();
    }
    int at = count++;
    for (; at > 0 && strcmp(entries[at - 1]->name, e->name) > 0; at--)
        entries[at] = entries[at - 1];
    entries[at] = e;
    return true;
}

int gallery_count(void) { return count; }
const struct gallery_entry *gallery_at(int index) { return entries[index]; }

// registry.c - the list of kernels that are linked into this program.
//
// A rung's .cu file calls attn_register before main(), most by ATTN_REGISTER. Nobody says
// in which order the linker's files do that, so the table is kept sorted while it fills.
#include "attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KERNELS = 64 };

// Zero before any initialiser has run: C gives static storage its value at load time.
static const struct attn_kernel *table[MAX_KERNELS];
static int count;

// By step, then rung; a rung's variants come after it.
static int compare(const struct attn_kernel *a, const struct attn_kernel *b) {
    int by_step = strcmp(a->step, b->step), by_rung = a->rung - b->rung;
    return by_step ? by_step : by_rung ? by_rung : (int)a->variant - (int)b->variant;
}

// A mistake in a step's source, which no caller can handle: there is no main() to return to yet.
static void stop(const struct attn_kernel *kernel, const char *mistake) {
    fprintf(stderr, "kernel %s of %s: %s\n", kernel->name, kernel->step, mistake);
    abort();
}

bool attn_register(const struct attn_kernel *kernel) {
    if (count == MAX_KERNELS) stop(kernel, "the registry is full; raise MAX_KERNELS in registry.c");
    for (int i = 0; i < count; i++) {
        if (!strcmp(table[i]->name, kernel->name))
            stop(kernel, "its name is taken; choose another");
    }
    int place = count++;
    for (; place > 0 && compare(table[place - 1], kernel) > 0; place--)
        table[place] = table[place - 1];
    table[place] = kernel;
    return true;
}

int attn_kernel_count(void) { return count; }

const struct attn_kernel *attn_kernel_at(int index) { return table[index]; }

// gallery.h - a gallery of mistakes: small faulty kernels, each with its correct twin.
//
// A file shows one mistake. Read the kernel at its top, find the fault, then let the simulator find
// it (`make gallery` lists them, `make gallery BUG=missing_barrier` runs one), then scroll down.
#ifndef GALLERY_H
#define GALLERY_H

#include <stdbool.h>

enum { GALLERY_N = 1024 }; // elements of `in` and `out`

struct gallery_entry {
    const char *name, *title;
    const char *file;
    // Launches on device memory; `in` holds values and may only be read, nobody has written `out`.
    void (*faulty)(const float *in, float *out);
    void (*correct)(const float *in, float *out);
    int outputs;                               // how many elements of `out` the twin writes
    float (*expected)(const float *in, int i); // and what it writes there
};

#ifdef __cplusplus
extern "C" {
#endif
bool gallery_add(const struct gallery_entry *);
int gallery_count(void);
const struct gallery_entry *gallery_at(int index); // ordered by name
#ifdef __cplusplus
}
#endif

#ifdef __cplusplus
#include "kernel.h"
#define GALLERY(name, title, outputs, expected)                                                    \
    static const gallery_entry entry = {#name,          title,   __FILE__, launch_faulty,          \
                                        launch_correct, outputs, expected};                        \
    [[maybe_unused]] static const bool added = gallery_add(&entry)
#endif
#endif

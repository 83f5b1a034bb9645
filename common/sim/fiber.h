// fiber.h - a fiber is a stack and a place to go on: a thread without an operating system.
#ifndef FIBER_H
#define FIBER_H

#include <stddef.h>

enum { FIBER_GUARD = 1 << 20 };

struct fiber {
    void *stack_pointer; // where it left off; valid while it does not run
    char *stack;         // the mapping, or the stack that an OS thread came with
    size_t mapped;       // its bytes
    char *top;           // the stack grows down from here
};

// Maps a stack of `bytes` bytes above FIBER_GUARD bytes that must not be touched, so that an
// overflow faults, even by a large array at once. `colour` shifts the top: stacks whose tops agree
// modulo 4096 would fight for the same cache sets. Returns false when there is no memory.
int fiber_create(struct fiber *, size_t bytes, int colour);
void fiber_destroy(struct fiber *);

// The next switch to this fiber calls entry() on an empty stack. entry calls fiber_begin() first
// and never returns: fiber_end() is the way out. (fiber_begin() is for AddressSanitizer alone.)
void fiber_start(struct fiber *, void (*entry)(void));
void fiber_begin(void);

// Leaves `from` here and goes on in `to` where that one left off.
void fiber_switch_to(struct fiber *from, struct fiber *to);

// The same, and never comes back: `from` can only be started again.
_Noreturn void fiber_end(struct fiber *from, struct fiber *to);

#endif

// fiber.c - switching stacks, on x86-64.
//
// A function call already saves half of the registers: the caller expects only rbx, rbp, r12-r15
// and the stack pointer to survive it (System V ABI). So a switch is a function that pushes those
// six, exchanges the stack pointer, pops six and returns - on the other stack, to whoever called
// the switch there. It takes about two nanoseconds; xv6's swtch.S is the same idea in a kernel.

#include "fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

// ---- what AddressSanitizer must be told ---------------------------------------------------------

// It marks what lies around the arrays of each stack frame, until the function returns, and keeps a
// record of which stack runs. So it must hear of each switch, and of frames that never return.
#ifdef __has_feature
#define CLANG_ASAN __has_feature(address_sanitizer)
#else
#define CLANG_ASAN 0
#endif
#if defined(__SANITIZE_ADDRESS__) || CLANG_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

static void leaving(void **kept, const struct fiber *to) {
    __sanitizer_start_switch_fiber(kept, to->stack, to->mapped);
}
static void arrived(void *kept) { __sanitizer_finish_switch_fiber(kept, NULL, NULL); }
// Frames still open when the fiber was last left will not be returned from: remove their marks.
// (If a signal handler left it, on a stack of its own, nobody knows how deep they reach.)
static void forget_frames(const struct fiber *f) {
    char *deepest = f->stack_pointer;
    if (deepest < f->stack || deepest > f->top) deepest = f->stack;
    __asan_unpoison_memory_region(deepest, (size_t)(f->top - deepest));
}
#else
static void leaving(void **kept, const struct fiber *to) { (void)kept, (void)to; }
static void arrived(void *kept) { (void)kept; }
static void forget_frames(const struct fiber *f) { (void)f; }
#endif

// ---- switching ----------------------------------------------------------------------------------

void fiber_swap_stacks(void **save, void *load);
__asm__(".text\n"
        ".globl fiber_swap_stacks\n"
        ".type fiber_swap_stacks, @function\n"
        "fiber_swap_stacks:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size fiber_swap_stacks, .-fiber_swap_stacks\n");

enum { COLOURS = 32, COLOUR_BYTES = 128, SAVED_REGISTERS = 6 };

int fiber_create(struct fiber *f, size_t bytes, int colour) {
    f->mapped = bytes + FIBER_GUARD;
    void *stack = mmap(NULL, f->mapped, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    f->stack = stack == MAP_FAILED ? NULL : stack;
    if (!f->stack) return 0;
    mprotect(f->stack, FIBER_GUARD, PROT_NONE);
    f->top = f->stack + f->mapped - colour % COLOURS * COLOUR_BYTES;
    f->stack_pointer = f->top;
    return 1;
}

void fiber_destroy(struct fiber *f) {
    if (!f->stack) return;
    forget_frames(f);
    munmap(f->stack, f->mapped);
    f->stack = NULL;
}

void fiber_start(struct fiber *f, void (*entry)(void)) {
    // What fiber_swap_stacks will pop: six registers, then the address it returns to. Above it a
    // zero stands where a caller's return address would, which also gives entry() the alignment
    // that the ABI promises after a call.
    forget_frames(f);
    uintptr_t *top = (uintptr_t *)f->top;
    *--top = 0;
    *--top = (uintptr_t)entry;
    for (int i = 0; i < SAVED_REGISTERS; i++) *--top = 0;
    f->stack_pointer = top;
}

void fiber_begin(void) { arrived(NULL); }

void fiber_switch_to(struct fiber *from, struct fiber *to) {
    void *kept = NULL;
    leaving(&kept, to);
    fiber_swap_stacks(&from->stack_pointer, to->stack_pointer);
    arrived(kept);
}

void fiber_end(struct fiber *from, struct fiber *to) {
    leaving(NULL, to);
    fiber_swap_stacks(&from->stack_pointer, to->stack_pointer);
    abort(); // an ended fiber is never gone on with
}

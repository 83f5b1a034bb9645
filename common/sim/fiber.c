// fiber.c - switching stacks, on x86-64.
//
// A function call already saves half of the registers: the caller expects only rbx, rbp, r12-r15
// and the stack pointer to survive it (System V ABI). So a switch is a function that pushes those
// six, exchanges the stack pointer, pops six and returns - on the other stack, to whoever called
// the switch there. It takes about two nanoseconds; xv6's swtch.S is the same idea in a kernel.

#include "fiber.h"

#include <stdint.h>
#include <sys/mman.h>

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
    return 1;
}

void fiber_destroy(struct fiber *f) {
    if (f->stack) munmap(f->stack, f->mapped);
    f->stack = NULL;
}

void fiber_start(struct fiber *f, void (*entry)(void)) {
    // What fiber_swap_stacks will pop: six registers, then the address it returns to. Above it a
    // zero stands where a caller's return address would, which also gives entry() the alignment
    // that the ABI promises after a call.
    uintptr_t *top = (uintptr_t *)f->top;
    *--top = 0;
    *--top = (uintptr_t)entry;
    for (int i = 0; i < SAVED_REGISTERS; i++) *--top = 0;
    f->stack_pointer = top;
}

void fiber_switch_to(struct fiber *from, struct fiber *to) {
    fiber_swap_stacks(&from->stack_pointer, to->stack_pointer);
}

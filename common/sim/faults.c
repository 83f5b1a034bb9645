// faults.c - a wild pointer, or a division by zero, stops the kernel and not the program.
//
// An address outside HBM and shared memory belongs to nobody the simulator knows of, and mostly to
// nobody at all: then the processor faults, and the operating system sends SIGSEGV to the thread
// that did it. The handler runs on a stack of its own, since the fiber's may be what overflowed.

#include "internal.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { HANDLER_STACK = 64 << 10 };

static bool is_stack_overflow(const struct thread *t, uintptr_t address) {
    return address - (uintptr_t)t->fiber.stack < FIBER_GUARD;
}

static void handle(int signal_number, siginfo_t *info, void *context) {
    struct worker *w = sim_worker;
    uintptr_t address = (uintptr_t)info->si_addr;
    if (!w ||
        !w->self) { // not a kernel's fault, but a bug of ours or of the host's code: die of it
        signal(signal_number, SIG_DFL);
        return;
    }
    uintptr_t at = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    const char *place = symbols_place(symbols_pc((void *)(at + 1)));
    if (signal_number == SIGFPE) sim_fail("division by zero at %s", place);
    if (signal_number == SIGILL) sim_fail("trap at %s", place);
    if (info->si_code == SI_KERNEL)
        sim_fail("wild pointer: an address that no machine has, at %s", place);
    if (is_stack_overflow(w->self, address))
        sim_fail("stack overflow at %s: the local variables of a thread take more than 256 KB",
                 place);
    sim_fail("wild pointer: access to address 0x%zx, where no buffer is, at %s", (size_t)address,
             place);
}

void faults_catch(void) {
    void *stack =
        mmap(NULL, HANDLER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t own = {.ss_sp = stack, .ss_size = HANDLER_STACK};
    if (stack == MAP_FAILED || sigaltstack(&own, NULL)) return;
    // SA_NODEFER: the handler does not return but switches to another fiber, so the signal must not
    // stay blocked.
    struct sigaction action = {.sa_sigaction = handle,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (int i = 0; i < 4; i++) sigaction(signals[i], &action, NULL);
}

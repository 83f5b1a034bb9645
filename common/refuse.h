// refuse.h - how the harness says no: one line that names the value, the limit and what to do.
#ifndef REFUSE_H
#define REFUSE_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

// Formats the line into `why` and returns false, so that a check ends with
//     return refuse(why, why_size, "head dimension is %d: ...", d);
// errno tells the two kinds of no apart: EINVAL, the value is wrong; ENOMEM (refuse_memory), the
// machine is too small for it.
__attribute__((format(printf, 3, 4))) static inline bool refuse(char *why, size_t why_size,
                                                                const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, why_size, format, arguments);
    va_end(arguments);
    errno = EINVAL;
    return false;
}

#define refuse_memory(...) (refuse(__VA_ARGS__), errno = ENOMEM, false)

#endif

// npy.h - NumPy's .npy files: C order, little endian, format versions 1.0 and 2.0 read, 1.0
// written.
#ifndef NPY_H
#define NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { NPY_MAX_DIMS = 8 };

// Reads float16, float32 or float64 into a malloc'ed array of double. False, with one line in `why`
// that names the file, when it is missing, malformed, truncated, in Fortran order or of another
// type.
bool npy_read(const char *path, int *dims, uint64_t shape[NPY_MAX_DIMS], double **data, char *why,
              size_t why_size);

// Writes fp32. False, with one line in `why`, when the file cannot be written whole.
bool npy_write(const char *path, int dims, const uint64_t *shape, const float *data, char *why,
               size_t why_size);

#ifdef __cplusplus
}
#endif
#endif

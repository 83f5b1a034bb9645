// npy.c - reading and writing NumPy's .npy files.
//
//   bytes      6        1      1     2 (version 1) or 4 (2)    length                   the rest
//         "\x93NUMPY"  major  minor   length of the header      a Python dict, as text   elements
//
// The dict has three keys: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
// Specification: the module documentation of numpy.lib.format.
#include "npy.h"
#include "dtype.h"
#include "refuse.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are copied as they are");

static const char magic[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

// A file while it is read, and where to complain.
struct reader {
    FILE *file;
    const char *path;
    char *why;
    size_t why_size;
};

struct header {
    char type[8]; // "<f4"
    bool fortran_order;
    int dims;
    uint64_t shape[NPY_MAX_DIMS];
    bool has_type, has_order, has_shape;
};

// ---- the dict ----------------------------------------------------------------------------------
// Each function reads one thing at *at, moves *at behind it and returns true, or returns false.

static void skip_spaces(const char **at) {
    while (isspace((unsigned char)**at)) ++*at;
}

static bool take(const char **at, char wanted) {
    skip_spaces(at);
    if (**at != wanted) return false;
    ++*at;
    return true;
}

static bool take_word(const char **at, const char *wanted) {
    skip_spaces(at);
    size_t length = strlen(wanted);
    if (strncmp(*at, wanted, length) != 0) return false;
    *at += length;
    return true;
}

static bool take_string(const char **at, char *out, size_t size) {
    skip_spaces(at);
    char quote = **at;
    if (quote != '\'' && quote != '"') return false;
    const char *end = strchr(*at + 1, quote);
    if (!end || (size_t)(end - *at - 1) >= size) return false;
    snprintf(out, size, "%.*s", (int)(end - *at - 1), *at + 1);
    *at = end + 1;
    return true;
}

static bool take_number(const char **at, uint64_t *out) {
    skip_spaces(at);
    if (!isdigit((unsigned char)**at)) return false;
    char *end;
    errno = 0;
    *out = strtoull(*at, &end, 10);
    *at = end;
    return errno == 0; // ERANGE: 2^64 or more
}

// (), (3,), (2, 3) or (2, 3,)
static bool take_shape(const char **at, struct header *h) {
    if (!take(at, '(')) return false;
    for (h->dims = 0; !take(at, ')'); h->dims++) {
        if (h->dims == NPY_MAX_DIMS || !take_number(at, &h->shape[h->dims])) return false;
        if (take(at, ',')) continue;
        return h->dims++ > 0 && take(at, ')'); // no comma: the last; (3) would be a plain 3
    }
    return true;
}

static bool take_order(const char **at, struct header *h) {
    h->fortran_order = take_word(at, "True");
    return h->fortran_order || take_word(at, "False");
}

static bool take_entry(const char **at, struct header *h) {
    char key[16];
    if (!take_string(at, key, sizeof key) || !take(at, ':')) return false;
    if (!strcmp(key, "descr")) return h->has_type = take_string(at, h->type, sizeof h->type);
    if (!strcmp(key, "fortran_order")) return h->has_order = take_order(at, h);
    if (!strcmp(key, "shape")) return h->has_shape = take_shape(at, h);
    return false;
}

static bool parse_dict(const char *text, struct header *h) {
    const char *at = text;
    if (!take(&at, '{')) return false;
    while (!take(&at, '}')) {
        if (!take_entry(&at, h)) return false;
        if (take(&at, ',')) continue;
        if (!take(&at, '}')) return false;
        break;
    }
    skip_spaces(&at);
    return *at == '\0' && h->has_type && h->has_order && h->has_shape;
}

// ---- reading -----------------------------------------------------------------------------------

static bool malformed(struct reader *r, const char *what) {
    return refuse(r->why, r->why_size, "%s: %s; write it again with numpy.save", r->path, what);
}

// Bytes from here to the end of the file; -1 if it has no end to look up (a pipe).
static long bytes_left(FILE *file) {
    long here = ftell(file);
    if (here < 0 || fseek(file, 0, SEEK_END) != 0) return -1;
    long end = ftell(file);
    return fseek(file, here, SEEK_SET) == 0 ? end - here : -1;
}

// Reads the preamble up to the length of the dict.
static bool read_length(struct reader *r, uint32_t *length) {
    unsigned char start[8], bytes[4] = {0};
    if (fread(start, 1, sizeof start, r->file) != sizeof start ||
        memcmp(start, magic, sizeof magic)) {
        return malformed(r, "not a .npy file");
    }
    if (start[6] != 1 && start[6] != 2) {
        return refuse(r->why, r->why_size, "%s: .npy version %d, only 1 and 2 are read; %s",
                      r->path, start[6], "write it again with numpy.save, without field names");
    }
    size_t width = start[6] == 1 ? 2 : 4;
    if (fread(bytes, 1, width, r->file) != width) return malformed(r, "the header is cut off");
    *length = bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    return true;
}

static bool read_header(struct reader *r, struct header *h) {
    uint32_t length = 0;
    if (!read_length(r, &length)) return false;
    // Compared before allocating: a damaged length could ask for 4 GiB.
    long left = bytes_left(r->file);
    if (left < 0 || length > (unsigned long)left) {
        return malformed(r, "the header ends past the end of the file");
    }
    char *text = malloc(length + 1ul);
    if (!text) return refuse_memory(r->why, r->why_size, "%s: no memory for its header", r->path);
    size_t got = fread(text, 1, length, r->file);
    text[got] = '\0';
    bool ok = got == length && parse_dict(text, h);
    free(text);
    return ok ||
           malformed(r, "the header is not the dict of a plain array of at most 8 dimensions");
}

// Bytes of one element, by NumPy's name for the type; 0 for what is not read.
static size_t element_size(const char *type) {
    return !strcmp(type, "<f2") ? 2 : !strcmp(type, "<f4") ? 4 : !strcmp(type, "<f8") ? 8 : 0;
}

static bool check_layout(struct reader *r, const struct header *h) {
    if (h->fortran_order) {
        return refuse(r->why, r->why_size, "%s: in Fortran order; save numpy.ascontiguousarray(x)",
                      r->path);
    }
    if (h->type[0] == '>') {
        return refuse(r->why, r->why_size, "%s: big endian; save x.astype('<f4')", r->path);
    }
    if (element_size(h->type)) return true;
    return refuse(
        r->why, r->why_size,
        "%s: of type %s, only float16, float32 and float64 are read; save x.astype('<f4')", r->path,
        h->type);
}

// Sets *count, the number of elements, if the rest of the file is exactly that many.
static bool check_size(struct reader *r, const struct header *h, size_t size, uint64_t *count) {
    *count = 1;
    for (int i = 0; i < h->dims; i++) {
        if (h->shape[i] && *count > SIZE_MAX / sizeof(double) / h->shape[i]) {
            return malformed(r, "its shape has more elements than any memory");
        }
        *count *= h->shape[i];
    }
    long left = bytes_left(r->file);
    if (left >= 0 && (uint64_t)left == *count * size) return true;
    return refuse(
        r->why, r->why_size,
        "%s: holds %ld bytes of elements where its shape needs %llu: truncated or damaged; "
        "copy or write it again",
        r->path, left, (unsigned long long)(*count * size));
}

static void widen(const void *from, size_t size, double *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        float single;
        const char *at = (const char *)from + i * size;
        switch (size) {
        case 2: memcpy(&half, at, size), to[i] = fp16_to_float(half); break;
        case 4: memcpy(&single, at, size), to[i] = single; break;
        default: memcpy(&to[i], at, size);
        }
    }
}

static bool read_elements(struct reader *r, size_t size, double *to, uint64_t count) {
    char chunk[4096];
    for (uint64_t done = 0, n; done < count; done += n) {
        n = sizeof chunk / size;
        if (n > count - done) n = count - done;
        if (fread(chunk, size, n, r->file) != n)
            return malformed(r, "it could not be read to its end");
        widen(chunk, size, to + done, n);
    }
    return true;
}

static bool read_array(struct reader *r, struct header *h, double **data) {
    uint64_t count;
    if (!read_header(r, h) || !check_layout(r, h)) return false;
    size_t size = element_size(h->type);
    if (!check_size(r, h, size, &count)) return false;
    *data = malloc((count ? count : 1) * sizeof **data);
    if (!*data) {
        return refuse_memory(r->why, r->why_size,
                             "%s: no memory for its %llu elements; use a smaller one", r->path,
                             (unsigned long long)count);
    }
    if (read_elements(r, size, *data, count)) return true;
    free(*data);
    return false;
}

bool npy_read(const char *path, int *dims, uint64_t shape[NPY_MAX_DIMS], double **data, char *why,
              size_t why_size) {
    struct stat s;
    bool waits = !stat(path, &s) && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode); // a pipe, say
    if (waits) return refuse(why, why_size, "%s: not a file; save the array with numpy.save", path);
    struct reader r = {fopen(path, "rb"), path, why, why_size};
    struct header h = {0};
    *data = NULL;
    if (!r.file) return refuse(why, why_size, "%s: %s; check the path", path, strerror(errno));
    bool ok = read_array(&r, &h, data);
    fclose(r.file);
    if (!ok) {
        *data = NULL;
        return false;
    }
    *dims = h.dims;
    memcpy(shape, h.shape, sizeof h.shape);
    return true;
}

// ---- writing -----------------------------------------------------------------------------------

enum { ALIGNMENT = 64, PREAMBLE = 10, HEADER_SIZE = 256 }; // bytes; 8 dims need less than 256

// "(3,)", "(2, 3)": Python's tuples.
static void format_shape(int dims, const uint64_t *shape, char *out, size_t size) {
    size_t used = snprintf(out, size, "(");
    for (int i = 0; i < dims; i++) {
        const char *after = dims == 1 ? "," : i + 1 < dims ? ", " : "";
        used += snprintf(out + used, size - used, "%llu%s", (unsigned long long)shape[i], after);
    }
    snprintf(out + used, size - used, ")");
}

// The preamble and the dict, filled up with spaces so that the elements begin at a multiple of 64.
// Returns the length, in bytes.
static size_t format_header(int dims, const uint64_t *shape, char out[HEADER_SIZE + ALIGNMENT]) {
    char tuple[HEADER_SIZE - 64];
    format_shape(dims, shape, tuple, sizeof tuple);
    int dict = snprintf(out + PREAMBLE, HEADER_SIZE - PREAMBLE,
                        "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", tuple);
    size_t length = round_up(PREAMBLE + dict + 1, ALIGNMENT);
    memset(out + PREAMBLE + dict, ' ', length - PREAMBLE - dict);
    out[length - 1] = '\n';
    memcpy(out, magic, sizeof magic);
    out[6] = 1;
    out[7] = 0;
    out[8] = (char)((length - PREAMBLE) & 255);
    out[9] = (char)((length - PREAMBLE) >> 8);
    return length;
}

bool npy_write(const char *path, int dims, const uint64_t *shape, const float *data, char *why,
               size_t why_size) {
    char header[HEADER_SIZE + ALIGNMENT];
    uint64_t count = 1;
    for (int i = 0; i < dims; i++) count *= shape[i];
    FILE *file = fopen(path, "wb");
    if (!file) return refuse(why, why_size, "%s: %s; check the path", path, strerror(errno));
    size_t length = format_header(dims, shape, header);
    bool whole = fwrite(header, 1, length, file) == length &&
                 fwrite(data, sizeof *data, count, file) == count;
    // The last bytes leave the buffer here: a full disk may show only now.
    if (fclose(file) != 0) whole = false;
    if (whole) return true;
    return refuse(why, why_size, "%s: not written whole: %s; make room or choose another folder",
                  path, strerror(errno));
}

// symbols.c - what the executable says about itself: which __shared__ arrays a kernel declares,
// and which source line an instruction belongs to.
//
// __shared__ becomes thread_local in the simulator's build, so a kernel's arrays are TLS symbols of
// the ELF file, named after the kernel: array `tile` of kernel f, mangled _Z1fPf, is _ZZ1fPfE4tile.

#include "internal.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// smem of kernel.h: every kernel's dynamic shared memory, per OS thread, as large as on sm_90.
_Alignas(1024) _Thread_local unsigned char smem[SIM_SMEM_MAX];

static struct {
    const Elf64_Sym *first, *end;
    const char *names;
} table; // of /proc/self/exe; empty when it was stripped
uintptr_t sim_load_address;
static size_t tls_bytes, constants_end;

// ---- reading the executable --------------------------------------------------------------------

static void find_symbol_table(const char *file) {
    const Elf64_Ehdr *header = (const void *)file;
    const Elf64_Shdr *section = (const void *)(file + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
        if (section[i].sh_type != SHT_SYMTAB) continue;
        table.first = (const void *)(file + section[i].sh_offset);
        table.end = table.first + section[i].sh_size / sizeof *table.first;
        table.names = file + section[section[i].sh_link].sh_offset;
    }
}

static int find_program(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    sim_load_address = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const Elf64_Phdr *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_TLS) tls_bytes = segment->p_memsz;
        if (segment->p_type == PT_LOAD && !(segment->p_flags & PF_W))
            constants_end = segment->p_vaddr + segment->p_memsz;
    }
    return 1; // the executable comes first; stop there
}

bool symbols_is_constant(uintptr_t address) { return address - sim_load_address < constants_end; }

// Before main(), so that symbols_pc() can be a subtraction.
__attribute__((constructor)) static void read_executable(void) {
    dl_iterate_phdr(find_program, NULL);
    int fd = open("/proc/self/exe", O_RDONLY);
    struct stat s;
    if (fd < 0 || fstat(fd, &s)) return;
    void *file = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file != MAP_FAILED) find_symbol_table(file);
}

static int find_segment(struct dl_phdr_info *info, size_t size, void *base) {
    (void)size;
    *(uintptr_t *)base = (uintptr_t)info->dlpi_tls_data; // the calling thread's copy
    return 1;
}

void symbols_own_segments(struct worker *w) {
    dl_iterate_phdr(find_segment, &w->shared_base);
    w->shared_bytes = tls_bytes;
    pthread_attr_t attributes;
    void *stack = NULL;
    if (pthread_getattr_np(pthread_self(), &attributes)) return;
    pthread_attr_getstack(&attributes, &stack, &w->stack_bytes);
    w->stack_base = (uintptr_t)stack;
    pthread_attr_destroy(&attributes);
}

// ---- __shared__ arrays -------------------------------------------------------------------------

static const char *name_of(const Elf64_Sym *s) { return table.names + s->st_name; }

// The kernel's name, and the symbols among which its arrays are. A static kernel in a header is a
// local symbol of every file that includes it, each with arrays of its own, under the same names.
// Local symbols stand file by file, after a symbol that says which file.
struct kernel_symbols {
    const char *name; // "_Z..."
    const Elf64_Sym *first, *end;
};

static struct kernel_symbols symbols_of(const void *function) {
    uintptr_t offset = (uintptr_t)function - sim_load_address;
    const Elf64_Sym *file = table.first;
    for (const Elf64_Sym *s = table.first; s < table.end; s++) {
        if (ELF64_ST_TYPE(s->st_info) == STT_FILE) file = s;
        if (ELF64_ST_TYPE(s->st_info) != STT_FUNC || s->st_value != offset ||
            strncmp(name_of(s), "_Z", 2))
            continue;
        if (ELF64_ST_BIND(s->st_info) != STB_LOCAL)
            return (struct kernel_symbols){name_of(s), table.first, table.end};
        const Elf64_Sym *end = s;
        while (end < table.end && ELF64_ST_TYPE(end->st_info) != STT_FILE) end++;
        return (struct kernel_symbols){name_of(s), file, end};
    }
    return (struct kernel_symbols){"", table.first, table.first};
}

// Does TLS symbol _ZZ<kernel>E<array> belong to kernel _Z<kernel>?
static bool declared_in(const Elf64_Sym *s, struct kernel_symbols kernel) {
    const char *name = name_of(s);
    size_t n = strlen(kernel.name);
    return s >= kernel.first && s < kernel.end && ELF64_ST_TYPE(s->st_info) == STT_TLS && n > 2 &&
           !strncmp(name, "_ZZ", 3) && !strncmp(name + 3, kernel.name + 2, n - 2) &&
           name[3 + n - 2] == 'E';
}

size_t symbols_static_smem(const void *kernel) {
    static const void *last_kernel; // asked twice at each launch, and launches repeat
    static size_t last_bytes;
    if (kernel == last_kernel) return last_bytes;
    struct kernel_symbols of = symbols_of(kernel);
    size_t bytes = 0;
    for (const Elf64_Sym *s = of.first; s < of.end; s++)
        if (declared_in(s, of)) bytes += s->st_size;
    last_kernel = kernel;
    return last_bytes = bytes;
}

static const Elf64_Sym *find_smem(void) {
    for (const Elf64_Sym *s = table.first; s < table.end; s++)
        if (ELF64_ST_TYPE(s->st_info) == STT_TLS && !strcmp(name_of(s), "smem")) return s;
    return NULL;
}

const uint8_t *symbols_shared_map(const void *kernel, size_t dynamic) {
    static uint8_t *map;
    static const void *last_kernel;
    static size_t last_dynamic;
    if (map && kernel == last_kernel && dynamic == last_dynamic) return map;
    if (!map) map = sim_memory(malloc(tls_bytes + 16));
    memset(map, table.first == NULL, tls_bytes + 16); // a stripped program: allow everything
    struct kernel_symbols of = symbols_of(kernel);
    for (const Elf64_Sym *s = of.first; s < of.end; s++)
        if (declared_in(s, of)) memset(map + s->st_value, 1, s->st_size);
    if (table.first) memset(map + find_smem()->st_value, 1, dynamic);
    last_kernel = kernel;
    last_dynamic = dynamic;
    return map;
}

// "_ZZN3one4loadEPfE4tile" -> "tile": the mangled name ends in the array's length and name.
static const char *array_name(const char *mangled) {
    const char *p = mangled + strlen(mangled);
    for (const char *q = p; q > mangled; q--)
        if (q[-1] == 'E' && *q >= '1' && *q <= '9') return q + strspn(q, "0123456789");
    return mangled;
}

// The kernel's own array (or smem) that begins last before `offset`; past the end of all, the
// nearest.
const char *symbols_shared_name(size_t offset, size_t *start, size_t *size) {
    struct kernel_symbols kernel = symbols_of(sim_now->function);
    const Elf64_Sym *best = NULL, *dynamic = find_smem();
    for (const Elf64_Sym *s = table.first; s < table.end; s++) {
        bool own = (s == dynamic && sim_now->dynamic_smem) || declared_in(s, kernel);
        bool better = best && (s->st_value <= offset
                                   ? best->st_value > offset || s->st_value > best->st_value
                                   : s->st_value < best->st_value && best->st_value > offset);
        if (own && (!best || better)) best = s;
    }
    *start = best ? best->st_value : 0;
    *size = !best ? 0 : best == dynamic ? sim_now->dynamic_smem : best->st_size;
    return best ? array_name(name_of(best)) : "";
}

// ---- source lines ------------------------------------------------------------------------------

// "./step00_naive/attention.cu:41 (discriminator 2)" -> "step00_naive/attention.cu:41"
static void tidy(char *line) {
    line[strcspn(line, "\n")] = 0;
    char *note = strstr(line, " (");
    if (note) *note = 0;
    while (!strncmp(line, "./", 2)) memmove(line, line + 2, strlen(line) - 1);
}

static FILE *start_addr2line(const uint32_t *pc, int count) {
    char *command = NULL;
    size_t size;
    FILE *text = open_memstream(&command, &size);
    if (!text) return NULL;
    fprintf(text, "addr2line -a -i -e /proc/%d/exe", (int)getpid());
    for (int i = 0; i < count; i++) fprintf(text, " 0x%x", pc[i] - 1); // in the call, not after it
    fprintf(text, " 2>/dev/null");
    fclose(text);
    FILE *f = popen(command, "r");
    free(command);
    return f;
}

// The simulator's own headers, ptx.h, and ":?": code that the compiler made of two lines, and which
// has none any more (clang does that).
static bool is_no_place_in_the_kernel(const char *line) {
    return strstr(line, "common/sim/cuda.h") || strstr(line, "common/ptx") || strstr(line, ":?");
}

static bool same_file(const char *a, const char *b) {
    size_t n = strcspn(a, ":");
    return n == strcspn(b, ":") && !memcmp(a, b, n);
}

static bool is_better_caller(const struct place *p, const char *line) {
    return !p->caller[0] || (same_file(p->caller, p->text) && !same_file(line, p->text));
}

// Binutils' addr2line reads the debug information. With -a the answer for each pc begins with the
// number itself; -i unfolds inlined functions, innermost first, and the first that is a place in
// the kernel's source is where the kernel stands. (A __global__ function has all that it calls
// inlined.) Its caller is the first one in another file: where a helper is used. If there is none,
// the next one.
void symbols_places(const uint32_t *pc, int count, struct place *out) {
    char line[sizeof out->text];
    int i = -1;
    for (int k = 0; k < count; k++) out[k].text[0] = out[k].caller[0] = 0;
    FILE *f = count ? start_addr2line(pc, count) : NULL;
    while (f && fgets(line, sizeof line, f)) {
        if (!strncmp(line, "0x", 2))
            i++;
        else if (i < 0 || i >= count)
            continue;
        else if (!out[i].text[0] || is_no_place_in_the_kernel(out[i].text))
            memcpy(out[i].text, line, sizeof line);
        else if (!is_no_place_in_the_kernel(line) && is_better_caller(&out[i], line))
            memcpy(out[i].caller, line, sizeof line);
    }
    if (f) pclose(f);
    for (i = 0; i < count; i++) {
        char *text = out[i].text;
        tidy(text);
        tidy(out[i].caller);
        if (!text[0] || text[0] == '?')
            snprintf(text, sizeof out->text, "pc 0x%x (install binutils for the line)", pc[i]);
    }
}

const char *symbols_place(uint32_t pc) {
    struct place place;
    char *out = sim_worker->place;
    symbols_places(&pc, 1, &place);
    int used = snprintf(out, sizeof sim_worker->place, "%s", place.text);
    if (place.caller[0])
        snprintf(out + used, sizeof sim_worker->place - (size_t)used, " (called at %s)",
                 place.caller);
    return out;
}

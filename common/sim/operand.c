// operand.c - a matrix in shared memory as wgmma is told of it: where its elements lie, what may be
// wrong with them.

#include "sm90.h"

#include <string.h>

#define HERE __builtin_return_address(0)

extern _Thread_local unsigned char smem[]; // symbols.c

uint32_t sim_smem_address(const void *p) {
    uintptr_t offset = (uintptr_t)p - (uintptr_t)smem;
    if (offset >= SIM_SMEM_MAX)
        sim_fail("a descriptor of what is not in smem, the dynamic shared memory, at %s",
                 symbols_place(symbols_pc(HERE)));
    return (uint32_t)offset;
}

// ---- where an element lies ----------------------------------------------------------------------

static uint32_t address_field(uint64_t d) { return (uint32_t)(d & 0x3fff) << 4; }
static uint32_t leading(uint64_t d) { return (uint32_t)(d >> 16 & 0x3fff) << 4; }
static uint32_t stride(uint64_t d) { return (uint32_t)(d >> 32 & 0x3fff) << 4; }
static int base_offset(uint64_t d) { return (int)(d >> 49 & 7); }

// Bytes within which 16-byte pieces are exchanged; 16: they are not.
static uint32_t swizzle_bytes(uint64_t d) {
    static const uint8_t bytes[] = {16, 128, 64, 32};
    return bytes[d >> 62];
}

// The layouts of ptx_sm90.h: the PTX ISA's "Strides", and as formulas the "canonical layouts" of
// CUTLASS, include/cute/atom/mma_traits_sm90_gmma.hpp. r is an index along m or n.
static uint32_t offset_of(const struct operand *o, uint32_t r, uint32_t k) {
    uint32_t width = swizzle_bytes(o->descriptor), neighbours = width / 2;
    uint32_t L = leading(o->descriptor), S = stride(o->descriptor);
    if (!o->mn_major && width == 16) return r % 8 * 16 + r / 8 * S + k % 8 * 2 + k / 8 * L;
    if (!o->mn_major) return r % 8 * width + r / 8 * S + k * 2;
    if (width == 16) return r % 8 * 2 + r / 8 * S + k % 8 * 16 + k / 8 * L;
    return r % neighbours * 2 + r / neighbours * L + k % 8 * width + k / 8 * S;
}

// Swizzling acts on the address: bits 4-6 xor bits 7-9, or as many of them as the width has.
static uint32_t swizzle(uint64_t descriptor, uint32_t address) {
    return address ^ (address >> 3 & (swizzle_bytes(descriptor) - 16));
}

// The 8 elements that are neighbours in shared memory, from (r, k) on.
static const unsigned char *piece(const struct operand *o, int r, int k) {
    uint32_t a = address_field(o->descriptor) + offset_of(o, (uint32_t)r, (uint32_t)k);
    return smem + swizzle(o->descriptor, a);
}

// Calls `f` for each piece of the operand.
static void each_piece(const struct operand *o, void *context,
                       void (*f)(void *context, const unsigned char *, int r, int k)) {
    int rows = o->mn_major ? 8 : 1, ks = o->mn_major ? 1 : 8; // of a piece
    for (int r = 0; r < o->rows; r += rows)
        for (int k = 0; k < 16; k += ks) f(context, piece(o, r, k), r, k);
}

struct gathering {
    const struct operand *operand;
    uint16_t (*to)[16]; // [rows][k]
};

static void gather_piece(void *context, const unsigned char *from, int r, int k) {
    const struct gathering *g = context;
    for (int i = 0; i < 8; i++) {
        uint16_t *to = g->operand->mn_major ? &g->to[r + i][k] : &g->to[r][k + i];
        memcpy(to, from + 2 * i, 2);
    }
}

void operand_gather(const struct operand *o, uint16_t (*to)[16]) {
    each_piece(o, &(struct gathering){o, to}, gather_piece);
}

// ---- what may be wrong --------------------------------------------------------------------------

struct inspection {
    struct thread reader; // stands for all 128: it knows what each of them knows
    const struct operand *operand;
    struct sim_place place;
    uint32_t pc;
    int warpgroup;
};

static void inspect_piece(void *context, const unsigned char *p, int r, int k) {
    const struct inspection *c = context;
    if (p - smem >= SIM_SMEM_MAX || !memory_owns(p, 16))
        sim_fail("out of bounds: wgmma at %s:%d: by its descriptor, element (%d, %d) of %s lies at "
                 "smem + %td, which is not memory of this launch",
                 c->place.file, c->place.line, r, k * 2 / c->operand->element_bytes,
                 c->operand->name, p - smem);
    if (!sim_worker->fast)
        detect_range(&c->reader, WGMMA_AGENT + (unsigned)c->warpgroup, p, 16, SIM_LOAD, ASYNC,
                     c->pc);
}

static void check_descriptor(const struct operand *o, struct sim_place place) {
    uint64_t d = o->descriptor;
    uint32_t width = swizzle_bytes(d), a = address_field(d);
    if (base_offset(d))
        sim_fail("wgmma at %s:%d: the descriptor of %s has a base offset of %d; only 0 is "
                 "supported, for tiles that begin at multiples of 1024 bytes",
                 place.file, place.line, o->name, base_offset(d));
    if (width > 16 && a % (8 * width) >= width)
        sim_fail("wgmma at %s:%d: %s begins at smem + %u, in the middle of its first 8 rows of %u "
                 "bytes; a tile begins at a multiple of %u, a step along k stays within the row, "
                 "and after the row comes the next panel",
                 place.file, place.line, o->name, a, width, 8 * width);
    if (width > 16 && !o->mn_major && a % width + 32 > width)
        sim_fail("wgmma at %s:%d: %s begins at smem + %u, less than %d elements before the end of "
                 "a row of %u bytes",
                 place.file, place.line, o->name, a, 32 / o->element_bytes, width);
    // K-major and swizzled there is one panel, so a leading offset shows what was meant.
    if (o->element_bytes == 1 && width > 16 && leading(d) > 16)
        sim_fail("wgmma at %s:%d: FP8 operands are K-major, and the descriptor of %s has a leading "
                 "byte offset of %u, as MN-major panels do; store the matrix transposed",
                 place.file, place.line, o->name, leading(d));
    if (o->mn_major && width > 16 && o->rows > (int)width / 2 && leading(d) == 0)
        sim_fail("wgmma at %s:%d: %s has %d columns, a panel %u, and the leading byte offset, from "
                 "one panel to the next, is 0",
                 place.file, place.line, o->name, o->rows, width / 2);
}

// Knows only what all 128 threads know: a wait of one thread does not help the others.
static void common_knowledge(const struct warpgroup *g, struct knowledge *all) {
    const struct thread *t = &sim_worker->thread[128 * g->number];
    *all = *t[0].known;
    for (int i = 1; i < 128; i++) {
        const struct knowledge *k = t[i].known;
        for (int a = 0; a < AGENTS; a++)
            if (k->upto[a] < all->upto[a]) all->upto[a] = k->upto[a];
        if (k->latest < all->latest) all->latest = k->latest;
    }
}

void operand_inspect(const struct warpgroup *g, const struct operand *o, uint32_t pc) {
    struct sm90 *s = sim_worker->sm90;
    struct inspection c = {.reader = sim_worker->thread[128 * g->number],
                           .operand = o,
                           .place = g->place,
                           .pc = pc,
                           .warpgroup = g->number};
    common_knowledge(g, &s->common);
    c.reader.known = &s->common;
    check_descriptor(o, g->place);
    each_piece(o, &c, inspect_piece);
}

// `was` is what the operand held when the product was started.
void operand_expect_unchanged(const struct warpgroup *g, const struct operand *o,
                              uint16_t (*was)[16], struct sim_place place) {
    uint16_t(*now)[16] = sim_worker->sm90->scratch;
    operand_gather(o, now);
    for (int r = 0; r < o->rows; r++)
        for (int k = 0; k < 16; k++) {
            if (now[r][k] == was[r][k]) continue;
            int first_r = o->mn_major ? r / 8 * 8 : r, first_k = o->mn_major ? k : k / 8 * 8;
            bool second = (now[r][k] ^ was[r][k]) % 256 == 0; // of a pair
            sim_fail_at(&sim_worker->thread[128 * g->number],
                        "operand changed: element (%d, %d) of %s, in %s, was overwritten while the "
                        "wgmma that was started at %s:%d could still read it; its wgmma_wait() "
                        "must come before others are told that the memory is free",
                        r, o->element_bytes == 1 ? 2 * k + second : k, o->name,
                        memory_name(piece(o, first_r, first_k)), place.file, place.line);
        }
}

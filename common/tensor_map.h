// tensor_map.h - what TMA copies: a tensor in HBM, and the box that one instruction moves.
//
// The host describes both once, before the launch; the kernel is given the result as an argument,
// `const __grid_constant__ CUtensorMap map`, and hands its address to tma_load_… (ptx_sm90.h).
#ifndef TENSOR_MAP_H
#define TENSOR_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TENSOR_MAX_RANK = 4 };

// How a box lies in shared memory: row after row. With SWIZZLE_128B, in addition, 16-byte piece c
// of each 128 bytes is kept in place c xor (line mod 8), where a line is 128 bytes of shared
// memory, one row of the box. SWIZZLE_64B exchanges within 64 bytes only, and two rows of the box
// share a line: piece c of a row (of 4) is kept in place c xor (line mod 4). With SWIZZLE_32B four
// rows do: piece c (of 2) is kept in place c xor (line mod 2). So 8 rows are a pattern that
// repeats, of 1024, 512 or 256 bytes, and a box begins at a multiple of that. The enum's values are
// bytes.
enum tensor_swizzle { SWIZZLE_NONE, SWIZZLE_32B = 32, SWIZZLE_64B = 64, SWIZZLE_128B = 128 };

// Dimension 0 is the innermost: its elements are neighbours in memory.
struct tensor_box {
    const void *base;                 // a multiple of 16
    int element_bytes;                // 1, 2 or 4
    int rank;                         // 2 to 4
    uint64_t size[TENSOR_MAX_RANK];   // of the tensor, elements
    uint64_t stride[TENSOR_MAX_RANK]; // bytes, multiples of 16; stride[0] is not looked at
    uint32_t box[TENSOR_MAX_RANK];    // elements, 1 to 256 each
    enum tensor_swizzle swizzle;
};

// False, with one line in `why`, if TMA cannot copy such boxes.
bool tensor_box_check(const struct tensor_box *, char *why, size_t why_size);
size_t tensor_box_bytes(const struct tensor_box *); // of one box, in shared memory

// What one copy of the box at x = at[0], y = at[1], … counts as, in bytes of whole sectors: for
// kernels' models. So an H200 counts (notes/results/h200_instructions.csv). A load: the whole box,
// also what lies outside of the tensor; each row has as many sectors as a row of the tensor can
// have, so where strides are odd multiples of 16, rows of 128 bytes are 5 sectors each. A store:
// the sectors of what lies inside, row by row. (A NULL base will do: buffers begin with a sector.)
uint64_t tma_load_bytes(const struct tensor_box *, const int at[]);
uint64_t tma_store_bytes(const struct tensor_box *, const int at[]);

// Fills in *map, a CUtensorMap. False, with one line in `why`: tensor_box_check, or the driver,
// refuses. Answered by sim/tma.c and gpu/tensor_map.cu.
bool tensor_map_encode(const struct tensor_box *, void *map, char *why, size_t why_size);

#ifdef __cplusplus
}
#endif
#endif

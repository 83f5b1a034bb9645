// tensor_map.c - which boxes TMA can copy: the limits of cuTensorMapEncodeTiled (CUDA driver API,
// "Tensor Map Object Management"), each with a line of its own. The driver says only
// CUDA_ERROR_INVALID_VALUE.

#include "tensor_map.h"
#include "attn.h"
#include "refuse.h"

#include <inttypes.h>

size_t tensor_box_bytes(const struct tensor_box *t) {
    size_t bytes = (size_t)t->element_bytes;
    for (int i = 0; i < t->rank; i++) bytes *= t->box[i];
    return bytes;
}

uint64_t tma_load_bytes(const struct tensor_box *t, const int at[]) {
    uint64_t rows = 1, bytes = t->box[0] * (uint64_t)t->element_bytes;
    uint64_t address = (uintptr_t)t->base + (uint64_t)((int64_t)at[0] * t->element_bytes);
    bool uneven = false; // some rows of the tensor begin half a sector further on than others
    for (int i = 1; i < t->rank; i++) {
        rows *= t->box[i];
        address += (uint64_t)at[i] * t->stride[i];
        uneven |= t->stride[i] % SECTOR != 0;
    }
    uint64_t row = sectors(address % SECTOR, bytes);
    if (uneven && sectors(address % SECTOR + 16, bytes) > row) row++;
    return rows * row * SECTOR;
}

// Dimensions 0 to i of the box, at the place that the dimensions above have led to.
static uint64_t sectors_inside(const struct tensor_box *t, const int at[], int i,
                               uint64_t address) {
    int64_t first = at[i] > 0 ? at[i] : 0, end = (int64_t)at[i] + t->box[i];
    if (end > (int64_t)t->size[i]) end = (int64_t)t->size[i];
    if (first >= end) return 0;
    uint64_t element = (uint64_t)t->element_bytes, sum = 0;
    if (i == 0)
        return sectors(address + (uint64_t)first * element, (uint64_t)(end - first) * element);
    for (; first < end; first++)
        sum += sectors_inside(t, at, i - 1, address + (uint64_t)first * t->stride[i]);
    return sum;
}

uint64_t tma_store_bytes(const struct tensor_box *t, const int at[]) {
    return sectors_inside(t, at, t->rank - 1, (uintptr_t)t->base) * SECTOR;
}

static bool check_dimension(const struct tensor_box *t, int i, char *why, size_t why_size) {
    if (t->size[i] < 1 || t->size[i] > (uint64_t)1 << 32)
        return refuse(why, why_size,
                      "tensor map: dimension %d has %" PRIu64 " elements; TMA takes 1 to 2^32", i,
                      t->size[i]);
    if (t->box[i] < 1 || t->box[i] > 256)
        return refuse(why, why_size,
                      "tensor map: the box has %" PRIu32
                      " elements along dimension %d; TMA takes 1 to 256, make several copies",
                      t->box[i], i);
    if (i > 0 && (t->stride[i] % 16 || t->stride[i] >= (uint64_t)1 << 40))
        return refuse(why, why_size,
                      "tensor map: the stride of dimension %d is %" PRIu64
                      " bytes; TMA takes multiples of 16 below 2^40, pad the rows",
                      i, t->stride[i]);
    return true;
}

bool tensor_box_check(const struct tensor_box *t, char *why, size_t why_size) {
    if (t->rank < 2 || t->rank > TENSOR_MAX_RANK)
        return refuse(why, why_size, "tensor map: %d dimensions; 2 to %d are supported", t->rank,
                      TENSOR_MAX_RANK);
    if (t->element_bytes != 1 && t->element_bytes != 2 && t->element_bytes != 4)
        return refuse(why, why_size, "tensor map: elements of %d bytes; 1, 2 or 4 are supported",
                      t->element_bytes);
    if ((uintptr_t)t->base % 16)
        return refuse(why, why_size,
                      "tensor map: the tensor begins at an address that is %d "
                      "modulo 16; TMA needs a multiple of 16",
                      (int)((uintptr_t)t->base % 16));
    for (int i = 0; i < t->rank; i++)
        if (!check_dimension(t, i, why, why_size)) return false;
    uint32_t row = t->box[0] * (uint32_t)t->element_bytes;
    if (row % 16)
        return refuse(
            why, why_size,
            "tensor map: a row of the box has %" PRIu32 " bytes; TMA needs a multiple of 16", row);
    if (t->swizzle != SWIZZLE_NONE && row > t->swizzle)
        return refuse(why, why_size,
                      "tensor map: a row of the box has %" PRIu32
                      " bytes; with SWIZZLE_%dB at most %d, make several copies",
                      row, (int)t->swizzle, (int)t->swizzle);
    if (t->swizzle != SWIZZLE_NONE && row < t->swizzle)
        return refuse(
            why, why_size,
            "tensor map: a row of the box has %" PRIu32
            " bytes; with SWIZZLE_%dB TMA would leave gaps behind shorter rows than %d, "
            "which the simulator does not do: swizzle less, or let the box reach over the "
            "tensor's end",
            row, (int)t->swizzle, (int)t->swizzle);
    return true;
}

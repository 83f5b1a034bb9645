// tensor_map.cu - tensor maps on a GPU: encoded by the driver.
//
// The encoder is a function of libcuda. The programs here are not linked with that, so that they
// start on machines without a GPU; the runtime is asked for the function instead.

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "refuse.h"
#include "tensor_map.h"

static PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                         cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
    return (PFN_cuTensorMapEncodeTiled_v12000)function;
}

// Copies move bits, so the type only says how many; what lies outside of the tensor becomes zeros.
static CUtensorMapDataType type_of(int element_bytes) {
    return element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
           : element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

static CUtensorMapSwizzle swizzle_of(tensor_swizzle s) {
    return s == SWIZZLE_128B  ? CU_TENSOR_MAP_SWIZZLE_128B
           : s == SWIZZLE_64B ? CU_TENSOR_MAP_SWIZZLE_64B
           : s == SWIZZLE_32B ? CU_TENSOR_MAP_SWIZZLE_32B
                              : CU_TENSOR_MAP_SWIZZLE_NONE;
}

bool tensor_map_encode(const tensor_box *t, void *map, char *why, size_t why_size) {
    if (!tensor_box_check(t, why, why_size)) return false;
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
    if (!encode)
        return refuse(why, why_size,
                      "tensor map: this driver has no cuTensorMapEncodeTiled; "
                      "install a driver for CUDA 12 or newer");
    cuuint64_t size[TENSOR_MAX_RANK], stride[TENSOR_MAX_RANK];
    cuuint32_t box[TENSOR_MAX_RANK], step[TENSOR_MAX_RANK];
    for (int i = 0; i < t->rank; i++) {
        size[i] = t->size[i];
        box[i] = t->box[i];
        step[i] = 1;
        if (i > 0) stride[i - 1] = t->stride[i];
    }
    CUresult result =
        encode((CUtensorMap *)map, type_of(t->element_bytes), t->rank, (void *)t->base, size,
               stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(t->swizzle),
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS) return true;
    return refuse(why, why_size, "tensor map: cuTensorMapEncodeTiled returned error %d", result);
}

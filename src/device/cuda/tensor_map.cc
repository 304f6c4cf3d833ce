#include "device/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "device/cuda/launch.h"

namespace volley::cuda {
namespace {

// The driver is found through the runtime: nothing links against libcuda, so the program starts on machines without it.
PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  static const PFN_cuTensorMapEncodeTiled_v12000 function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    VOLLEY_CUDA_CHECK(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    VOLLEY_CHECK_MSG(found == cudaDriverEntryPointSuccess, "this driver has no tensor maps: it is older than CUDA 12");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return function;
}

// Boxes have rows of 128 bytes.
CUtensorMap matrix_map(CUtensorMapDataType type, int element_bytes, const void* data, int64_t rows, int64_t columns,
                       int box_rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns * element_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / element_bytes), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult result = encode_function()(&map, type, 2, const_cast<void*>(data), sizes, strides, box, steps,
                                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  VOLLEY_CHECK_EQ(static_cast<int>(result), static_cast<int>(CUDA_SUCCESS));
  return map;
}

}  // namespace

CUtensorMap bf16_matrix_map(const void* data, int64_t rows, int64_t columns, int box_rows) {
  return matrix_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, rows, columns, box_rows);
}

CUtensorMap byte_matrix_map(const void* data, int64_t rows, int64_t columns, int box_rows) {
  return matrix_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, data, rows, columns, box_rows);
}

}  // namespace volley::cuda

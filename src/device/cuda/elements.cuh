// One element of a tensor whose type is known at run time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "device/dtype.h"

namespace volley::cuda {

__device__ inline float load_float(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kBF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case DType::kF16:
      return __half2float(static_cast<const __half*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

// bf16 (to the nearest, ties to even) or fp32.
__device__ inline void store_float(void* data, DType dtype, int64_t i, float v) {
  if (dtype == DType::kBF16) {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(v);
  } else {
    static_cast<float*>(data)[i] = v;
  }
}

}  // namespace volley::cuda

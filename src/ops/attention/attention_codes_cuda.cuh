// e4m3 codes of K and V as the tile kernels multiply them.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "ops/attention/warp_products.cuh"

namespace volley::ops {

// Two codes, in the lower half of `codes`, as bf16, which holds each of them exactly. NaN stays NaN.
__device__ inline uint32_t widen_pair(uint32_t codes) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xffff), __NV_E4M3);
  const float2 values = __half22float2(__half2(halves));
  return pack_bf16(values.x, values.y);
}

// Eight codes: one piece of a swizzled tile (cuda_page.cuh).
__device__ inline uint4 widen_piece(uint2 codes) {
  return {widen_pair(codes.x), widen_pair(codes.x >> 16), widen_pair(codes.y), widen_pair(codes.y >> 16)};
}

}  // namespace volley::ops

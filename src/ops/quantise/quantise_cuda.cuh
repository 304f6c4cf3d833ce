// Shared by kernels that write e4m3 codes: the largest magnitude of a row, and the codes for its values.
#pragma once

#include <cuda_fp8.h>

#include <cfloat>
#include <cstdint>

#include "device/dtype.h"

namespace volley::ops {

// Magnitudes as whole numbers: of finite values in their order, then infinity, then NaN, which no maximum loses.
__device__ inline uint32_t magnitude_bits(float v) {
  return __float_as_uint(v) & 0x7fffffff;
}

// The largest over the block, the same in every thread. Called once in a kernel.
template <int kThreads>
__device__ uint32_t block_largest(uint32_t bits) {
  __shared__ uint32_t of_warps[kThreads / 32];
  bits = __reduce_max_sync(0xffffffff, bits);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = bits;
  __syncthreads();
  for (uint32_t other : of_warps) bits = max(bits, other);
  return bits;
}

// Never subnormal, so that its inverse is finite, and a row of zeros has one.
__device__ inline float code_scale(uint32_t largest_bits) {
  if (largest_bits >= 0x7f800000) return __uint_as_float(0x7fffffff);
  return fmaxf(__uint_as_float(largest_bits) / kMaxFloat8E4M3, FLT_MIN);
}

__device__ inline uint8_t code(float v, float inverse) {
  return __nv_cvt_float_to_fp8(v * inverse, __NV_SATFINITE, __NV_E4M3);
}
// Four codes, the first in the lowest byte.
__device__ inline uint32_t codes(float4 v, float inverse) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2({v.x * inverse, v.y * inverse}, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2({v.z * inverse, v.w * inverse}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

}  // namespace volley::ops

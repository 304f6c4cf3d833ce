// What the matrix kernels of all GPUs do with finished sums, four neighbouring outputs at a time.
#pragma once

#include <cuda_bf16.h>

#include "ops/linear/linear_cuda.h"
#include "ops/linear/sent_sums.cuh"

namespace volley::ops {

__device__ inline float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// A sum of FP8 codes. Never fused with an addition that follows: its bits must not depend on who adds.
__device__ inline float scaled(float sum, float weight_scale, float row_scale) {
  return __fmul_rn(__fmul_rn(sum, weight_scale), row_scale);
}
__device__ inline float4 scaled(float4 sums, float4 weight_scales, float row_scale) {
  return {scaled(sums.x, weight_scales.x, row_scale), scaled(sums.y, weight_scales.y, row_scale),
          scaled(sums.z, weight_scales.z, row_scale), scaled(sums.w, weight_scales.w, row_scale)};
}

// Not inlined: many instructions, and kernels that end with this are slow where they must be fetched.
static __device__ __noinline__ float4 swiglu_exactly(float4 gate, float4 up) {
  const auto one = [](float g, float u) { return g / (1.0f + expf(-g)) * u; };
  return {one(gate.x, up.x), one(gate.y, up.y), one(gate.z, up.z), one(gate.w, up.w)};
}

// 1 / (1 + exp(-g)) in four instructions, with an error in the 18th bit or later. Numbers below the normal ones are
// zero.
__device__ inline float sigmoid_quickly(float g) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(g * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  return r;
}
__device__ inline float silu_quickly(float g) {
  return g * sigmoid_quickly(g);
}

// silu(gate) * up. A result that is about to be rounded to bf16 takes the quick exponential and reciprocal: with the
// exact ones, 128 rows of this cost six microseconds a tile.
__device__ inline float4 swiglu(float4 gate, float4 up, bool quick) {
  if (!quick) return swiglu_exactly(gate, up);
  const auto one = [](float g, float u) { return silu_quickly(g) * u; };
  return {one(gate.x, up.x), one(gate.y, up.y), one(gate.z, up.z), one(gate.w, up.w)};
}

// To y[at .. at + 3], bf16 or fp32; `at` is a multiple of 4.
__device__ inline void store4(void* y, bool y_bf16, int64_t at, float4 v) {
  if (!y_bf16) {
    *reinterpret_cast<float4*>(static_cast<float*>(y) + at) = v;
    return;
  }
  const __nv_bfloat162 halves[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(y) + at) = *reinterpret_cast<const uint2*>(halves);
}

// Two neighbours; `at` is even.
__device__ inline void store2(void* y, bool y_bf16, int64_t at, float2 v) {
  if (y_bf16) {
    *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(y) + at) = __floats2bfloat162_rn(v.x, v.y);
  } else {
    *reinterpret_cast<float2*>(static_cast<float*>(y) + at) = v;
  }
}

}  // namespace volley::ops

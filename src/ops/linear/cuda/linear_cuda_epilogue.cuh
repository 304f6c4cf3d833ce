// The ends of the matrix kernels of all GPUs, for four neighbouring outputs at a time.
#pragma once

#include <cuda_bf16.h>

#include "ops/linear/cuda/linear_cuda.h"
#include "ops/linear/cuda/sent_sums.cuh"

namespace volley::ops {

__device__ inline float4 add(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// A sum of FP8 codes. Never fused with a later addition: its bits must not depend on the code that adds.
__device__ inline float scaled(float sum, float weight_scale, float row_scale) {
  return __fmul_rn(__fmul_rn(sum, weight_scale), row_scale);
}
__device__ inline float4 scaled(float4 sums, float4 weight_scales, float row_scale) {
  return {scaled(sums.x, weight_scales.x, row_scale), scaled(sums.y, weight_scales.y, row_scale),
          scaled(sums.z, weight_scales.z, row_scale), scaled(sums.w, weight_scales.w, row_scale)};
}

// The number whose sigmoid multiplies a gate (linear.h).
__device__ inline float activation_of(EndKind kind, float g) {
  return kind == EndKind::kGeGlu ? g * (kGeluLinear + kGeluCubic * (g * g)) : g;
}

__device__ inline float gated(EndKind kind, float g, float u) {
  return g / (1.0f + expf(-activation_of(kind, g))) * u;
}

// Not inlined: it has many instructions, and kernels that end with this are slow if they must fetch those.
static __device__ __noinline__ float4 gated_exactly(EndKind kind, float4 gate, float4 up) {
  const auto one = [kind](float g, float u) { return gated(kind, g, u); };
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

// silu(gate) * up, or gelu(gate) * up. A result that is about to be rounded to bf16 takes the quick exponential and
// reciprocal: with the exact ones, 128 rows of this cost six microseconds a tile.
__device__ inline float4 gated(EndKind kind, float4 gate, float4 up, bool quick) {
  if (!quick) return gated_exactly(kind, gate, up);
  const auto one = [kind](float g, float u) { return g * sigmoid_quickly(activation_of(kind, g)) * u; };
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

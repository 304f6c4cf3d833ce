#include <cuda_bf16.h>

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/quantise/quantise_cuda.cuh"
#include "ops/quantise/quantise_cuda.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 512;

// Four neighbouring values.
__device__ float4 load(const float4* row, int64_t i) {
  return row[i];
}
__device__ float4 load(const uint2* row, int64_t i) {
  const uint2 bits = row[i];
  const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.x));
  const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.y));
  return {low.x, low.y, high.x, high.y};
}

// A block a row, which it reads twice: the second time from its own cache.
template <typename Four>
__global__ void __launch_bounds__(kThreads)
    quantise_rows_kernel(const Four* x, int64_t fours, uint32_t* values, float* scales) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const Four* row = x + blockIdx.x * fours;
  uint32_t largest = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < fours; i += kThreads) {
    const float4 v = load(row, i);
    largest =
        max(max(max(largest, magnitude_bits(v.x)), magnitude_bits(v.y)), max(magnitude_bits(v.z), magnitude_bits(v.w)));
  }
  const float scale = code_scale(block_largest<kThreads>(largest)), inverse = 1.0f / scale;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < fours; i += kThreads) values[blockIdx.x * fours + i] = codes(load(row, i), inverse);
}

}  // namespace

void quantise_rows_cuda(Stream& stream, TensorView x, const ScaledRows& y) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(x.shape[0]));
  how.block = dim3(kThreads);
  how.early = true;
  const int64_t fours = x.shape[1] / 4;
  auto* values = static_cast<uint32_t*>(y.values.data);
  if (x.dtype == DType::kBF16) {
    cuda::launch(quantise_rows_kernel<uint2>, how, stream, static_cast<const uint2*>(x.data), fours, values,
                 y.scales.as<float>());
  } else {
    cuda::launch(quantise_rows_kernel<float4>, how, stream, static_cast<const float4*>(x.data), fours, values,
                 y.scales.as<float>());
  }
}

}  // namespace volley::ops

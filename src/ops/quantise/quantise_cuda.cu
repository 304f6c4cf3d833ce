#include <cuda_bf16.h>

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/quantise/quantise_cuda.cuh"
#include "ops/quantise/quantise_kernels.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 512;

// Eight neighbouring values as they lie in memory, and as floats.
struct Floats {
  float4 low, high;
};
__device__ Floats floats(const Floats& values) {
  return values;
}
__device__ Floats floats(const uint4& values) {
  const auto two = [](uint32_t bits) { return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits)); };
  const float2 a = two(values.x), b = two(values.y), c = two(values.z), d = two(values.w);
  return {{a.x, a.y, b.x, b.y}, {c.x, c.y, d.x, d.y}};
}

__device__ uint32_t largest_of(const Floats& v) {
  const auto of_four = [](float4 f) {
    return max(max(magnitude_bits(f.x), magnitude_bits(f.y)), max(magnitude_bits(f.z), magnitude_bits(f.w)));
  };
  return max(of_four(v.low), of_four(v.high));
}

__device__ uint2 codes_of(const Floats& v, float inverse) {
  return {codes(v.low, inverse), codes(v.high, inverse)};
}

// Makes the row's scale from the largest value of each thread. Writes the scale; returns its inverse.
__device__ float inverse_scale(uint32_t largest, float* scales) {
  const float scale = code_scale(block_largest<kThreads>(largest));
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  return 1.0f / scale;
}

// A block a row of `eights` times eight values, of which a thread holds kHeld times eight at most, all read at once.
template <typename Eight, int kHeld>
__global__ void __launch_bounds__(kThreads)
    quantise_rows_kernel(const Eight* x, int eights, uint2* values, float* scales) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t row = blockIdx.x * static_cast<int64_t>(eights);
  Eight held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = static_cast<int>(threadIdx.x) + j * kThreads;
    if (i < eights) held[j] = x[row + i];
  }
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = static_cast<int>(threadIdx.x) + j * kThreads;
    if (i < eights) largest = max(largest, largest_of(floats(held[j])));
  }
  const float inverse = inverse_scale(largest, scales);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = static_cast<int>(threadIdx.x) + j * kThreads;
    if (i < eights) values[row + i] = codes_of(floats(held[j]), inverse);
  }
}

// Rows of any length, read twice: the second time from the cache.
template <typename Eight>
__global__ void __launch_bounds__(kThreads)
    quantise_long_rows_kernel(const Eight* x, int eights, uint2* values, float* scales) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t row = blockIdx.x * static_cast<int64_t>(eights);
  uint32_t largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < eights; i += kThreads) {
    largest = max(largest, largest_of(floats(x[row + i])));
  }
  const float inverse = inverse_scale(largest, scales);
  for (int i = static_cast<int>(threadIdx.x); i < eights; i += kThreads) {
    values[row + i] = codes_of(floats(x[row + i]), inverse);
  }
}

// In groups: a thread has eight values, 16 threads a group. scales: [groups, stride].
template <typename Eight>
__global__ void __launch_bounds__(kThreads)
    quantise_groups_kernel(const Eight* x, int eights, uint2* values, float* scales, int64_t stride) {
  constexpr int kGroupThreads = kScaleGroup / 8;
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  const int64_t at = blockIdx.x * static_cast<int64_t>(eights) + i;
  const bool exists = i < eights;
  Floats own = {};
  if (exists) own = floats(x[at]);
  uint32_t largest = largest_of(own);
#pragma unroll
  for (int lane = kGroupThreads / 2; lane > 0; lane /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffff, largest, lane));
  }
  if (!exists) return;
  const float scale = code_scale(largest);
  if (i % kGroupThreads == 0) scales[i / kGroupThreads * stride + blockIdx.x] = scale;
  values[at] = codes_of(own, 1.0f / scale);
}

template <typename Eight>
auto kernel_for(int eights) {
  if (eights <= kThreads) return quantise_rows_kernel<Eight, 1>;
  if (eights <= 3 * kThreads) return quantise_rows_kernel<Eight, 3>;
  if (eights <= 6 * kThreads) return quantise_rows_kernel<Eight, 6>;
  return quantise_long_rows_kernel<Eight>;
}

void quantise_rows_cuda(Stream& stream, TensorView x, const Input& y) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(x.shape[0]));
  how.block = dim3(kThreads);
  how.early = true;
  const int eights = static_cast<int>(x.shape[1] / 8);
  auto* values = static_cast<uint2*>(y.values.data);
  const auto run = [&]<typename Eight>(const Eight* from) {
    if (y.in_groups()) {
      how.grid.y = static_cast<unsigned>((eights + kThreads - 1) / kThreads);
      return cuda::launch(quantise_groups_kernel<Eight>, how, stream, from, eights, values, y.scales.as<float>(),
                          y.scales.shape[1]);
    }
    cuda::launch(kernel_for<Eight>(eights), how, stream, from, eights, values, y.scales.as<float>());
  };
  if (x.dtype == DType::kBF16) {
    run(static_cast<const uint4*>(x.data));
  } else {
    run(static_cast<const Floats*>(x.data));
  }
}

}  // namespace

const QuantiseKernels QuantiseKernels::kCuda = {quantise_rows_cuda};

}  // namespace volley::ops

#include "ops/norm/norm_cuda.h"

#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/quantise/quantise_cuda.cuh"

namespace volley::ops {
namespace {

constexpr int kThreads = 512;

struct NormArgs {
  const float* x;
  const float* weight;
  const int32_t* row_index;  // null: rows in order
  void* y;
  DType y_dtype;
  float* y_scales;  // of codes
  int64_t x_rows, h;
  float eps;
};

// Sum over the block, the same in every thread: lanes as a tree, then warps in order.
__device__ float block_sum(float v) {
  __shared__ float sums[kThreads / 32];
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffff, v, lane);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = sums[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) sum += sums[i];
  return sum;
}

__device__ int64_t row_of(const NormArgs& args) {
  const int64_t row = args.row_index == nullptr ? blockIdx.x : args.row_index[blockIdx.x];
  if (row < 0 || row >= args.x_rows) __trap();  // our bug: the stream reports it at its next call
  return row;
}

__device__ float scale_of(const NormArgs& args, float squares) {
  return 1.0f / sqrtf(block_sum(squares) / static_cast<float>(args.h) + args.eps);
}

// Writes the scale of the row's codes. Returns its inverse.
__device__ float inverse_scale(const NormArgs& args, uint32_t largest) {
  const float scale = code_scale(block_largest<kThreads>(largest));
  if (threadIdx.x == 0) args.y_scales[blockIdx.x] = scale;
  return 1.0f / scale;
}

// A block a row; thread t takes elements t, t + kThreads, …, so the order depends on h alone.
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(NormArgs args) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const float* x = args.x + row_of(args) * args.h;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < args.h; i += kThreads) squares = fmaf(x[i], x[i], squares);
  const float scale = scale_of(args, squares);
  const auto result = [&](int64_t i) { return x[i] * scale * args.weight[i]; };
  const int64_t to = static_cast<int64_t>(blockIdx.x) * args.h;
  if (args.y_dtype != DType::kF8E4M3) {
    for (int64_t i = threadIdx.x; i < args.h; i += kThreads) cuda::store_float(args.y, args.y_dtype, to + i, result(i));
    return;
  }
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < args.h; i += kThreads) largest = max(largest, magnitude_bits(result(i)));
  const float inverse = inverse_scale(args, largest);
  for (int64_t i = threadIdx.x; i < args.h; i += kThreads) {
    static_cast<uint8_t*>(args.y)[to + i] = code(result(i), inverse);
  }
}

// The same for rows of whole vectors of four, kVectors of them a thread at most: thread t takes vectors t, t +
// kThreads, …, and reads each once. The weights, which no kernel writes, come while the predecessor still runs.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) rms_norm_vectors_kernel(NormArgs args) {
  cuda::launch_dependents();
  const int vectors = static_cast<int>(args.h / 4);
  float4 weight[kVectors], x[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = static_cast<int>(threadIdx.x) + j * kThreads;
    if (i < vectors) weight[j] = reinterpret_cast<const float4*>(args.weight)[i];
  }
  cuda::wait_for_predecessors();
  const auto* from = reinterpret_cast<const float4*>(args.x + row_of(args) * args.h);
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = static_cast<int>(threadIdx.x) + j * kThreads;
    x[j] = i < vectors ? from[i] : float4{0, 0, 0, 0};
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    squares = fmaf(x[j].x, x[j].x, squares);
    squares = fmaf(x[j].y, x[j].y, squares);
    squares = fmaf(x[j].z, x[j].z, squares);
    squares = fmaf(x[j].w, x[j].w, squares);
  }
  const float scale = scale_of(args, squares);
  const auto result = [&](int j) {
    return float4{x[j].x * scale * weight[j].x, x[j].y * scale * weight[j].y, x[j].z * scale * weight[j].z,
                  x[j].w * scale * weight[j].w};
  };
  float inverse = 0;
  if (args.y_dtype == DType::kF8E4M3) {
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (static_cast<int>(threadIdx.x) + j * kThreads >= vectors) break;
      const float4 y = result(j);
      largest = max(max(max(largest, magnitude_bits(y.x)), magnitude_bits(y.y)),
                    max(magnitude_bits(y.z), magnitude_bits(y.w)));
    }
    inverse = inverse_scale(args, largest);
  }
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = static_cast<int>(threadIdx.x) + j * kThreads;
    if (i >= vectors) break;
    const float4 y = result(j);
    const int64_t to = static_cast<int64_t>(blockIdx.x) * vectors + i;
    if (args.y_dtype == DType::kBF16) {
      const __nv_bfloat162 low = __floats2bfloat162_rn(y.x, y.y), high = __floats2bfloat162_rn(y.z, y.w);
      static_cast<uint2*>(args.y)[to] = {reinterpret_cast<const uint32_t&>(low),
                                         reinterpret_cast<const uint32_t&>(high)};
    } else if (args.y_dtype == DType::kF8E4M3) {
      static_cast<uint32_t*>(args.y)[to] = codes(y, inverse);
    } else {
      static_cast<float4*>(args.y)[to] = y;
    }
  }
}

// By the row's length alone: which kernel adds decides the bits.
auto kernel_for(int64_t h) {
  if (h % 4 == 0 && h <= 4 * kThreads) return rms_norm_vectors_kernel<1>;
  if (h % 4 == 0 && h <= 8 * kThreads) return rms_norm_vectors_kernel<2>;
  if (h % 4 == 0 && h <= 16 * kThreads) return rms_norm_vectors_kernel<4>;
  return rms_norm_kernel;
}

}  // namespace

void rms_norm_cuda(Stream& stream, TensorView x, TensorView weight, float eps, TensorView row_index,
                   const ScaledRows& y) {
  NormArgs args;
  args.x = x.as<float>();
  args.weight = weight.as<float>();
  args.row_index = row_index.data == nullptr ? nullptr : row_index.as<int32_t>();
  args.y = y.values.data;
  args.y_dtype = y.values.dtype;
  args.y_scales = static_cast<float*>(y.scales.data);
  args.x_rows = x.shape[0];
  args.h = x.shape[1];
  args.eps = eps;
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(y.values.shape[0]));
  how.block = dim3(kThreads);
  how.early = true;
  cuda::launch(kernel_for(args.h), how, stream, args);
}

}  // namespace volley::ops

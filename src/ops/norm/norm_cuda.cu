#include "ops/norm/norm_kernels.h"

#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/quantise/quantise_cuda.cuh"

namespace volley::ops {
namespace {

// In which order a row's squares are added goes by h alone: kChains chains, each of every kChains-th element (or vector
// of four); of 32 neighbouring chains a tree; and what those give, one after the other. How many threads share the
// chains changes nothing.
constexpr int kChains = 512;

// The kernel for vectors has few threads, because what a block does once costs its instructions in each of its warps.
// With two chains each thread has enough reads under way. 512 threads are slower, and so
// are 128 but for some sizes.
constexpr int kVectorThreads = 256;

struct NormArgs {
  const float* x;
  const float* weight;
  const int32_t* row_index;  // null: rows in order
  void* y;
  DType y_dtype;
  float* y_scales;    // of codes
  int64_t groups_at;  // of codes in groups: from a group's scales to the next one's; else 0
  uint8_t* features;  // null: no copy of x
  DType feature_dtype;
  int64_t feature_stride;  // bytes from row to row
  int64_t x_rows, h;
  float eps;
};

// Sum over the block, the same in every thread. Thread t has the chains t, t + kThreads, …
template <int kThreads>
__device__ float sum_of_chains(float (&chains)[kChains / kThreads]) {
  __shared__ __align__(16) float sums[kChains / 32];
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
#pragma unroll
    for (float& chain : chains) chain += __shfl_xor_sync(0xffffffff, chain, lane);
  }
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int c = 0; c < kChains / kThreads; ++c) sums[c * (kThreads / 32) + threadIdx.x / 32] = chains[c];
  }
  __syncthreads();
  float sum = sums[0];
#pragma unroll
  for (int i = 1; i < kChains / 32; ++i) sum += sums[i];
  return sum;
}

__device__ int64_t row_of(const NormArgs& args) {
  const int64_t row = args.row_index == nullptr ? blockIdx.x : args.row_index[blockIdx.x];
  if (row < 0 || row >= args.x_rows) __trap();  // our bug: the stream reports it at its next call
  return row;
}

__device__ float scale_of(const NormArgs& args, float squares) {
  return 1.0f / sqrtf(squares / static_cast<float>(args.h) + args.eps);
}

// Writes the scale of the row's codes. Returns its inverse.
template <int kThreads>
__device__ float inverse_scale(const NormArgs& args, uint32_t largest) {
  const float scale = code_scale(block_largest<kThreads>(largest));
  if (threadIdx.x == 0) args.y_scales[blockIdx.x] = scale;
  return 1.0f / scale;
}

__device__ uint2 to_bf16(float4 v) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y), high = __floats2bfloat162_rn(v.z, v.w);
  return {reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high)};
}

// Writes the row's results as codes in groups, a warp a group.
template <typename Result>
__device__ void code_groups(const NormArgs& args, const Result& result) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  auto* const y = static_cast<uint8_t*>(args.y) + blockIdx.x * args.h;
  for (int64_t group = threadIdx.x / 32; group * kScaleGroup < args.h; group += kChains / 32) {
    const int64_t end = min(args.h, (group + 1) * kScaleGroup);
    uint32_t largest = 0;
    for (int64_t i = group * kScaleGroup + lane; i < end; i += 32) largest = max(largest, magnitude_bits(result(i)));
    const float scale = code_scale(__reduce_max_sync(0xffffffff, largest)), inverse = 1.0f / scale;
    if (lane == 0) args.y_scales[group * args.groups_at + blockIdx.x] = scale;
    for (int64_t i = group * kScaleGroup + lane; i < end; i += 32) y[i] = code(result(i), inverse);
  }
}

// A block a row, and a chain a thread.
__global__ void __launch_bounds__(kChains) rms_norm_kernel(NormArgs args) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const float* x = args.x + row_of(args) * args.h;
  float chain[1] = {0};
  for (int64_t i = threadIdx.x; i < args.h; i += kChains) chain[0] = fmaf(x[i], x[i], chain[0]);
  if (args.features != nullptr) {
    uint8_t* const to = args.features + blockIdx.x * args.feature_stride;
    for (int64_t i = threadIdx.x; i < args.h; i += kChains) cuda::store_float(to, args.feature_dtype, i, x[i]);
  }
  const float scale = scale_of(args, sum_of_chains<kChains>(chain));
  const auto result = [&](int64_t i) { return x[i] * scale * args.weight[i]; };
  const int64_t to = static_cast<int64_t>(blockIdx.x) * args.h;
  if (args.y_dtype != DType::kF8E4M3) {
    for (int64_t i = threadIdx.x; i < args.h; i += kChains) cuda::store_float(args.y, args.y_dtype, to + i, result(i));
    return;
  }
  if (args.groups_at > 0) return code_groups(args, result);
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < args.h; i += kChains) largest = max(largest, magnitude_bits(result(i)));
  const float inverse = inverse_scale<kChains>(args, largest);
  for (int64_t i = threadIdx.x; i < args.h; i += kChains) {
    static_cast<uint8_t*>(args.y)[to + i] = code(result(i), inverse);
  }
}

// The same for rows of whole vectors of four, kVectors of them a chain at most, each read once. The weights, which no
// kernel writes, come while the predecessor still runs.
template <int kVectors>
__global__ void __launch_bounds__(kVectorThreads) rms_norm_vectors_kernel(NormArgs args) {
  constexpr int kEach = kChains / kVectorThreads, kHeld = kVectors * kEach;
  cuda::launch_dependents();
  const int vectors = static_cast<int>(args.h / 4);
  const auto at = [](int j) { return static_cast<int>(threadIdx.x) + j * kVectorThreads; };  // of the chain j % kEach
  float4 weight[kHeld], x[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (at(j) < vectors) weight[j] = reinterpret_cast<const float4*>(args.weight)[at(j)];
  }
  cuda::wait_for_predecessors();
  const auto* from = reinterpret_cast<const float4*>(args.x + row_of(args) * args.h);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) x[j] = at(j) < vectors ? from[at(j)] : float4{0, 0, 0, 0};
  float chains[kEach] = {};
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    float& chain = chains[j % kEach];
    chain = fmaf(x[j].x, x[j].x, chain);
    chain = fmaf(x[j].y, x[j].y, chain);
    chain = fmaf(x[j].z, x[j].z, chain);
    chain = fmaf(x[j].w, x[j].w, chain);
  }
  if (args.features != nullptr) {
    uint8_t* const to = args.features + blockIdx.x * args.feature_stride;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (at(j) >= vectors) break;
      if (args.feature_dtype == DType::kBF16) {
        reinterpret_cast<uint2*>(to)[at(j)] = to_bf16(x[j]);
      } else {
        reinterpret_cast<float4*>(to)[at(j)] = x[j];
      }
    }
  }
  const float scale = scale_of(args, sum_of_chains<kVectorThreads>(chains));
  const auto result = [&](int j) {
    return float4{x[j].x * scale * weight[j].x, x[j].y * scale * weight[j].y, x[j].z * scale * weight[j].z,
                  x[j].w * scale * weight[j].w};
  };
  const auto largest_of = [&](int j) {  // of values that do not exist 0, as x is
    if (at(j) >= vectors) return 0u;
    const float4 y = result(j);
    return max(max(magnitude_bits(y.x), magnitude_bits(y.y)), max(magnitude_bits(y.z), magnitude_bits(y.w)));
  };
  float inverse[kHeld] = {};
  if (args.y_dtype == DType::kF8E4M3 && args.groups_at > 0) {
    static_assert(kScaleGroup == 4 * 32, "the vectors of a warp are a group");
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const float scale = code_scale(__reduce_max_sync(0xffffffff, largest_of(j)));
      inverse[j] = 1.0f / scale;
      const bool writes = threadIdx.x % 32 == 0 && at(j) < vectors;
      if (writes) args.y_scales[at(j) / 32 * args.groups_at + blockIdx.x] = scale;
    }
  } else if (args.y_dtype == DType::kF8E4M3) {
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) largest = max(largest, largest_of(j));
    const float of_row = inverse_scale<kVectorThreads>(args, largest);
#pragma unroll
    for (float& i : inverse) i = of_row;
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (at(j) >= vectors) break;
    const float4 y = result(j);
    const int64_t to = static_cast<int64_t>(blockIdx.x) * vectors + at(j);
    if (args.y_dtype == DType::kBF16) {
      static_cast<uint2*>(args.y)[to] = to_bf16(y);
    } else if (args.y_dtype == DType::kF8E4M3) {
      static_cast<uint32_t*>(args.y)[to] = codes(y, inverse[j]);
    } else {
      static_cast<float4*>(args.y)[to] = y;
    }
  }
}

struct Chosen {
  void (*kernel)(NormArgs);
  int threads;
};

// By the row's length alone: which kernel adds decides the bits.
Chosen kernel_for(int64_t h) {
  if (h % 4 == 0 && h <= 4 * kChains) return {rms_norm_vectors_kernel<1>, kVectorThreads};
  if (h % 4 == 0 && h <= 8 * kChains) return {rms_norm_vectors_kernel<2>, kVectorThreads};
  if (h % 4 == 0 && h <= 16 * kChains) return {rms_norm_vectors_kernel<4>, kVectorThreads};
  return {rms_norm_kernel, kChains};
}

void rms_norm_cuda(Stream& stream, TensorView x, TensorView weight, float eps, TensorView row_index, const Input& y,
                   const FeatureBlock& copy) {
  NormArgs args = {};
  args.x = x.as<float>();
  args.weight = weight.as<float>();
  args.row_index = row_index.data == nullptr ? nullptr : row_index.as<int32_t>();
  args.y = y.values.data;
  args.y_dtype = y.values.dtype;
  args.y_scales = static_cast<float*>(y.scales.data);
  args.groups_at = y.in_groups() ? y.scales.shape[1] : 0;
  if (copy.features.data != nullptr) {
    const auto size = static_cast<int64_t>(dtype_size(copy.features.dtype));
    args.features = static_cast<uint8_t*>(copy.features.data) + copy.index * x.shape[1] * size;
    args.feature_dtype = copy.features.dtype;
    args.feature_stride = copy.features.shape[1] * size;
  }
  args.x_rows = x.shape[0];
  args.h = x.shape[1];
  args.eps = eps;
  const Chosen chosen = kernel_for(args.h);
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(y.values.shape[0]));
  how.block = dim3(static_cast<unsigned>(chosen.threads));
  how.early = true;
  cuda::launch(chosen.kernel, how, stream, args);
}

}  // namespace

const NormKernels NormKernels::kCuda = {rms_norm_cuda};

}  // namespace volley::ops

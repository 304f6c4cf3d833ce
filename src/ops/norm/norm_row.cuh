// The norm of a row that a block's threads have in registers: for norm_cuda.cu, for sums over GPUs that end in a norm
// (comm), and for convolutions round a norm (block_conv). The bits are the same in all.
#pragma once

#include <type_traits>

#include "device/cuda/elements.cuh"
#include "ops/norm/norm.h"
#include "ops/quantise/quantise_cuda.cuh"

namespace volley::ops {

// The order in which a row's squares are added depends only on h: kChains chains, each of every kChains-th element (or
// vector of four); a tree over 32 neighbouring chains; and the trees' results in sequence. How many threads share the
// chains changes nothing.
inline constexpr int kChains = 512;

// Kernels for vectors have few threads, because work that a block does once costs instructions in each of its warps.
// With two chains each thread has enough reads under way. 512 threads are slower, and so are 128 but for some sizes.
inline constexpr int kVectorThreads = 256;

struct NormArgs {
  const float* x;
  const float* weight;
  const int32_t* row_index;  // null: rows in order
  void* y;
  DType y_dtype;
  float* y_scales;    // for codes
  int64_t groups_at;  // for codes in groups: distance of two groups' scales; else 0
  uint8_t* features;  // null: no copy of x
  DType feature_dtype;
  int64_t feature_stride;  // bytes from row to row
  int64_t x_rows, h;
  float eps;
};

// But for row_index.
inline NormArgs norm_args(TensorView x, TensorView weight, float eps, const Input& y, const FeatureBlock& copy) {
  NormArgs args = {};
  args.x = x.as<float>();
  args.weight = weight.as<float>();
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
  return args;
}

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

__device__ inline float scale_of(const NormArgs& args, float squares) {
  return 1.0f / sqrtf(squares / static_cast<float>(args.h) + args.eps);
}

// Writes the scale of the row's codes. Returns its inverse.
template <int kThreads>
__device__ float inverse_scale(const NormArgs& args, int64_t row, uint32_t largest) {
  const float scale = code_scale(block_largest<kThreads>(largest));
  if (threadIdx.x == 0) args.y_scales[row] = scale;
  return 1.0f / scale;
}

__device__ inline uint2 to_bf16(float4 v) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y), high = __floats2bfloat162_rn(v.z, v.w);
  return {reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high)};
}

// Rows of whole vectors of four, kVectors of them a chain at most. Vector j of a thread is number
// threadIdx.x + j * kThreads of the row; those that do not exist are 0.
template <int kThreads, int kVectors>
struct RowVectors {
  static constexpr int kEach = kChains / kThreads, kHeld = kVectors * kEach;
  using Held = float4[kHeld];

  __device__ static int at(int j) { return static_cast<int>(threadIdx.x) + j * kThreads; }
  __device__ static int count(const NormArgs& args) { return static_cast<int>(args.h / 4); }
  __device__ static void load(const NormArgs& args, const float* row, Held& x) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      x[j] = at(j) < count(args) ? reinterpret_cast<const float4*>(row)[at(j)] : float4{0, 0, 0, 0};
    }
  }

  // The factor that norms the row. Where a kernel calls it again, a barrier comes between.
  __device__ static float scale(const NormArgs& args, const Held& x) {
    float chains[kEach] = {};  // vector j belongs to the chain j % kEach
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      float& chain = chains[j % kEach];
      chain = fmaf(x[j].x, x[j].x, chain);
      chain = fmaf(x[j].y, x[j].y, chain);
      chain = fmaf(x[j].z, x[j].z, chain);
      chain = fmaf(x[j].w, x[j].w, chain);
    }
    return scale_of(args, sum_of_chains<kThreads>(chains));
  }
  __device__ static float4 normed(float4 x, float scale, float4 weight) {
    return {x.x * scale * weight.x, x.y * scale * weight.y, x.z * scale * weight.z, x.w * scale * weight.w};
  }

  // Writes the row `result(j)`. Called once in a kernel.
  template <typename Result>
  __device__ static void write(const NormArgs& args, int64_t row, const Result& result) {
    const int vectors = count(args);
    const auto largest_of = [&](int j) {  // 0 for values that do not exist, like x
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
        if (writes) args.y_scales[at(j) / 32 * args.groups_at + row] = scale;
      }
    } else if (args.y_dtype == DType::kF8E4M3) {
      uint32_t largest = 0;
#pragma unroll
      for (int j = 0; j < kHeld; ++j) largest = max(largest, largest_of(j));
      const float of_row = inverse_scale<kThreads>(args, row, largest);
#pragma unroll
      for (float& i : inverse) i = of_row;
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (at(j) >= vectors) break;
      const float4 y = result(j);
      const int64_t to = row * vectors + at(j);
      if (args.y_dtype == DType::kBF16) {
        static_cast<uint2*>(args.y)[to] = to_bf16(y);
      } else if (args.y_dtype == DType::kF8E4M3) {
        static_cast<uint32_t*>(args.y)[to] = codes(y, inverse[j]);
      } else {
        static_cast<float4*>(args.y)[to] = y;
      }
    }
  }
};

// Calls f(integral constant kVectors) for rows of RowVectors; false if h is not such a row's.
template <typename F>
bool with_row_vectors(int64_t h, F&& f) {
  if (h % 4 != 0 || h > 16 * kChains) return false;
  if (h <= 4 * kChains) {
    f(std::integral_constant<int, 1>());
  } else if (h <= 8 * kChains) {
    f(std::integral_constant<int, 2>());
  } else {
    f(std::integral_constant<int, 4>());
  }
  return true;
}

// Norms a row in registers. Called once in a kernel of kThreads.
template <int kThreads, int kVectors>
__device__ void norm_vectors(const NormArgs& args, int64_t row, const float4 (&x)[kVectors * kChains / kThreads],
                             const float4 (&weight)[kVectors * kChains / kThreads]) {
  using Row = RowVectors<kThreads, kVectors>;
  if (args.features != nullptr) {
    uint8_t* const to = args.features + row * args.feature_stride;
#pragma unroll
    for (int j = 0; j < Row::kHeld; ++j) {
      if (Row::at(j) >= Row::count(args)) break;
      if (args.feature_dtype == DType::kBF16) {
        reinterpret_cast<uint2*>(to)[Row::at(j)] = to_bf16(x[j]);
      } else {
        reinterpret_cast<float4*>(to)[Row::at(j)] = x[j];
      }
    }
  }
  const float scale = Row::scale(args, x);
  Row::write(args, row, [&](int j) { return Row::normed(x[j], scale, weight[j]); });
}

}  // namespace volley::ops

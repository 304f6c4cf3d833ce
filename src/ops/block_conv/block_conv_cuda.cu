#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/block_conv/block_conv_kernels.h"
#include "ops/norm/norm_row.cuh"

namespace volley::ops {
namespace {

constexpr int kThreads = 256;

// A thread a channel of a row.
__global__ void convolve_kernel(BlockConvArgs args, void* y, DType y_dtype, bool adds) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t ch = int64_t{blockIdx.y} * kThreads + threadIdx.x, row = blockIdx.x, n = args.channels;
  if (ch >= n) return;
  const int64_t groups = n / args.shape.group;
  const int64_t taps = min(static_cast<int64_t>(args.shape.taps), row % args.block_rows + 1);
  const float* own = args.coefficients + row * args.stride + ch / args.shape.group;
  float sum = 0;
  for (int64_t o = 0; o < taps; ++o) sum += (args.base[o * n + ch] + own[o * groups]) * args.x[(row - o) * n + ch];
  const int64_t at = row * n + ch;
  cuda::store_float(y, y_dtype, at, adds ? static_cast<const float*>(y)[at] + sum : sum);
}

// The taps of a row, for four channels of one group at a time.
struct RowTaps {
  __device__ RowTaps(const BlockConvArgs& args, int64_t row)
      : args(args),
        groups(static_cast<int>(args.channels) / args.shape.group),
        taps(static_cast<int>(min(static_cast<int64_t>(args.shape.taps), row % args.block_rows + 1))),
        own(args.coefficients + row * args.stride) {}

  // Tap o of the channels from 4 v on.
  __device__ float4 kernel(int o, int v) const {
    const float4 base = reinterpret_cast<const float4*>(args.base + o * args.channels)[v];
    const float c = own[o * groups + 4 * v / args.shape.group];
    return {base.x + c, base.y + c, base.z + c, base.w + c};
  }
  __device__ static float4 add(float4 sum, float4 kernel, float4 x) {
    return {sum.x + kernel.x * x.x, sum.y + kernel.y * x.y, sum.z + kernel.z * x.z, sum.w + kernel.w * x.w};
  }

  const BlockConvArgs& args;
  const int groups, taps;
  const float* const own;
};

// The fixed part of the kernels, which no kernel writes, comes into the L2 cache while the predecessor still runs.
template <typename Row>
__device__ void prefetch_base(const BlockConvArgs& args, const NormArgs& norm) {
  for (int o = 0; o < args.shape.taps; ++o) {
#pragma unroll
    for (int j = 0; j < Row::kHeld; ++j) {
      const float* const from = args.base + o * args.channels + 4 * Row::at(j);
      if (Row::at(j) < Row::count(norm)) asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
    }
  }
}

// A block a row. It norms the rows of the window by itself, which is quicker than a kernel more that writes them.
template <int kVectors>
__global__ void __launch_bounds__(kVectorThreads)
    convolve_normed_kernel(const __grid_constant__ BlockConvArgs args, const __grid_constant__ NormArgs norm,
                           float* zeroed) {
  using Row = RowVectors<kVectorThreads, kVectors>;
  cuda::launch_dependents();
  typename Row::Held weight, x, sum = {};
  Row::load(norm, norm.weight, weight);
  prefetch_base<Row>(args, norm);
  cuda::wait_for_predecessors();
  const int64_t row = blockIdx.x;
  const RowTaps taps(args, row);
  Row::load(norm, args.x + row * args.channels, x);
  for (int o = 0; o < taps.taps; ++o) {
    typename Row::Held kernel, before;  // come while this row is summed
#pragma unroll
    for (int j = 0; j < Row::kHeld; ++j) {
      if (Row::at(j) < Row::count(norm)) kernel[j] = taps.kernel(o, Row::at(j));
    }
    if (o + 1 < taps.taps) Row::load(norm, args.x + (row - o - 1) * args.channels, before);
    if (o > 0) __syncthreads();
    const float scale = Row::scale(norm, x);
#pragma unroll
    for (int j = 0; j < Row::kHeld; ++j) {
      if (Row::at(j) >= Row::count(norm)) break;
      sum[j] = RowTaps::add(sum[j], kernel[j], Row::normed(x[j], scale, weight[j]));
      x[j] = before[j];
    }
  }
  if (zeroed != nullptr) {
#pragma unroll
    for (int j = 0; j < Row::kHeld; ++j) {
      if (Row::at(j) >= Row::count(norm)) break;
      reinterpret_cast<float4*>(zeroed + row * args.channels)[Row::at(j)] = {0, 0, 0, 0};
    }
  }
  Row::write(norm, row, [&](int j) { return sum[j]; });
}

// A block a row.
template <int kVectors>
__global__ void __launch_bounds__(kVectorThreads)
    add_and_norm_kernel(const __grid_constant__ BlockConvArgs args, float* y, const __grid_constant__ NormArgs norm) {
  using Row = RowVectors<kVectorThreads, kVectors>;
  cuda::launch_dependents();
  typename Row::Held weight, all, sum = {};
  Row::load(norm, norm.weight, weight);
  prefetch_base<Row>(args, norm);
  cuda::wait_for_predecessors();
  const int64_t row = blockIdx.x;
  const RowTaps taps(args, row);
  Row::load(norm, y + row * args.channels, all);
#pragma unroll 2
  for (int o = 0; o < taps.taps; ++o) {
    typename Row::Held x;
    Row::load(norm, args.x + (row - o) * args.channels, x);
#pragma unroll
    for (int j = 0; j < Row::kHeld; ++j) {
      if (Row::at(j) < Row::count(norm)) sum[j] = RowTaps::add(sum[j], taps.kernel(o, Row::at(j)), x[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < Row::kHeld; ++j) {
    if (Row::at(j) >= Row::count(norm)) break;
    all[j] = {all[j].x + sum[j].x, all[j].y + sum[j].y, all[j].z + sum[j].z, all[j].w + sum[j].w};
    reinterpret_cast<float4*>(y + row * args.channels)[Row::at(j)] = all[j];
  }
  norm_vectors<kVectorThreads, kVectors>(norm, row, all, weight);
}

void convolve_cuda(Stream& stream, const BlockConvArgs& args, TensorView y, bool adds) {
  cuda::launch(convolve_kernel,
               {.grid = cuda::dims(args.rows, (args.channels + kThreads - 1) / kThreads),
                .block = dim3(kThreads),
                .early = true},
               stream, args, y.data, y.dtype, adds);
}

cuda::Launch rows_launch(const BlockConvArgs& args) {
  return {.grid = cuda::dims(args.rows), .block = dim3(kVectorThreads), .early = true};
}

NormArgs norm_of(const BlockConvArgs& args, const float* x, const NormWeight& norm, const Input& y) {
  const TensorView rows(const_cast<float*>(x), DType::kF32, {args.rows, args.channels});
  return norm_args(rows, norm.weight, norm.eps, y, {});
}

bool convolve_normed_cuda(Stream& stream, const BlockConvArgs& args, const NormWeight& weight, const Input& y,
                          TensorView zeroed) {
  const NormArgs norm = norm_of(args, args.x, weight, y);
  return args.shape.group % 4 == 0 && with_row_vectors(args.channels, [&](auto vectors) {
           cuda::launch(convolve_normed_kernel<vectors>, rows_launch(args), stream, args, norm,
                        static_cast<float*>(zeroed.data));
         });
}

bool add_and_norm_cuda(Stream& stream, const BlockConvArgs& args, TensorView y, const NormWeight& weight,
                       const Input& normed) {
  const NormArgs norm = norm_of(args, y.as<float>(), weight, normed);
  return args.shape.group % 4 == 0 && with_row_vectors(args.channels, [&](auto vectors) {
           cuda::launch(add_and_norm_kernel<vectors>, rows_launch(args), stream, args, y.as<float>(), norm);
         });
}

}  // namespace

const BlockConvKernels BlockConvKernels::kCuda = {convolve_cuda, convolve_normed_cuda, add_and_norm_cuda};

}  // namespace volley::ops

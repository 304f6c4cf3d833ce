#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/norm/norm_kernels.h"
#include "ops/norm/norm_row.cuh"

namespace volley::ops {
namespace {

__device__ int64_t row_of(const NormArgs& args) {
  const int64_t row = args.row_index == nullptr ? blockIdx.x : args.row_index[blockIdx.x];
  if (row < 0 || row >= args.x_rows) __trap();  // our bug: the stream reports it at its next call
  return row;
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
  const float inverse = inverse_scale<kChains>(args, blockIdx.x, largest);
  for (int64_t i = threadIdx.x; i < args.h; i += kChains) {
    static_cast<uint8_t*>(args.y)[to + i] = code(result(i), inverse);
  }
}

// The same for rows of whole vectors of four, kVectors of them a chain at most, each read once. The weights, which no
// kernel writes, come while the predecessor still runs.
template <int kVectors>
__global__ void __launch_bounds__(kVectorThreads) rms_norm_vectors_kernel(NormArgs args) {
  using Row = RowVectors<kVectorThreads, kVectors>;
  cuda::launch_dependents();
  typename Row::Held weight, x;
  Row::load(args, args.weight, weight);
  cuda::wait_for_predecessors();
  Row::load(args, args.x + row_of(args) * args.h, x);
  norm_vectors<kVectorThreads, kVectors>(args, blockIdx.x, x, weight);
}

// A block a row, a chain a thread, as rms_norm_kernel.
__global__ void __launch_bounds__(kChains) add_normed_kernel(const float* y, const float* weight, int64_t h, float eps,
                                                             float scale, const float* factor, float* x) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * h;
  NormArgs args = {};
  args.h = h;
  args.eps = eps;
  float chain[1] = {0};
  for (int64_t i = threadIdx.x; i < h; i += kChains) chain[0] = fmaf(y[at + i], y[at + i], chain[0]);
  const float inverse = weight == nullptr ? 1.0f : scale_of(args, sum_of_chains<kChains>(chain));
  const float last = factor == nullptr ? 1.0f : *factor;
  for (int64_t i = threadIdx.x; i < h; i += kChains) {
    const float sum = x[at + i] + scale * (y[at + i] * inverse * (weight == nullptr ? 1.0f : weight[i]));
    x[at + i] = last * sum;
  }
}

void rms_norm_cuda(Stream& stream, TensorView x, TensorView weight, float eps, TensorView row_index, const Input& y,
                   const FeatureBlock& copy) {
  NormArgs args = norm_args(x, weight, eps, y, copy);
  args.row_index = row_index.data == nullptr ? nullptr : row_index.as<int32_t>();
  const cuda::Launch launch = {.grid = cuda::dims(y.values.shape[0]), .block = dim3(kVectorThreads), .early = true};
  // By the row's length alone: which kernel adds decides the bits.
  const bool in_vectors = with_row_vectors(
      args.h, [&](auto vectors) { cuda::launch(rms_norm_vectors_kernel<vectors>, launch, stream, args); });
  if (in_vectors) return;
  cuda::launch(rms_norm_kernel, {.grid = launch.grid, .block = dim3(kChains), .early = true}, stream, args);
}

void add_normed_cuda(Stream& stream, TensorView y, TensorView weight, float eps, float scale, TensorView x,
                     TensorView factor) {
  cuda::launch(add_normed_kernel, {.grid = cuda::dims(x.shape[0]), .block = dim3(kChains), .early = true}, stream,
               static_cast<const float*>(y.data), static_cast<const float*>(weight.data), x.shape[1], eps, scale,
               static_cast<const float*>(factor.data), x.as<float>());
}

}  // namespace

const NormKernels NormKernels::kCuda = {rms_norm_cuda, add_normed_cuda};

}  // namespace volley::ops

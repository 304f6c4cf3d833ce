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

// The arguments of an addition.
struct AddArgs {
  const float *y, *weight, *factor;  // weight, factor: may be null
  float eps, scale;
  float* x;
};

// The addition, and the norm of the result if `next` has a y. next.h is set in any case.
template <int kVectors>
__global__ void __launch_bounds__(kVectorThreads) add_normed_vectors_kernel(AddArgs add, NormArgs next) {
  using Row = RowVectors<kVectorThreads, kVectors>;
  cuda::launch_dependents();
  typename Row::Held weight = {}, after = {}, y, x;
  if (add.weight != nullptr) Row::load(next, add.weight, weight);
  if (next.y != nullptr) Row::load(next, next.weight, after);
  cuda::wait_for_predecessors();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * next.h;
  Row::load(next, add.y + at, y);
  Row::load(next, add.x + at, x);
  NormArgs own = {};
  own.h = next.h;
  own.eps = add.eps;
  const float inverse = add.weight == nullptr ? 1.0f : Row::scale(own, y);
  const float last = add.factor == nullptr ? 1.0f : *add.factor;
  const auto sum = [&](float before, float added) { return last * (before + add.scale * added); };
#pragma unroll
  for (int j = 0; j < Row::kHeld; ++j) {
    const float4 v = add.weight == nullptr ? y[j] : Row::normed(y[j], inverse, weight[j]);
    x[j] = {sum(x[j].x, v.x), sum(x[j].y, v.y), sum(x[j].z, v.z), sum(x[j].w, v.w)};
    if (Row::at(j) < Row::count(next)) reinterpret_cast<float4*>(add.x + at)[Row::at(j)] = x[j];
  }
  if (next.y == nullptr) return;
  __syncthreads();  // both norms add up in the same shared memory
  norm_vectors<kVectorThreads, kVectors>(next, blockIdx.x, x, after);
}

// A block a row, a chain a thread, as rms_norm_kernel.
__global__ void __launch_bounds__(kChains) add_normed_kernel(AddArgs add, int64_t h) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * h;
  NormArgs args = {};
  args.h = h;
  args.eps = add.eps;
  const float* const y = add.y + at;
  float* const x = add.x + at;
  float chain[1] = {0};
  for (int64_t i = threadIdx.x; i < h; i += kChains) chain[0] = fmaf(y[i], y[i], chain[0]);
  const float inverse = add.weight == nullptr ? 1.0f : scale_of(args, sum_of_chains<kChains>(chain));
  const float last = add.factor == nullptr ? 1.0f : *add.factor;
  for (int64_t i = threadIdx.x; i < h; i += kChains) {
    x[i] = last * (x[i] + add.scale * (y[i] * inverse * (add.weight == nullptr ? 1.0f : add.weight[i])));
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

void add_normed_cuda(Stream& stream, const AddedNorm& args, TensorView x, bool norms) {
  const auto floats = [](const TensorView& view) { return static_cast<const float*>(view.data); };
  const AddArgs add = {floats(args.y), floats(args.end_weight), floats(args.factor), args.end_eps, args.scale,
                       x.as<float>()};
  NormArgs next = {};
  if (norms) next = norm_args(x, args.weight, args.eps, args.h, args.copy);
  next.h = x.shape[1];
  const cuda::Launch launch = {.grid = cuda::dims(x.shape[0]), .block = dim3(kVectorThreads), .early = true};
  const bool in_vectors = with_row_vectors(
      next.h, [&](auto vectors) { cuda::launch(add_normed_vectors_kernel<vectors>, launch, stream, add, next); });
  if (in_vectors) return;
  cuda::launch(add_normed_kernel, {.grid = launch.grid, .block = dim3(kChains), .early = true}, stream, add, next.h);
  if (norms) rms_norm_cuda(stream, x, args.weight, args.eps, {}, args.h, args.copy);
}

}  // namespace

const NormKernels NormKernels::kCuda = {rms_norm_cuda, add_normed_cuda};

}  // namespace volley::ops

#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/embedding/embedding_kernels.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 256;

// Blocks along y share a row: there may be more rows than a grid is high.
cuda::Launch rows_launch(int64_t rows, int64_t columns) {
  return {
      .grid = cuda::dims(rows, (columns + 4 * kThreads - 1) / (4 * kThreads)), .block = dim3(kThreads), .early = true};
}

__device__ int64_t checked_id(const int32_t* ids, int64_t row, int64_t vocab) {
  const int64_t id = ids[row];
  if (id < 0 || id >= vocab) __trap();  // requests were validated: our bug
  return id;
}

__global__ void embed_kernel(const void* table, DType dtype, int64_t vocab, int64_t h, const int32_t* ids, float* y,
                             float scale) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t id = checked_id(ids, blockIdx.x, vocab), to = static_cast<int64_t>(blockIdx.x) * h;
  const int64_t stride = static_cast<int64_t>(gridDim.y) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; i < h; i += stride) {
    y[to + i] = scale * cuda::load_float(table, dtype, id * h + i);
  }
}

// The same for a bf16 table with rows of whole vectors of four, of which each thread has one.
__global__ void __launch_bounds__(kThreads)
    embed_vectors_kernel(const uint2* table, int64_t vocab, int vectors, const int32_t* ids, float4* y, float scale) {
  cuda::launch_dependents();
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  cuda::wait_for_predecessors();
  const int64_t id = checked_id(ids, blockIdx.x, vocab);
  if (i >= vectors) return;
  const uint2 four = table[id * vectors + i];
  const float2 low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(four.x));
  const float2 high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(four.y));
  y[static_cast<int64_t>(blockIdx.x) * vectors + i] = {scale * low.x, scale * low.y, scale * high.x, scale * high.y};
}

// minimums: may be null.
__global__ void embed_codes_kernel(const int8_t* codes, const float* scales, const float* minimums, int64_t vocab,
                                   int64_t h, int64_t groups, const int32_t* ids, float* y, float scale) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t id = checked_id(ids, blockIdx.x, vocab), to = static_cast<int64_t>(blockIdx.x) * h;
  const int64_t stride = static_cast<int64_t>(gridDim.y) * kThreads, columns = h / groups;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; i < h; i += stride) {
    const auto code = static_cast<float>(codes[id * h + i]);
    const int64_t group = id * groups + i / columns;
    const float value =
        minimums == nullptr ? __fmul_rn(code, scales[group]) : __fmaf_rn(code, scales[group], minimums[group]);
    y[to + i] = scale * value;
  }
}

__global__ void capture_kernel(const float* x, int64_t h, void* features, DType dtype, int64_t width, int64_t column) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t row = blockIdx.x, stride = static_cast<int64_t>(gridDim.y) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; i < h; i += stride) {
    cuda::store_float(features, dtype, row * width + column + i, x[row * h + i]);
  }
}

__global__ void add_kernel(const float* y, float* x, int64_t h) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t row = blockIdx.x, stride = static_cast<int64_t>(gridDim.y) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x; i < h; i += stride) {
    x[row * h + i] += y[row * h + i];
  }
}

void embed_cuda(Stream& stream, TensorView table, TensorView ids, TensorView y, float scale) {
  const int64_t h = table.shape[1];
  if (table.dtype == DType::kBF16 && h % 4 == 0 && reinterpret_cast<uintptr_t>(table.data) % sizeof(uint2) == 0) {
    return cuda::launch(embed_vectors_kernel, rows_launch(y.shape[0], h), stream, static_cast<const uint2*>(table.data),
                        table.shape[0], static_cast<int>(h / 4), ids.as<int32_t>(), static_cast<float4*>(y.data),
                        scale);
  }
  cuda::launch(embed_kernel, rows_launch(y.shape[0], y.shape[1]), stream, table.data, table.dtype, table.shape[0], h,
               ids.as<int32_t>(), y.as<float>(), scale);
}

void embed_codes_cuda(Stream& stream, const CodeTable& table, TensorView ids, TensorView y, float scale) {
  const float* minimums = table.minimums.data == nullptr ? nullptr : table.minimums.as<float>();
  cuda::launch(embed_codes_kernel, rows_launch(y.shape[0], y.shape[1]), stream,
               static_cast<const int8_t*>(table.codes.data), table.scales.as<float>(), minimums, table.codes.shape[0],
               table.codes.shape[1], table.scales.shape[1], ids.as<int32_t>(), y.as<float>(), scale);
}

void capture_feature_cuda(Stream& stream, TensorView x, int64_t column, TensorView features) {
  cuda::launch(capture_kernel, rows_launch(x.shape[0], x.shape[1]), stream, x.as<float>(), x.shape[1], features.data,
               features.dtype, features.shape[1], column);
}

void zero_cuda(Stream& stream, TensorView x) {
  if (stream.dry()) return stream.skip_launch();
  VOLLEY_CUDA_CHECK(cudaMemsetAsync(x.data, 0, static_cast<size_t>(x.count()) * sizeof(float), cuda::native(stream)));
}

void add_cuda(Stream& stream, TensorView y, TensorView x) {
  cuda::launch(add_kernel, rows_launch(x.shape[0], x.shape[1]), stream, y.as<float>(), x.as<float>(), x.shape[1]);
}

}  // namespace

const EmbeddingKernels EmbeddingKernels::kCuda = {embed_cuda,           nullptr,   embed_codes_cuda,
                                                  capture_feature_cuda, zero_cuda, add_cuda};

}  // namespace volley::ops

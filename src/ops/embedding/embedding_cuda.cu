#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/embedding/embedding_cuda.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 256;

// Blocks along x share a row.
cuda::Launch rows_launch(int64_t rows, int64_t columns) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>((columns + 4 * kThreads - 1) / (4 * kThreads)), static_cast<unsigned>(rows));
  how.block = dim3(kThreads);
  how.early = true;
  return how;
}

__global__ void embed_kernel(const void* table, DType dtype, int64_t vocab, int64_t h, const int32_t* ids, float* y) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t id = ids[blockIdx.y], to = static_cast<int64_t>(blockIdx.y) * h;
  if (id < 0 || id >= vocab) __trap();  // requests were validated: our bug
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < h; i += stride) {
    y[to + i] = cuda::load_float(table, dtype, id * h + i);
  }
}

__global__ void capture_kernel(const float* x, int64_t h, void* features, DType dtype, int64_t width, int64_t column) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t row = blockIdx.y, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < h; i += stride) {
    cuda::store_float(features, dtype, row * width + column + i, x[row * h + i]);
  }
}

}  // namespace

void embed_cuda(Stream& stream, TensorView table, TensorView ids, TensorView y) {
  cuda::launch(embed_kernel, rows_launch(y.shape[0], y.shape[1]), stream, table.data, table.dtype, table.shape[0],
               table.shape[1], ids.as<int32_t>(), y.as<float>());
}

void capture_feature_cuda(Stream& stream, TensorView x, int64_t column, TensorView features) {
  cuda::launch(capture_kernel, rows_launch(x.shape[0], x.shape[1]), stream, x.as<float>(), x.shape[1], features.data,
               features.dtype, features.shape[1], column);
}

}  // namespace volley::ops

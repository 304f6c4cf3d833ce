#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/logits/logits_kernels.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 256, kRowThreads = 1024;
constexpr int64_t kMaxBlocks = 4096;

__global__ void end_logits_kernel(float* x, int64_t n, LogitsEnd end) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const float v = end.scale * x[i];
    x[i] = end.cap > 0 ? end.cap * tanhf(v / end.cap) : v;
  }
}

// A block a row. Groups are the row's columns four by four, where a row begins at a multiple of 16 bytes.
__global__ void spread_kernel(const float* x, int64_t n, const int32_t* ids, float* y, int64_t vocab) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const float* from = x + blockIdx.x * n;
  float* to = y + blockIdx.x * vocab;
  if (vocab % 4 == 0) {
    const float4 none = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    for (int64_t i = threadIdx.x; i < vocab / 4; i += kRowThreads) reinterpret_cast<float4*>(to)[i] = none;
  } else {
    for (int64_t i = threadIdx.x; i < vocab; i += kRowThreads) to[i] = -INFINITY;
  }
  __syncthreads();
  for (int64_t j = threadIdx.x; j < n; j += kRowThreads) {
    if (ids[j] < 0 || ids[j] >= vocab) __trap();  // our bug
    to[ids[j]] = from[j];
  }
}

void end_logits_cuda(Stream& stream, TensorView x, const LogitsEnd& end) {
  const int64_t n = x.count();
  if (n == 0) return;
  cuda::launch(
      end_logits_kernel,
      {.grid = cuda::dims(std::min(kMaxBlocks, (n + kThreads - 1) / kThreads)), .block = dim3(kThreads), .early = true},
      stream, x.as<float>(), n, end);
}

void spread_columns_cuda(Stream& stream, TensorView x, TensorView ids, TensorView y) {
  if (y.shape[0] == 0) return;
  VOLLEY_CHECK(reinterpret_cast<uintptr_t>(y.data) % sizeof(float4) == 0);
  cuda::launch(spread_kernel, {.grid = cuda::dims(y.shape[0]), .block = dim3(kRowThreads), .early = true}, stream,
               static_cast<const float*>(x.data), x.shape[1], ids.as<int32_t>(), y.as<float>(), y.shape[1]);
}

}  // namespace

const LogitsKernels LogitsKernels::kCuda = {end_logits_cuda, spread_columns_cuda};

}  // namespace volley::ops

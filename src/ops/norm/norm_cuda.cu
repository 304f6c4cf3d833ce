#include "ops/norm/norm_cuda.h"

#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 512;

struct NormArgs {
  const float* x;
  const float* weight;
  const int32_t* row_index;  // null: rows in order
  void* y;
  DType y_dtype;
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

// A block a row; thread t takes elements t, t + kThreads, …, so the order depends on h alone.
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(NormArgs args) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t from = args.row_index == nullptr ? blockIdx.x : args.row_index[blockIdx.x];
  if (from < 0 || from >= args.x_rows) __trap();  // our bug: the stream reports it at its next call
  const float* x = args.x + from * args.h;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < args.h; i += kThreads) squares = fmaf(x[i], x[i], squares);
  const float scale = 1.0f / sqrtf(block_sum(squares) / static_cast<float>(args.h) + args.eps);
  for (int64_t i = threadIdx.x; i < args.h; i += kThreads) {
    cuda::store_float(args.y, args.y_dtype, static_cast<int64_t>(blockIdx.x) * args.h + i,
                      x[i] * scale * args.weight[i]);
  }
}

}  // namespace

void rms_norm_cuda(Stream& stream, TensorView x, TensorView weight, float eps, TensorView row_index, TensorView y) {
  NormArgs args;
  args.x = x.as<float>();
  args.weight = weight.as<float>();
  args.row_index = row_index.data == nullptr ? nullptr : row_index.as<int32_t>();
  args.y = y.data;
  args.y_dtype = y.dtype;
  args.x_rows = x.shape[0];
  args.h = x.shape[1];
  args.eps = eps;
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(y.shape[0]));
  how.block = dim3(kThreads);
  how.early = true;
  cuda::launch(rms_norm_kernel, how, stream, args);
}

}  // namespace volley::ops

// The plain kernel: any dtype, rows and shape that the contract allows, on any GPU, and slow. Weights defines how
// weights are stored: value(row, k, columns, x_dtype), in fp32, of packed row `row`.
#pragma once

#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/linear/cuda/linear_cuda_epilogue.cuh"

namespace volley::ops {

inline constexpr int kWarpRows = 4;  // rows of x that share one reading of a weight

template <typename Weights>
struct PlainArgs {
  Weights weights;
  LinearLayout layout;
  int64_t n, k;
  const void* x;
  DType x_dtype;
  void* y;
  DType y_dtype;
  int64_t rows, outputs;
  EndKind kind;
  const float* bias;  // may be null
};

template <typename Weights>
PlainArgs<Weights> plain_args(const Weights& weights, const LinearWeight& w, TensorView x, TensorView y,
                              const End& end) {
  const float* bias = end.bias.data == nullptr ? nullptr : end.bias.as<float>();
  return {weights, w.layout, w.n, w.k, x.data, x.dtype, y.data, y.dtype, y.shape[0], y.shape[1], end.kind, bias};
}

// Sum over k of one weight row with kWarpRows rows of x: lane l takes k = l, l + 32, …; lanes are added as a tree.
template <typename Weights>
__device__ void warp_sums(const PlainArgs<Weights>& args, int64_t weight_row, int64_t row, int rows,
                          float (&sums)[kWarpRows]) {
  for (float& s : sums) s = 0;
  for (int64_t i = threadIdx.x % 32; i < args.k; i += 32) {
    const float w = args.weights.value(weight_row, i, args.k, args.x_dtype);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      if (r < rows) sums[r] = fmaf(cuda::load_float(args.x, args.x_dtype, (row + r) * args.k + i), w, sums[r]);
    }
  }
#pragma unroll
  for (float& s : sums) {
    for (int lane = 16; lane > 0; lane /= 2) s += __shfl_xor_sync(0xffffffff, s, lane);
  }
}

// A warp per output and kWarpRows rows.
template <typename Weights>
__global__ void plain_kernel(const PlainArgs<Weights> args) {
  const int64_t output = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kWarpRows;
  if (output >= args.outputs) return;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kWarpRows), args.rows - row));
  float sums[kWarpRows];
  warp_sums(args, packed_row(output, args.n, args.layout), row, rows, sums);
  if (has_gates(args.kind)) {
    float up[kWarpRows];
    warp_sums(args, packed_row(args.n / 2 + output, args.n, args.layout), row, rows, up);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) sums[r] = gated(args.kind, sums[r], up[r]);
  }
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    if (threadIdx.x % 32 != r || r >= rows) continue;
    if (args.bias != nullptr) sums[r] += args.bias[output];  // adding zeros would turn -0 into +0
    const int64_t at = (row + r) * args.outputs + output;
    if (args.kind == EndKind::kAdd) sums[r] = static_cast<const float*>(args.y)[at] + sums[r];
    cuda::store_float(args.y, args.y_dtype, at, sums[r]);
  }
}

template <typename Weights>
void launch_plain(Stream& stream, const PlainArgs<Weights>& args) {
  cuda::launch(
      plain_kernel<Weights>,
      {.grid = cuda::dims((args.outputs + 7) / 8, (args.rows + kWarpRows - 1) / kWarpRows), .block = dim3(256)}, stream,
      args);
}

}  // namespace volley::ops

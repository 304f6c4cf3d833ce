// The plain kernels: any dtype and shape that the contract allows, on any GPU; nothing there is fast.
#pragma once

#include "base/math.h"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/grouped_linear/grouped_linear_cuda_work.cuh"

namespace volley::ops {

// A warp per output and grouped row. sum(weights, row, part, x_row): over k, of a row of an expert's weights and a row
// of x, the same for all lanes.
template <typename Sum>
__device__ __forceinline__ void plain_output(const GroupedArgs& args, const Sum& sum) {
  const int grouped = static_cast<int>(blockIdx.x);
  const int output = static_cast<int>(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32);
  const bool routed = args.each_rows == 0;
  if (output >= args.outputs || (routed && grouped >= args.offsets[args.experts])) return;
  const int expert = routed ? args.chosen[args.entries[grouped]] : grouped / args.each_rows;
  const int entry = entry_of(args, expert, grouped);
  const uint8_t* weights = args.weights + expert * args.expert_bytes;
  const int64_t x_row = source_row(args, expert, grouped);
  const float* bias = args.bias == nullptr ? nullptr : args.bias + int64_t{expert} * args.n + output;
  float v = sum(weights, output, 0, x_row);
  if (bias != nullptr) v += *bias;
  if (args.layout == LinearLayout::kGateUp) {
    float up = sum(weights, output, 1, x_row);
    if (bias != nullptr) up += bias[args.outputs];
    v = args.end == EndKind::kClampedSwiGlu ? clamped_swiglu_exactly(v, up, args.clamp)
                                            : gated_one_exactly(args.end, v, up);
  }
  if (threadIdx.x % 32 != 0) return;
  const int64_t y_row = args.rows == GroupedRows::kIn ? grouped : entry;
  cuda::store_float(args.y, args.y_dtype, y_row * args.y_step + output, v);
}

inline cuda::Launch plain_launch(const GroupedArgs& args) {
  return {.grid = cuda::dims(args.entry_count, divide_up(args.outputs, 8)), .block = dim3(256)};
}

}  // namespace volley::ops

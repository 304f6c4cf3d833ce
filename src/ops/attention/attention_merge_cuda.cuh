// Merging the partial results of a tile that was cut: the same arithmetic and order wherever it is done.
#pragma once

#include "ops/attention/attention_rows_cuda.cuh"

namespace volley::ops {

// Outputs of a lane: a warp holds a row, or half of one with head_dim 256.
template <int kHeadDim>
inline constexpr int kMergeWidth = kHeadDim == 64 ? 2 : 4;

__device__ inline void load_floats(const float* from, float (&to)[2]) {
  const float2 v = *reinterpret_cast<const float2*>(from);
  to[0] = v.x, to[1] = v.y;
}
__device__ inline void load_floats(const float* from, float (&to)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

template <int kWidth>
__device__ void store_merged(__nv_bfloat16* to, const float (&outputs)[kWidth], float sum) {
  const float inverse = 1.0f / sum;
#pragma unroll
  for (int j = 0; j < kWidth; j += 2) {
    reinterpret_cast<uint32_t*>(to)[j / 2] = pack_bf16(finish(outputs[j], inverse), finish(outputs[j + 1], inverse));
  }
}

// A query row in the hands of one warp: kWidth neighbouring outputs a lane.
template <int kWidth>
struct RowMerge {
  float outputs[kWidth] = {};
  float maximum = -INFINITY, sum = 0.0f;

  // The next `count` partial results, at most 32. state: maximum and sum of the one that this lane stands for; from:
  // this lane's outputs of the first, those of the next are `stride` floats on. kUnroll: loads that are under way
  // together.
  template <int kUnroll>
  __device__ void add(float2 state, int count, const float* from, int64_t stride) {
    const int lane = threadIdx.x % 32;
    // Every lane finds the factors of its partial result: the maximum before it does not depend on any order.
    float highest = state.x;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const float other = __shfl_up_sync(0xffffffff, highest, d);
      if (lane >= d) highest = fmaxf(highest, other);
    }
    highest = fmaxf(highest, maximum);
    const float before = __shfl_up_sync(0xffffffff, highest, 1);
    float until = lane == 0 ? maximum : before;
    const MergeFactors mine = merge_maximum(until, state.x);
    maximum = __shfl_sync(0xffffffff, highest, 31);
#pragma unroll kUnroll
    for (int i = 0; i < count; ++i, from += stride) {
      const MergeFactors factors = {__shfl_sync(0xffffffff, mine.old, i), __shfl_sync(0xffffffff, mine.added, i)};
      sum = merge(sum, __shfl_sync(0xffffffff, state.y, i), factors);
      float added[kWidth];
      load_floats(from, added);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) outputs[j] = merge(outputs[j], added[j], factors);
    }
  }
};

}  // namespace volley::ops

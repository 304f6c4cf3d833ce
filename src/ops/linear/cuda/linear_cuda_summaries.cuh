// The end of a tile whose rows are stored or summarised, one by one as TileArgs::whole says. It is separate from the
// other ends, in kernels of its own, so that other kernels do not fetch its code.
#pragma once

#include "ops/linear/cuda/linear_cuda_epilogue.cuh"
#include "ops/linear/cuda/linear_cuda_tile_shape.cuh"

namespace volley::ops {

// A block's notes about its rows, loaded while it waits for the first products.
template <typename Shape>
struct RowNotes {
  static constexpr int kWords = (Shape::kRows + 31) / 32;
  uint32_t whole[kWords];                       // a bit for each row
  float scale[Shape::kFp8 ? Shape::kRows : 1];  // scales of x

  __device__ bool is_whole(int row) const { return (whole[row / 32] >> (row % 32) & 1) != 0; }
};

template <typename Shape>
__device__ void note_rows(const TileArgs& args, int row, RowNotes<Shape>& notes) {
  static_assert(Shape::kConsumers >= RowNotes<Shape>::kWords * 32);
  const int r = threadIdx.x;
  if (r / 32 >= RowNotes<Shape>::kWords) return;
  const bool exists = r < Shape::kRows && row + r < args.rows;
  const uint32_t whole = __ballot_sync(0xffffffff, exists && args.whole[row + r] != 0);
  if (r % 32 == 0) notes.whole[r / 32] = whole;
  if constexpr (Shape::kFp8) {
    if (r < Shape::kRows) notes.scale[r] = exists ? args.row_scales[row + r] : 0;
  }
}

// FP8: scales of the two outputs that a thread sums, in the group that begins with `output`.
__device__ inline float2 own_weight_scales(const TileArgs& args, int output) {
  const int t = threadIdx.x % 128, mine = output + t / 32 * 16 + t % 32 / 4;
  return output < args.outputs ? float2{args.weight_scales[mine], args.weight_scales[mine + 8]} : float2{};
}

template <typename Shape>
__device__ void scale_sums(const RowNotes<Shape>& notes, float2 weight_scales, float (&sums)[Shape::kRows / 2]) {
#pragma unroll
  for (int i = 0; i < Shape::kRows / 2; ++i) {
    const int row = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    sums[i] = scaled(sums[i], i % 4 < 2 ? weight_scales.x : weight_scales.y, notes.scale[row]);
  }
}

__device__ inline float higher_or_nan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// outputs: 64, in shared memory. Which is the first of the highest is found in two steps, which takes fewer
// comparisons.
__device__ inline GroupSummary summarise(const float4* outputs, bool wants_weight) {
  constexpr int kQuads = kSummaryGroup / 4;
  float most = -INFINITY;
  int quad = 0;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const float4 v = outputs[i];
    const float highest = higher_or_nan(higher_or_nan(v.x, v.y), higher_or_nan(v.z, v.w));
    if (highest > most) quad = i;
    most = higher_or_nan(most, highest);
  }
  const float4 v = outputs[quad];
  const int in_quad = v.x == most ? 0 : v.y == most ? 1 : v.z == most ? 2 : 3;
  float weight = 0;
  if (wants_weight) {
    float4 sums = {};  // four, so that additions do not wait for one another
#pragma unroll 8
    for (int i = 0; i < kQuads; ++i) {
      const float4 u = outputs[i];
      sums = add(sums, {__expf(u.x - most), __expf(u.y - most), __expf(u.z - most), __expf(u.w - most)});
    }
    weight = (sums.x + sums.y) + (sums.z + sums.w);
  }
  return {most, quad * 4 + in_quad, weight, 0};
}

// The group's 64 outputs of each row that is not whole, a thread a row: four that share one must ask one another, and
// took longer from 96 rows on. group_sums: what leave_sums() left; output: the group's first.
template <typename Shape>
__device__ void summarise_rows(const TileArgs& args, const RowNotes<Shape>& notes, const float* group_sums, int row,
                               int output) {
  const int rows = min(Shape::kRows, args.rows - row);
#pragma unroll 1
  for (int r = threadIdx.x % 128; r < rows; r += 128) {
    if (notes.is_whole(r)) continue;
    const auto* const mine = reinterpret_cast<const float4*>(group_sums + r * Shape::kSumStride);
    const GroupSummary group = summarise(mine, args.summary_weights);
    float* const to = static_cast<float*>(args.y) + static_cast<int64_t>(row + r) * args.outputs;
    reinterpret_cast<float4*>(to)[output / kSummaryGroup] = {group.highest, __int_as_float(output + group.output),
                                                             group.weight, 0};
  }
}

// Writes whole rows to y: 16 lanes for each row, four outputs each.
template <typename Shape>
__device__ void store_whole_rows(const TileArgs& args, const RowNotes<Shape>& notes, const float* group_sums, int row,
                                 int output) {
  constexpr int kPasses = Shape::kRows / 8, kBatch = kPasses < 4 ? kPasses : 4;
  static_assert(kPasses % kBatch == 0);
  uint32_t any = 0;
  for (uint32_t word : notes.whole) any |= word;
  const int t = threadIdx.x % 128, lane = t % 16 * 4;
  if (any == 0 || output + lane >= args.outputs) return;
#pragma unroll 1
  for (int first = t / 16; first < Shape::kRows; first += 8 * kBatch) {
    float4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      v[i] = *reinterpret_cast<const float4*>(group_sums + (first + 8 * i) * Shape::kSumStride + lane);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int r = first + 8 * i;  // no row after the last one is whole
      if (notes.is_whole(r)) store4(args.y, false, static_cast<int64_t>(row + r) * args.outputs + output + lane, v[i]);
    }
  }
}

template <typename Shape>
__device__ void consume_and_summarise(const Ring& ring, const TileArgs& args, Slice slice, int half, int row) {
  static_assert(Shape::kHalves % 2 == 0, "a warpgroup has a group of outputs");
  __shared__ RowNotes<Shape> notes;
  const int group = threadIdx.x / 128, output = half * 32 + group * kSummaryGroup;
  float2 weight_scales = {};
  if constexpr (Shape::kFp8) weight_scales = own_weight_scales(args, output);
  cuda::wait_for_predecessors();  // x, which the products wait for anyway, comes from them too
  note_rows<Shape>(args, row, notes);
  float registers[Shape::kRows / 2] = {};
  RingReader reader;
  consume<Shape>(ring, reader, slice.count, registers);
  consumers_sync<Shape>();  // no thread still reads the ring, and the notes are complete
  float* const sums = reinterpret_cast<float*>(ring.stages) + group * Shape::kRows * Shape::kSumStride;
  if constexpr (Shape::kFp8) scale_sums<Shape>(notes, weight_scales, registers);
  leave_sums<Shape>(sums, registers);
  group_sync<Shape>();
  if (output < args.outputs && output + kSummaryGroup > args.outputs) {  // outputs that do not exist win nothing
    for (int i = threadIdx.x % 128; i < Shape::kRows * kSummaryGroup; i += 128) {
      const int row_of = i / kSummaryGroup, column = i % kSummaryGroup;
      if (output + column >= args.outputs) sums[row_of * Shape::kSumStride + column] = -INFINITY;
    }
    group_sync<Shape>();
  }
  if constexpr (Shape::kShared) hopper::cluster_arrive();
  if (output < args.outputs) {
    summarise_rows<Shape>(args, notes, sums, row, output);
    store_whole_rows<Shape>(args, notes, sums, row, output);
  }
  if constexpr (Shape::kShared) hopper::cluster_wait();  // the other block may still be signalling to here
}

}  // namespace volley::ops

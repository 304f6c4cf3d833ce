// The end of a tile whose rows are stored or summarised, one by one as TileArgs::whole says. Apart from the other ends,
// and in kernels of its own, so that nobody else fetches its code.
#pragma once

#include "ops/linear/linear_cuda_epilogue.cuh"
#include "ops/linear/linear_cuda_tile_shape.cuh"

namespace volley::ops {

// What a block must know of its rows, brought while the first products are waited for.
template <typename Shape>
struct RowNotes {
  static constexpr int kWords = (Shape::kRows + 31) / 32;
  uint32_t whole[kWords];                       // a bit for each row
  float scale[Shape::kFp8 ? Shape::kRows : 1];  // of x

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
    if (exists) notes.scale[r] = args.row_scales[row + r];
  }
}

__device__ inline float higher_or_nan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// One lane's part of a group: 16 outputs, of which value i is number i / 4 * 16 + part * 4 + i % 4.
struct GroupPart {
  float values[16];

  __device__ float highest() const {
    float most = values[0];
#pragma unroll
    for (int i = 1; i < 16; ++i) most = higher_or_nan(most, values[i]);
    return most;
  }
  __device__ int first_that_is(float value, int part) const {
    int first = kSummaryGroup;
#pragma unroll
    for (int i = 15; i >= 0; --i) {
      if (values[i] == value) first = i / 4 * 16 + part * 4 + i % 4;
    }
    return first;
  }
  // Four sums, so that additions do not wait for one another.
  __device__ float weight(float most) const {
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) sums[i % 4] += __expf(values[i] - most);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
};

// The group's 64 outputs of each row that is not whole: four lanes a row, eight rows a warp, so that lanes which read
// at once read other banks. group_sums: what leave_sums() left; output: the group's first.
template <typename Shape>
__device__ void summarise_rows(const TileArgs& args, const RowNotes<Shape>& notes, const float* group_sums, int row,
                               int output) {
  const int t = threadIdx.x % 128, part = t % 32 / 8, rows = min(Shape::kRows, args.rows - row);
  const auto place = [&](int i) { return i * 16 + part * 4; };
  float4 weight_scale[4] = {};
  if constexpr (Shape::kFp8) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      weight_scale[i] = *reinterpret_cast<const float4*>(args.weight_scales + output + place(i));
  }
#pragma unroll 1
  for (int first = t / 32 * 8; first < rows; first += 32) {
    const int r = first + t % 8;
    const bool wanted = r < rows && !notes.is_whole(r);
    if (!__any_sync(0xffffffff, wanted)) continue;
    GroupPart mine;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float4 v = *reinterpret_cast<const float4*>(group_sums + r * Shape::kSumStride + place(i));
      if constexpr (Shape::kFp8) v = scaled(v, weight_scale[i], notes.scale[r]);
      const bool exists = output + place(i) < args.outputs;
      mine.values[4 * i] = exists ? v.x : -INFINITY;
      mine.values[4 * i + 1] = exists ? v.y : -INFINITY;
      mine.values[4 * i + 2] = exists ? v.z : -INFINITY;
      mine.values[4 * i + 3] = exists ? v.w : -INFINITY;
    }
    float most = mine.highest();
    for (int lane : {8, 16}) most = higher_or_nan(most, __shfl_xor_sync(0xffffffff, most, lane));
    int at = mine.first_that_is(most, part);
    for (int lane : {8, 16}) at = min(at, __shfl_xor_sync(0xffffffff, at, lane));
    float weight = 0;
    if (args.summary_weights) {
      weight = mine.weight(most);
      for (int lane : {8, 16}) weight += __shfl_xor_sync(0xffffffff, weight, lane);
    }
    if (!wanted || part != 0) continue;
    float* const to = static_cast<float*>(args.y) + static_cast<int64_t>(row + r) * args.outputs;
    reinterpret_cast<float4*>(to)[output / kSummaryGroup] = {most, __int_as_float(output + at), weight, 0};
  }
}

// Rows that are whole, to y: 16 lanes a row, four outputs each.
template <typename Shape>
__device__ void store_whole_rows(const TileArgs& args, const RowNotes<Shape>& notes, const float* group_sums, int row,
                                 int output) {
  constexpr int kPasses = Shape::kRows / 8, kBatch = kPasses < 4 ? kPasses : 4;
  static_assert(kPasses % kBatch == 0);
  uint32_t any = 0;
  for (uint32_t word : notes.whole) any |= word;
  const int t = threadIdx.x % 128, lane = t % 16 * 4;
  if (any == 0 || output + lane >= args.outputs) return;
  float4 weight_scale = {};
  if constexpr (Shape::kFp8) weight_scale = *reinterpret_cast<const float4*>(args.weight_scales + output + lane);
#pragma unroll 1
  for (int first = t / 16; first < Shape::kRows; first += 8 * kBatch) {
    float4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      v[i] = *reinterpret_cast<const float4*>(group_sums + (first + 8 * i) * Shape::kSumStride + lane);
      if constexpr (Shape::kFp8) v[i] = scaled(v[i], weight_scale, notes.scale[first + 8 * i]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int r = first + 8 * i;  // of those beyond the last none is whole
      if (notes.is_whole(r)) store4(args.y, false, static_cast<int64_t>(row + r) * args.outputs + output + lane, v[i]);
    }
  }
}

template <typename Shape>
__device__ void consume_and_summarise(const Ring& ring, const TileArgs& args, Slice slice, int half, int row) {
  static_assert(Shape::kHalves % 2 == 0, "a warpgroup has a group of outputs");
  __shared__ RowNotes<Shape> notes;
  if (Shape::kFp8 && threadIdx.x < Shape::kHalves && half + threadIdx.x < args.halves) {
    hopper::prefetch_to_l2(args.weight_scales + (half + threadIdx.x) * 32);
  }
  cuda::wait_for_predecessors();  // x, which the products wait for anyway, comes from them too
  note_rows<Shape>(args, row, notes);
  float registers[Shape::kRows / 2] = {};
  RingReader reader;
  consume<Shape>(ring, reader, slice.count, registers);
  consumers_sync<Shape>();  // nobody reads the ring any more, and the notes are there
  const int group = threadIdx.x / 128, output = half * 32 + group * kSummaryGroup;
  float* const sums = reinterpret_cast<float*>(ring.stages) + group * Shape::kRows * Shape::kSumStride;
  leave_sums<Shape>(sums, registers);
  group_sync<Shape>();
  if constexpr (Shape::kShared) hopper::cluster_arrive();
  if (output < args.outputs) {
    summarise_rows<Shape>(args, notes, sums, row, output);
    store_whole_rows<Shape>(args, notes, sums, row, output);
  }
  if constexpr (Shape::kShared) hopper::cluster_wait();  // the other block may still be signalling to here
}

}  // namespace volley::ops

// The end of the attention kernel for sm_90a: partial results of tiles that were cut, merged by the blocks that made
// them.
#pragma once

#include "ops/attention/attention_hopper_block_cuda.cuh"
#include "ops/attention/attention_merge_cuda.cuh"
#include "ops/attention/warpgroup_products.cuh"

namespace volley::ops {

// A split item's partial results are there for other blocks.
template <typename Shape>
__device__ void report_arrival(const TilesArgs& args, const WorkItem& item, int kv_head) {
  compute_sync<Shape>();
  if (threadIdx.x == 0) hopper::add_release(&args.arrivals[item.split * args.kv_heads + kv_head], 1);
}

// How the rows of a unit are merged: for each partial result, the factor of what is merged so far, that of the partial
// result, and its sum. A row of 17, so that the lanes of find_steps() write to different banks.
using MergeSteps = float4[kMaxChunks][17];

// Merges a tile's units [begin, end) with all warps that compute, in turns of units of the same rows. Outputs come into
// the ring, which is free by then; the steps lie in `merged`. (Plain copies, because the copy engine would have to wait
// for a fence of all memory before it may read what other blocks have stored.)
template <typename Shape>
struct PartMerger {
  static constexpr int kWarps = Shape::kComputeThreads / 32;
  static constexpr int kRowsEach = 16 / kWarps;  // of a unit, a warp
  static constexpr int kTogether = 2;            // units of a warp
  static constexpr int kRoom = sizeof(Shape::Shared::slots) / (32 * sizeof(float4));
  static_assert(sizeof(MergeSteps) <= sizeof(Shape::Shared::merged) && kRoom > kMaxChunks);

  const TilesArgs& args;
  typename Shape::Shared& shared;
  const WorkItem& item;
  int kv_head, begin, end;

  __device__ MergeSteps& steps() const { return *reinterpret_cast<MergeSteps*>(shared.merged); }
  __device__ TilePartials from() const {
    return partials_of(args.partials, args.max_units, item.tile_partial, item.tile_partials, kv_head, args.kv_heads,
                       Shape::kHeadDim);
  }
  __device__ int end_of_turn(int first) const {
    // The quotient may be one less than there is room for.
    const auto room = static_cast<int>(__fdividef(kRoom, static_cast<float>(item.tile_partials)));
    return min(min(first + room, end), (first / kRowUnits<Shape> + 1) * kRowUnits<Shape>);
  }
  __device__ void wait() const;
  __device__ void copy(int first, int stop) const;
  __device__ void find_steps(int rows) const;
  __device__ void merge_units(int first, int stop) const;
  __device__ void run() const;
};

// By one thread: until the partial results of all the tile's items are there.
template <typename Shape>
__device__ void PartMerger<Shape>::wait() const {
  const int32_t* arrivals = &args.arrivals[item.split * args.kv_heads + kv_head];
  const int32_t parts = item.parts;
  while (hopper::load_acquire(arrivals) % parts != 0) {
  }
}

// Units [first, stop) begin to come.
template <typename Shape>
__device__ void PartMerger<Shape>::copy(int first, int stop) const {
  const int unit_bytes = item.tile_partials * 32 * static_cast<int>(sizeof(float4));
  const int bytes = (stop - first) * unit_bytes;
  const uint8_t* outputs = reinterpret_cast<const uint8_t*>(from().outputs) + first * unit_bytes;
  const uint32_t to = hopper::shared_address(shared.slots);
#pragma unroll 1
  for (int at = threadIdx.x * 16; at < bytes; at += Shape::kComputeThreads * 16) {
    copy_or_zero(to + at, outputs + at, true);
  }
  commit_copies();
}

// Of the tile's rows 16 `rows` …: a lane stands for a partial result, because the maximum before it does not depend on
// any order.
template <typename Shape>
__device__ void PartMerger<Shape>::find_steps(int rows) const {
  const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * kRowsEach;
  const bool exists = lane < item.tile_partials;
  const auto* states =
      reinterpret_cast<const float4*>(from().states + (rows * item.tile_partials + lane) * 16 + first_row);
#pragma unroll
  for (int i = 0; i < kRowsEach; i += 2) {
    const float4 two = exists ? __ldcg(states + i / 2) : float4{-INFINITY, 0.0f, -INFINITY, 0.0f};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float maximum = row == 0 ? two.x : two.z, sum = row == 0 ? two.y : two.w;
      float highest = maximum;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const float other = __shfl_up_sync(0xffffffff, highest, d);
        if (lane >= d) highest = fmaxf(highest, other);
      }
      float before = __shfl_up_sync(0xffffffff, highest, 1);
      if (lane == 0) before = -INFINITY;
      const MergeFactors factors = merge_maximum(before, maximum);
      if (exists) steps()[lane][first_row + i + row] = make_float4(factors.old, factors.added, sum, 0.0f);
    }
  }
}

// Units [first, stop), which have come.
template <typename Shape>
__device__ void PartMerger<Shape>::merge_units(int first, int stop) const {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, partials = item.tile_partials;
#pragma unroll 1
  for (int unit = first + warp; unit < stop; unit += kWarps * kTogether) {
    UnitMerge<kTogether> merged;
    const float4* outputs[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int mine = min(unit + k * kWarps, stop - 1);
      outputs[k] = reinterpret_cast<const float4*>(shared.slots) + (mine - first) * partials * 32 + lane;
    }
#pragma unroll 4
    for (int i = 0; i < partials; ++i) {
      const float4 step[2] = {steps()[i][lane / 4], steps()[i][lane / 4 + 8]};
      const float sums[2] = {step[0].z, step[1].z};
      const MergeFactors factors[2] = {{step[0].x, step[0].y}, {step[1].x, step[1].y}};
      float4 added[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) added[k] = outputs[k][i * 32];
      merged.add(added, sums, factors);
    }
    store_units<Shape>(args, item, kv_head, unit, kWarps, stop, merged);
  }
}

template <typename Shape>
__device__ void PartMerger<Shape>::run() const {
  if (threadIdx.x == 0) wait();
  compute_sync<Shape>();
#pragma unroll 1
  for (int first = begin; first < end;) {
    const int stop = end_of_turn(first);
    copy(first, stop);
    if (first == begin || first % kRowUnits<Shape> == 0) find_steps(first / kRowUnits<Shape>);
    wait_for_copies<0>();
    compute_sync<Shape>();
    merge_units(first, stop);
    compute_sync<Shape>();  // outputs and steps have been read
    first = stop;
  }
}

// For each split item of this block: waits for the others of its tile, and merges its part of the tile. All items of
// this block come before, and all blocks of the grid are resident together, so that whatever it waits for is done or
// under way.
template <typename Shape>
__device__ void merge_own_parts(const TilesArgs& args, typename Shape::Shared& shared, int32_t units) {
  const bool at_hand = unit_of(kItemRing - kItemsAhead) >= units;  // all items are still in the ring of items
#pragma unroll 1
  for (int32_t index = 0; unit_of(index) < units; ++index) {
    const int32_t unit = unit_of(index), kv_head = args.units_of_item.remainder(unit);
    const WorkItem& item = at_hand ? shared.items[index] : item_of(args, unit);
    if (item.split < 0 || item.unit_begin >= item.unit_end) continue;
    PartMerger<Shape>{args, shared, item, kv_head, item.unit_begin, item.unit_end}.run();
  }
}

}  // namespace volley::ops

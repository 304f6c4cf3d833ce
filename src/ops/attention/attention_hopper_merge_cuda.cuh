// The end of the attention kernel for sm_90a: partial results of tiles that were cut, merged by the blocks that made
// them.
#pragma once

#include <algorithm>

#include "ops/attention/attention_hopper_block_cuda.cuh"
#include "ops/attention/attention_merge_cuda.cuh"
#include "ops/attention/warpgroup_products.cuh"

namespace volley::ops {

// A split item's partial results are there for other blocks.
template <typename Shape>
__device__ void report_arrival(const TilesArgs& args, const WorkItem& item, int kv_head) {
  compute_sync<Shape>();
  if (threadIdx.x != 0) return;
  __threadfence();
  atomicAdd(&args.arrivals[item.split * args.kv_heads + kv_head], 1);
}

// How a block merges: where it keeps what, in memory that holds something else while it attends.
template <typename Shape>
struct MergeScratch {
  static constexpr int kRows = kTileRows / 2;  // a block's part of a split tile's rows, at most
  static constexpr int kAhead = std::min<int>(32, Shape::kTileBytes / (kTileRows * sizeof(float2)));  // at a time
  // In `merged`. Every warp set of kHalves has its own.
  float outputs[Shape::kHalves][kRows][Shape::kHeadDim / Shape::kHalves];
  MergeFactors factors[Shape::kHalves][kRows][kAhead];
  float2 states[Shape::kHalves][kRows];                                     // maximum and sum so far
  static_assert(kAhead * kTileRows * sizeof(float2) <= Shape::kTileBytes);  // maxima and sums, in `q`
};

// One tile's partial results for its query rows [begin, end) in the hands of all warps that compute: every fourth row a
// warp, or half a row. The copy engine brings the outputs into the ring, which is free by then.
template <typename Shape>
struct PartMerger {
  using Scratch = MergeScratch<Shape>;
  static_assert(sizeof(Scratch) <= sizeof(Shape::Shared::merged));
  static constexpr int kWidth = kMergeWidth<Shape::kHeadDim>;

  const TilesArgs& args;
  typename Shape::Shared& shared;
  const WorkItem& item;
  int kv_head, begin, end;

  __device__ Scratch& scratch() const { return *reinterpret_cast<Scratch*>(shared.merged); }
  __device__ int row_floats() const { return (end - begin) * Shape::kHeadDim; }  // of a partial result
  __device__ static int half() { return threadIdx.x / 128; }
  __device__ int first_row() const { return begin + threadIdx.x / 32 % 4; }

  __device__ void copy(int first, int count) const;
  __device__ void find_factors(int first, int count) const;
  __device__ void merge_row(int row, int first, int count) const;
  __device__ void run(uint32_t& parity) const;
};

// By one warp: `count` partial results from `first` on.
template <typename Shape>
__device__ void PartMerger<Shape>::copy(int first, int count) const {
  constexpr uint32_t kStateBytes = kTileRows * sizeof(float2);
  const int lane = threadIdx.x;
  const uint32_t bytes = static_cast<uint32_t>(row_floats()) * 4;
  if (lane == 0) hopper::barrier_expect(&shared.staged, static_cast<uint32_t>(count) * (bytes + kStateBytes));
  __syncwarp();
  if (lane >= count) return;
  const int64_t unit = static_cast<int64_t>(item.tile_partial + first + lane) * args.kv_heads + kv_head;
  const Partials from = partials_of(args.partials, unit, args.max_units, Shape::kHeadDim);
  const uint64_t policy = hopper::l2_evict_normal();
  hopper::bulk_copy(shared.q + lane * kStateBytes, from.states, kStateBytes, &shared.staged, policy);
  hopper::bulk_copy(shared.slots[0] + lane * bytes, from.outputs + begin * Shape::kHeadDim, bytes, &shared.staged,
                    policy);
}

// A lane a row of this warp.
template <typename Shape>
__device__ void PartMerger<Shape>::find_factors(int first, int count) const {
  const int row = first_row() + threadIdx.x % 32 * 4;
  if (row >= end) return;
  const auto* added = reinterpret_cast<const float2*>(shared.q) + row;
  float2& state = scratch().states[half()][row - begin];
  float maximum = -INFINITY, sum = 0.0f;
  if (first > 0) maximum = state.x, sum = state.y;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float2 next = added[i * kTileRows];
    const MergeFactors factors = merge_maximum(maximum, next.x);
    sum = merge(sum, next.y, factors);
    scratch().factors[half()][row - begin][i] = factors;
  }
  state = {maximum, sum};
}

template <typename Shape>
__device__ void PartMerger<Shape>::merge_row(int row, int first, int count) const {
  const int lane = threadIdx.x % 32, local = row - begin, column = half() * 128 + lane * kWidth;
  float* kept = &scratch().outputs[half()][local][lane * kWidth];
  float outputs[kWidth] = {};
  if (first > 0) load_floats(kept, outputs);
  const float* from = reinterpret_cast<const float*>(shared.slots[0]) + local * Shape::kHeadDim + column;
#pragma unroll 4
  for (int i = 0; i < count; ++i, from += row_floats()) {
    float added[kWidth];
    load_floats(from, added);
    const MergeFactors factors = scratch().factors[half()][local][i];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) outputs[j] = merge(outputs[j], added[j], factors);
  }
  if (first + count >= item.tile_partials) {
    store_merged(result_of(args, item.row, item.first + row, kv_head, Shape::kHeadDim) + column, outputs,
                 scratch().states[half()][local].y);
    return;
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) kept[j] = outputs[j];
}

template <typename Shape>
__device__ void PartMerger<Shape>::run(uint32_t& parity) const {
  const int room = min(Scratch::kAhead, Shape::kSlots * Shape::kTileBytes / 4 / row_floats());
#pragma unroll 1
  for (int first = 0; first < item.tile_partials; first += room) {
    const int count = min(room, item.tile_partials - first);
    if (first > 0) compute_sync<Shape>();  // the partial results before these have been read
    if (threadIdx.x < 32) copy(first, count);
    hopper::barrier_wait(&shared.staged, parity);
    parity ^= 1;
    find_factors(first, count);
    __syncwarp();
#pragma unroll 1
    for (int row = first_row(); row < end; row += 4) merge_row(row, first, count);
  }
}

// For each split item of this block: waits for the others of its tile, and merges its part of the tile's rows. All
// items of this block come before, and all blocks of the grid are resident together, so that whatever it waits for is
// done or under way.
template <typename Shape>
__device__ void merge_own_rows(const TilesArgs& args, typename Shape::Shared& shared, int32_t units) {
  const bool at_hand = unit_of(kItemRing - kItemsAhead) >= units;  // all items are still in the ring of items
  uint32_t parity = 0;
#pragma unroll 1
  for (int32_t index = 0; unit_of(index) < units; ++index) {
    const int32_t unit = unit_of(index), kv_head = unit % args.kv_heads;
    const WorkItem& item = at_hand ? shared.items[index] : item_of(args, unit);
    if (item.split < 0) continue;
    if (threadIdx.x == 0) {
      const int32_t* arrivals = &args.arrivals[item.split * args.kv_heads + kv_head];
      const int32_t parts = item.parts;
      while (hopper::load_acquire(arrivals) % parts != 0) {
      }
    }
    compute_sync<Shape>();
    share_all_writes();  // of other blocks, which the copy engine reads now
    const int begin = item.count * item.part / item.parts, end = item.count * (item.part + 1) / item.parts;
    if (begin < end) PartMerger<Shape>{args, shared, item, kv_head, begin, end}.run(parity);
  }
}

}  // namespace volley::ops

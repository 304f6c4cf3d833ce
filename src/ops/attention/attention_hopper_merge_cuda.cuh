// The end of the attention kernel for sm_90a: the blocks that made the partial results of a split tile merge them.
//
// The last block to report its part of a tile finds the tile complete, and ensures that all of it is merged. Each other
// block has a share of the merging, and waits to do it if all blocks with items have started: the missing parts are
// then being computed, by blocks that report them before they wait themselves. If some blocks have not started (another
// kernel occupies the GPU, or there are more blocks than the GPU holds), a block leaves its share to the last one, and
// ends. So no block ever waits for one that has not started, whatever else runs on the GPU.
#pragma once

#include "ops/attention/attention_hopper_block_cuda.cuh"
#include "ops/attention/attention_merge_cuda.cuh"
#include "ops/attention/warpgroup_products.cuh"

namespace volley::ops {

// By one thread of each block.
__device__ inline void report_start(const TilesArgs& args, int32_t units) {
  if (unit_of(0) < units && args.counts->splits > 0) atomicAdd(&args.counts->started, 1);
}

// Makes a split item's partial results visible to other blocks.
template <typename Shape>
__device__ void report_arrival(const TilesArgs& args, const WorkItem& item, int kv_head) {
  compute_sync<Shape>();
  if (threadIdx.x == 0) hopper::add_release(&args.progress[item.split * args.kv_heads + kv_head], 1);
}

// A tile with one of its items, `part`, at which this block has arrived.
struct TileMeeting {
  TileProgress* progress;
  const volatile int32_t* started;
  uint32_t blocks;  // blocks that have items
  int32_t part, shares, parts;

  // This block's arrival is in `now`, so that the launch before is not taken for this one.
  __device__ bool complete(TileProgress now) const { return static_cast<uint32_t>(now) % parts == 0; }
  __device__ uint32_t own_share() const { return part < shares ? 1u << part : 0; }
  __device__ uint32_t take_shares() const;
};

// The shares that this block must merge now, as bits; the tile is complete then. Called by one thread.
__device__ inline uint32_t TileMeeting::take_shares() const {
  const auto running = static_cast<uint32_t>(*started);  // loaded at the same time as the next value
  TileProgress now = hopper::load_acquire(progress);
  uint32_t own = own_share();
  if (!complete(now)) {
    if (own == 0) return 0;
    // Blocks of the next launch may also have started, but only after all of this one.
    const uint32_t launches = static_cast<uint32_t>(now) / parts + 1;
    if (running >= launches * blocks) {
      while (!complete(now)) now = hopper::load_acquire(progress);
    } else {
      now = hopper::fetch_or(progress, TileProgress{own} << kLeftShares) | TileProgress{own} << kLeftShares;
      if (!complete(now)) return 0;
      own = 0;  // the block that clears the bit merges the share
    }
  }
  auto left = static_cast<uint32_t>(now >> kLeftShares);
  if (left != 0) left &= hopper::fetch_and(progress, ~(TileProgress{left} << kLeftShares)) >> kLeftShares;
  return own | left;
}

// How the rows of a unit are merged: for each partial result, the factor of the merged result so far, the factor of the
// partial result, its sum, and the maximum so far. A row of 17, so that the lanes of find_steps() write to different
// banks.
using MergeSteps = float4[kMaxChunks][17];

// Merges a tile's units [begin, end) with all warps that compute, in turns of units of the same rows. Outputs are
// copied into the ring, which is free by then; the steps lie in `merged`. (Plain copies, because the copy engine would
// have to wait for a fence of all memory before it may read what other blocks have stored.)
template <typename Shape>
struct TileMerger {
  static constexpr int kWarps = Shape::kComputeThreads / 32;
  static constexpr int kRowsEach = 16 / kWarps;  // rows of a unit for each warp
  static constexpr int kTogether = 2;            // units of a warp
  static constexpr int kRoom = sizeof(Shape::Shared::slots) / (32 * sizeof(float4));
  static_assert(sizeof(MergeSteps) <= sizeof(Shape::Shared::merged) && kRoom > kMaxChunks);

  const TilesArgs& args;
  typename Shape::Shared& shared;
  const WorkItem& item;
  int kv_head;

  __device__ MergeSteps& steps() const { return *reinterpret_cast<MergeSteps*>(shared.merged); }
  __device__ TilePartials from() const {
    return partials_of(args.partials, args.max_units, item.tile_partial, item.tile_partials, kv_head, args.kv_heads,
                       Shape::kHeadDim);
  }
  __device__ int begin_of_share(int share) const {
    const int units = (item.count + 15) / 16 * kRowUnits<Shape>;
    return static_cast<int>(__fdividef(static_cast<float>(units * share) + 0.5f, static_cast<float>(item.shares)));
  }
  __device__ int end_of_turn(int first, int end) const {
    // The quotient may be one less than there is room for.
    const auto room = static_cast<int>(__fdividef(kRoom, static_cast<float>(item.tile_partials)));
    return min(min(first + room, end), (first / kRowUnits<Shape> + 1) * kRowUnits<Shape>);
  }
  __device__ void copy(int first, int stop) const;
  __device__ void find_steps(int rows) const;
  __device__ void merge_units(int first, int stop) const;
  __device__ void run(int begin, int end) const;
};

// Starts copying units [first, stop).
template <typename Shape>
__device__ void TileMerger<Shape>::copy(int first, int stop) const {
  const int unit_bytes = item.tile_partials * 32 * static_cast<int>(sizeof(float4));
  const int bytes = (stop - first) * unit_bytes;
  const uint8_t* outputs = reinterpret_cast<const uint8_t*>(from().outputs) + first * unit_bytes;
  const uint32_t to = hopper::shared_address(shared.slots);
#pragma unroll 1
  for (int at = threadIdx.x * 16; at < bytes; at += Shape::kComputeThreads * 16) {
    copy_or_zero(to + at, outputs + at, true);
  }
  copies_commit();
}

// Finds the steps of the tile's rows from 16 * `rows` on. A lane stands for a partial result: the maximum before it
// does not depend on any order.
template <typename Shape>
__device__ void TileMerger<Shape>::find_steps(int rows) const {
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
      if (exists) steps()[lane][first_row + i + row] = make_float4(factors.old, factors.added, sum, before);
    }
  }
}

// Merges units [first, stop), which have arrived.
template <typename Shape>
__device__ void TileMerger<Shape>::merge_units(int first, int stop) const {
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
    merged.maximum[0] = steps()[partials - 1][lane / 4].w;
    merged.maximum[1] = steps()[partials - 1][lane / 4 + 8].w;
    store_units<Shape>(args, item, kv_head, unit, kWarps, stop, merged);
  }
}

template <typename Shape>
__device__ void TileMerger<Shape>::run(int begin, int end) const {
#pragma unroll 1
  for (int first = begin; first < end;) {
    const int stop = end_of_turn(first, end);
    copy(first, stop);
    if (first == begin || first % kRowUnits<Shape> == 0) find_steps(first / kRowUnits<Shape>);
    copies_wait<0>();
    compute_sync<Shape>();
    merge_units(first, stop);
    compute_sync<Shape>();  // outputs and steps have been read
    first = stop;
  }
}

// Merges for each split item of this block, all of which have been reported.
template <typename Shape>
__device__ void merge_tiles(const TilesArgs& args, typename Shape::Shared& shared, int32_t units) {
  const bool at_hand = unit_of(kItemRing - kItemsAhead) >= units;  // all items are still in the ring of items
  int turn = 0;
#pragma unroll 1
  for (int32_t index = 0; unit_of(index) < units; ++index) {
    const int32_t unit = unit_of(index), kv_head = args.units_of_item.remainder(unit);
    const WorkItem& item = at_hand ? shared.items[index] : item_of(args, unit);
    if (item.split < 0) continue;
    const TileMeeting meeting = {&args.progress[item.split * args.kv_heads + kv_head],
                                 &args.counts->started,
                                 min(gridDim.x, static_cast<uint32_t>(units)),
                                 item.part,
                                 item.shares,
                                 item.parts};
    const TileMerger<Shape> merger = {args, shared, item, kv_head};
    const uint32_t own = meeting.own_share();
    const int own_begin = merger.begin_of_share(item.part), own_end = merger.begin_of_share(item.part + 1);
    if (threadIdx.x == 0) shared.shares[turn] = meeting.take_shares();
    compute_sync<Shape>();
    uint32_t rest = shared.shares[turn];
    turn ^= 1;
#pragma unroll 1
    while (rest != 0) {
      const uint32_t later = rest & (rest + (rest & -rest));  // without the lowest neighbours, which are merged at once
      int begin = own_begin, end = own_end;
      if (rest != own) {
        const int first = __ffs(static_cast<int>(rest)) - 1;
        begin = merger.begin_of_share(first), end = merger.begin_of_share(first + __popc(rest ^ later));
      }
      merger.run(begin, end);
      rest = later;
    }
  }
}

}  // namespace volley::ops

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

// One tile's partial results for its units [begin, end) in the hands of all warps that compute. The copy engine brings
// the outputs into the ring, and maxima and sums into `merged`: both are free by then.
template <typename Shape>
struct PartMerger {
  static constexpr int kWarps = Shape::kComputeThreads / 32;
  static constexpr int kTogether = 2;  // units of a warp that share the factors of their rows
  static_assert(kMaxChunks * kTileRows * sizeof(float2) <= sizeof(Shape::Shared::merged));
  static_assert(kMaxChunks * 32 * sizeof(float4) <= sizeof(Shape::Shared::slots));

  const TilesArgs& args;
  typename Shape::Shared& shared;
  const WorkItem& item;
  int kv_head, begin, end;

  __device__ void copy(int first, int stop) const;
  __device__ void merge_units(int first, int stop) const;
  __device__ void run(uint32_t& parity) const;
};

// By one thread: units [first, stop).
template <typename Shape>
__device__ void PartMerger<Shape>::copy(int first, int stop) const {
  const int partials = item.tile_partials;
  const int first_rows = first / kRowUnits<Shape>, row_blocks = (stop - 1) / kRowUnits<Shape> + 1 - first_rows;
  const uint32_t output_bytes = (stop - first) * partials * 32 * sizeof(float4);
  const uint32_t state_bytes = row_blocks * partials * 16 * sizeof(float2);
  const TilePartials from =
      partials_of(args.partials, args.max_units, item.tile_partial, partials, kv_head, args.kv_heads, Shape::kHeadDim);
  const uint64_t policy = hopper::l2_evict_normal();
  hopper::barrier_expect(&shared.staged, output_bytes + state_bytes);
  hopper::bulk_copy(shared.merged, from.states + first_rows * partials * 16, state_bytes, &shared.staged, policy);
  hopper::bulk_copy(shared.slots, from.outputs + first * partials * 32, output_bytes, &shared.staged, policy);
}

// Units [first, stop), which copy() brought.
template <typename Shape>
__device__ void PartMerger<Shape>::merge_units(int first, int stop) const {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, partials = item.tile_partials;
  const auto* all_outputs = reinterpret_cast<const float4*>(shared.slots) + lane;
  const auto* all_states = reinterpret_cast<const float2*>(shared.merged) + lane / 4;
  const int first_rows = first / kRowUnits<Shape>;
#pragma unroll 1
  for (int rows = first_rows; rows * kRowUnits<Shape> < stop; ++rows) {
    const int until = min(stop, (rows + 1) * kRowUnits<Shape>);
#pragma unroll 1
    for (int unit = max(first, rows * kRowUnits<Shape>) + warp; unit < until; unit += kWarps * kTogether) {
      UnitMerge<kTogether> merge;
      merge.run(partials, all_states + (rows - first_rows) * partials * 16, [&](int k, int i) {
        const int mine = min(unit + k * kWarps, until - 1);
        return all_outputs[((mine - first) * partials + i) * 32];
      });
      store_units<Shape>(args, item, kv_head, unit, kWarps, until, merge);
    }
  }
}

template <typename Shape>
__device__ void PartMerger<Shape>::run(uint32_t& parity) const {
  // A whole number of units, and perhaps one less than there is room for.
  const auto room = static_cast<int>(
      __fdividef(sizeof(shared.slots) / (32 * sizeof(float4)), static_cast<float>(item.tile_partials)));
#pragma unroll 1
  for (int first = begin; first < end; first += room) {
    const int stop = min(first + room, end);
    if (first > begin) compute_sync<Shape>();  // the units before these have been read
    if (threadIdx.x == 0) copy(first, stop);
    hopper::barrier_wait(&shared.staged, parity);
    parity ^= 1;
    merge_units(first, stop);
  }
}

// For each split item of this block: waits for the others of its tile, and merges its part of the tile. All
// items of this block come before, and all blocks of the grid are resident together, so that whatever it waits for is
// done or under way.
template <typename Shape>
__device__ void merge_own_rows(const TilesArgs& args, typename Shape::Shared& shared, int32_t units) {
  const bool at_hand = unit_of(kItemRing - kItemsAhead) >= units;  // all items are still in the ring of items
  uint32_t parity = 0;
#pragma unroll 1
  for (int32_t index = 0; unit_of(index) < units; ++index) {
    const int32_t unit = unit_of(index), kv_head = args.units_of_item.remainder(unit);
    const WorkItem& item = at_hand ? shared.items[index] : item_of(args, unit);
    if (item.split < 0) continue;
    if (threadIdx.x == 0) {
      const int32_t* arrivals = &args.arrivals[item.split * args.kv_heads + kv_head];
      const int32_t parts = item.parts;
      while (hopper::load_acquire(arrivals) % parts != 0) {
      }
      share_all_writes();  // of other blocks, which the copy engine reads now
    }
    share_writes();  // what this block has in shared memory gives way to copies
    compute_sync<Shape>();
    const int begin = item.unit_begin, end = item.unit_end;
    if (begin < end) PartMerger<Shape>{args, shared, item, kv_head, begin, end}.run(parity);
  }
}

}  // namespace volley::ops

// How attention's work is cut on CUDA, and what the plan kernel leaves for the others. Private to this folder.
//
// A *query row* is one head of one row of the batch. For each KV head, the g query rows that share it of each row of a
// segment, row after row, are cut into tiles of kTileRows. A tile over the chunks that its rows see is one item, or
// several where the multiprocessors would otherwise wait for it.
#pragma once

#include <cstdint>

#include "ops/attention/attention.h"

namespace volley::ops {

inline constexpr int kTileRows = 64;
inline constexpr int kTilePositions = 64;

// Where the chunk that holds `position` ends. Chunks are 128 positions long up to 1024, 256 up to 8192, and then a
// sixteenth of the power of two that they follow: short where few chunks are all there is to share among the
// multiprocessors, and long where their partial results would weigh beside K and V. They decide a row's bits, so
// nothing but the position may go into them.
__host__ __device__ inline int32_t chunk_end(int32_t position) {
#ifdef __CUDA_ARCH__
  const int log2 = 31 - __clz(position | 1);
#else
  const int log2 = 31 - __builtin_clz(static_cast<unsigned>(position) | 1u);
#endif
  const int shift = log2 > 12 ? log2 - 4 : log2 > 9 ? 8 : 7;
  return ((position >> shift) + 1) << shift;
}

// Some consecutive chunks of a tile; every KV head does the same. In the order of decreasing cost.
struct alignas(16) WorkItem {
  int32_t row;                          // first row of the segment in the batch
  int32_t first, count;                 // query rows of the segment
  int32_t slot;                         // row of the page table
  int32_t begin, end;                   // positions
  int32_t all_begin, all_end;           // positions that all rows of the tile see; may be none
  int32_t written;                      // K and V of positions before this one are older than the pass
  int32_t folded;                       // its chunks are merged into one partial result, or into the result
  int32_t partial;                      // index of its first partial result; -1: the item is the whole tile
  int32_t split;                        // index among the split tiles; -1: the item is the whole tile
  int32_t part, parts;                  // which of the tile's items this is
  int32_t tile_partial, tile_partials;  // those of all the tile's items
};
static_assert(sizeof(WorkItem) == 64);

// A tile whose partial results are to be merged.
struct SplitTile {
  int32_t row, first, count;
  int32_t partial, partials;
};

struct TileCut {
  int32_t items, partials;
};

// What the plan knows of a tile before it cuts it.
struct TileInfo {
  int32_t row, first, count, slot;
  int32_t begin, end, all_begin, all_end;
  int32_t written;
  TileCut cut;
};

struct WorkCounts {
  int32_t items;
  int32_t splits;
};

// AttentionWork::lists
struct WorkLists {
  WorkCounts* counts;
  WorkItem* items;    // [max_items]
  SplitTile* splits;  // [max_tiles]
  TileInfo* tiles;    // [max_tiles], for the plan alone
  // [max_tiles][kv_heads]: of a split tile's items, those whose partial results are there. It only ever grows, by the
  // number of items in each layer, so that nobody has to clear it in between.
  int32_t* arrivals;
};

inline constexpr int64_t kCountsBytes = 64;

inline WorkLists work_lists(const AttentionWork& work) {
  WorkLists lists;
  uint8_t* at = static_cast<uint8_t*>(work.lists);
  lists.counts = reinterpret_cast<WorkCounts*>(at);
  lists.items = reinterpret_cast<WorkItem*>(at + kCountsBytes);
  lists.splits = reinterpret_cast<SplitTile*>(lists.items + work.max_items);
  lists.tiles = reinterpret_cast<TileInfo*>(lists.splits + work.max_tiles);
  lists.arrivals = reinterpret_cast<int32_t*>(lists.tiles + work.max_tiles);
  return lists;
}

// AttentionWork::partials: for each partial result and KV head, outputs [kTileRows][head_dim] that are not yet divided
// by the sum; after all of them, maximum (in units of log2) and sum, [kTileRows][2].
struct Partials {
  float* outputs;
  float2* states;
};
__host__ __device__ inline Partials partials_of(float* base, int64_t unit, int64_t max_units, int head_dim) {
  return {base + unit * kTileRows * head_dim,
          reinterpret_cast<float2*>(base + max_units * kTileRows * head_dim) + unit * kTileRows};
}

}  // namespace volley::ops

// How attention's work is divided on CUDA, and the data that the plan kernel leaves for the others. Private to this
// folder.
//
// A *query row* is one head of one row of the batch. For each KV head, each row of a segment has g query rows that
// share it; these, row after row, are cut into tiles of kTileRows or kWideTileRows. A tile with the chunks that its
// rows see is one item, or several if the other multiprocessors would otherwise wait for it.
#pragma once

#include <cstdint>

#include "ops/attention/attention.h"

namespace volley::ops {

inline constexpr int kTileRows = 64, kWideTileRows = 128;
inline constexpr int kTilePositions = 64;

// The length of a row's chunks, as the exponent of two, from the end of its range, so that there are at most
// kMaxChunks. Chunks are short where there are few positions to divide among the multiprocessors, and long where
// merging would otherwise be a notable part of the time. They decide a row's bits, so they may depend only on the row's
// own range, and on the shape of the heads: long_chunks are for many heads that share K, whose merging takes longer and
// whose tiles are many.
inline constexpr int kMaxChunks = 32;
inline constexpr int kLeastChunkShift = 7;
__host__ __device__ inline int chunk_shift(int32_t end, bool long_chunks) {
#ifdef __CUDA_ARCH__
  const int log2 = 32 - __clz(max(end, 1) - 1);  // rounded up
#else
  const int log2 = end > 1 ? 32 - __builtin_clz(static_cast<unsigned>(end - 1)) : 0;
#endif
  const int more = !long_chunks ? 0 : log2 > 12 ? 2 : log2 > 10 ? 1 : 0;
  return more + (log2 > 13 ? log2 - 5 : log2 > 12 ? 9 : log2 > 10 ? 8 : kLeastChunkShift);
}
constexpr bool has_long_chunks(int32_t heads, int32_t v_in_k) {
  return v_in_k > 0 && heads >= 64;
}
__host__ __device__ inline int32_t chunk_end(int32_t position, int shift) {
  return ((position >> shift) + 1) << shift;
}

// Some consecutive chunks of a tile, the same for every KV head. Items are in the order of decreasing cost.
struct alignas(16) WorkItem {
  int32_t row;                          // first row of the segment in the batch
  int32_t first, count;                 // query rows of the segment
  int32_t slot;                         // row of the page table
  int32_t begin, end;                   // positions
  int32_t all_begin, all_end;           // positions that all rows of the tile see; may be empty
  int32_t written;                      // K and V of positions before this one are older than the pass
  int16_t shift;                        // exponent of the chunks' length
  bool mixed;                           // only the rows with chunks of this length: the others have items of their own
  bool folded;                          // the item merges its chunks into one partial result, or into the final one
  int32_t partial;                      // index in the tile of its first partial result; -1: it is the whole tile
  int32_t split;                        // index among the split tiles; -1: the item is the whole tile
  int16_t part, shares;                 // which of the tile's items; the first `shares` have a share of its merging
  int32_t parts;                        // items of the tile
  int32_t tile_partial, tile_partials;  // partial results of all the tile's items
};
static_assert(sizeof(WorkItem) == 64);

// A tile whose partial results are to be merged.
struct SplitTile {
  int32_t row, first, count;
  int16_t shift, mixed;  // as in WorkItem
  int32_t partial, partials;
};

struct TileCut {
  int32_t items, partials;
};

// The plan's data of a tile before it is split. A tile with several lengths of chunks has an entry for each.
struct TileInfo {
  int32_t row, first, count, slot;
  int32_t begin, end, all_begin, all_end;
  int32_t written;
  int16_t shift, mixed;
  uint32_t others;  // other shifts that rows of the tile have, as bits
  TileCut cut;
};

struct WorkCounts {
  int32_t items;
  int32_t splits;
  // The number of blocks with items that have started, over all launches since the plan, which use one grid. Counted if
  // any tile is split.
  alignas(32) int32_t started;
};

// The progress of a split tile for one KV head. Low half: items whose partial results are stored, over all launches
// since the plan, so that no kernel has to clear it in between: the tile is complete at multiples of its parts. High
// half: a bit for each share of the merging that a block has left to the last block; no bit is set between launches.
using TileProgress = uint64_t;
inline constexpr int kLeftShares = 32;  // where the bits begin

// AttentionWork::lists
struct WorkLists {
  WorkCounts* counts;
  WorkItem* items;         // [max_items]
  SplitTile* splits;       // [max_tiles]
  TileInfo* tiles;         // [max_tiles], for the plan alone
  TileProgress* progress;  // [max_tiles][kv_heads]
};

inline constexpr int64_t kCountsBytes = 64;

inline WorkLists work_lists(const AttentionWork& work, int32_t kv_heads) {
  WorkLists lists;
  uint8_t* at = static_cast<uint8_t*>(work.lists);
  lists.counts = reinterpret_cast<WorkCounts*>(at);
  lists.items = reinterpret_cast<WorkItem*>(at + kCountsBytes);
  lists.progress = reinterpret_cast<TileProgress*>(lists.items + work.max_items);
  lists.splits = reinterpret_cast<SplitTile*>(lists.progress + int64_t{work.max_tiles} * kv_heads);
  lists.tiles = reinterpret_cast<TileInfo*>(lists.splits + work.max_tiles);
  return lists;
}

// AttentionWork::partials: those of a split tile and KV head lie together. Outputs are not yet divided by the sum. They
// are stored in units that a warp holds in one instruction (RowState::output): 16 rows, 8 columns, a float4 a lane.
// Units of the same rows are neighbours.
// Latents: behind all of them, what each block has merged of its item (attention_latent_cuda.cuh).
inline constexpr int kUnitColumns = 8;
inline int64_t partial_floats(const AttentionWork& work, int32_t kv_heads, int32_t value_dim) {
  return int64_t{work.max_partials} * kv_heads * kTileRows * (value_dim + 2);
}
struct TilePartials {
  float4* outputs;  // [units][partial results][32]
  float2* states;   // [kTileRows / 16][partial results][16]: maximum (in units of log2) and sum
};
__host__ __device__ inline TilePartials partials_of(float* base, int64_t max_units, int64_t first, int count,
                                                    int kv_head, int kv_heads, int head_dim) {
  const int64_t at = (first * kv_heads + static_cast<int64_t>(kv_head) * count) * kTileRows;
  return {reinterpret_cast<float4*>(base + at * head_dim),
          reinterpret_cast<float2*>(base + max_units * kTileRows * head_dim) + at};
}

}  // namespace volley::ops

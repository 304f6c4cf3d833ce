// Divides a pass's attention into items, on the device, because only the device knows the sequences' lengths.
#include <algorithm>

#include "device/cuda/block_sum.cuh"
#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/attention/attention_cuda.h"
#include "ops/attention/attention_cuda_work.cuh"
#include "ops/paged_kv/cuda_page.cuh"

namespace volley::ops {
namespace {

constexpr int kThreads = 1024;
constexpr int kBuckets = 128;  // buckets of items by cost
constexpr int kTileLanes = 8;  // lanes that read a tile's rows together

// The plan is a chain of small steps, each of which reads the result of the one before. So tiles lie in shared memory,
// as long as there are no more than a large prefill has.
constexpr int64_t kSharedTiles = 1024;

// The least positions of an item: below, its fixed cost exceeds that of its K and V.
constexpr int32_t kMinItem = 128;
// The cost of splitting a tile, in positions: partial results go to memory and come back.
constexpr int32_t kSplitCost = 64;

// Waves are evened out if a segment of the pass may have so many tiles, and a block's share is at least so many
// positions. With fewer tiles reading K and V bounds attention, and with fewer positions there is less to save than it
// takes.
constexpr int kLeastTiles = 4;
constexpr int32_t kLeastShare = 2048;

// Partial results for all KV heads together that there is room for, per block of the grid.
constexpr int64_t kPartialsPerBlock = 12;
constexpr int64_t kLatentPartialsPerBlock = 6;  // which are four to eight times as wide

struct PlanArgs {
  const int32_t *visible_begin, *visible_end;
  const int32_t* cache_positions;  // may be null
  const RowSegment* segments;
  int n_segments, rows;
  int group, kv_heads, blocks, tile_rows;
  int max_tiles, max_items, max_partials;
  bool shared_tiles;
  bool long_chunks;
  bool whole;   // no tile is cut
  bool evened;  // a segment may have kLeastTiles
  WorkLists lists;
};

// Sum of the values of the threads before this one; `total` receives the sum of all. Each call has a kPlace of its own,
// so it need not wait for threads that still read the sums of another.
template <int kPlace>
__device__ int32_t scan(int32_t value, int32_t* total) {
  __shared__ int32_t sums[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t inclusive = cuda::warp_sum_through(value);
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  const int32_t of_warp = sums[lane];
  *total = __reduce_add_sync(0xffffffff, of_warp);
  return inclusive - value + __reduce_add_sync(0xffffffff, lane < warp ? of_warp : 0);
}

// Segments to tiles. Returns their number.
__device__ int32_t make_tiles(const PlanArgs& args) {
  const int each = (args.n_segments + kThreads - 1) / kThreads;
  const int from = min(static_cast<int>(threadIdx.x) * each, args.n_segments), to = min(from + each, args.n_segments);
  const auto tiles_of = [&](int s) {
    const RowSegment& segment = args.segments[s];
    if (segment.rows <= 0) return 0;
    if (segment.row_begin < 0 || segment.row_begin + segment.rows > args.rows) __trap();
    return (segment.rows * args.group + args.tile_rows - 1) / args.tile_rows;
  };
  int32_t mine = 0, total;
  for (int s = from; s < to; ++s) mine += tiles_of(s);
  int32_t at = scan<0>(mine, &total);
  if (total > args.max_tiles) __trap();  // the bounds were wrong
  for (int s = from; s < to; ++s) {
    const RowSegment segment = args.segments[s];
    const int32_t count = tiles_of(s);
    for (int32_t i = 0; i < count; ++i) {
      TileInfo& tile = args.lists.tiles[at++];
      tile.row = segment.row_begin;
      tile.first = i * args.tile_rows;
      tile.count = min(args.tile_rows, segment.rows * args.group - tile.first);
      tile.slot = segment.slot;
    }
  }
  __syncthreads();
  return total;
}

// Computes, with kTileLanes threads, the range seen by the tile's rows that have its chunk length. kFirst: the tile
// gets the chunk length of its first row, and the other lengths of its rows are noted.
template <bool kFirst>
__device__ void find_ranges(const PlanArgs& args, TileInfo& tile) {
  const int lane = static_cast<int>(threadIdx.x) % kTileLanes;
  const uint32_t lanes = ((1u << kTileLanes) - 1) << (threadIdx.x % 32 - lane);
  const int from = tile.row + tile.first / args.group, to = tile.row + (tile.first + tile.count - 1) / args.group;
  int32_t begin = INT32_MAX, end = 0, all_begin = 0, all_end = INT32_MAX, written = 0;
  if (kFirst && lane == 0 && args.cache_positions != nullptr) written = args.cache_positions[tile.row];
  int row = min(from + lane, to);
  int32_t b = args.visible_begin[row], e = args.visible_end[row];
  const int shift = kFirst ? chunk_shift(__shfl_sync(lanes, e, 0, kTileLanes), args.long_chunks) : tile.shift;
  uint32_t shifts = 0;
  while (true) {
    const int own = chunk_shift(e, args.long_chunks);
    shifts |= 1u << own;
    if (own == shift) {
      begin = min(begin, b), all_begin = max(all_begin, b);
      end = max(end, e), all_end = min(all_end, e);
    }
    row += kTileLanes;
    if (row > to) break;
    b = args.visible_begin[row], e = args.visible_end[row];
  }
#pragma unroll
  for (int d = kTileLanes / 2; d > 0; d /= 2) {
    begin = min(begin, __shfl_xor_sync(lanes, begin, d));
    all_begin = max(all_begin, __shfl_xor_sync(lanes, all_begin, d));
    end = max(end, __shfl_xor_sync(lanes, end, d));
    all_end = min(all_end, __shfl_xor_sync(lanes, all_end, d));
    shifts |= __shfl_xor_sync(lanes, shifts, d);
  }
  if (lane == 0) {
    tile.begin = begin, tile.end = end;
    tile.all_begin = all_begin, tile.all_end = all_end;
    if (kFirst) {
      const uint32_t others = shifts & ~(1u << shift);
      tile.written = written;
      tile.shift = static_cast<int16_t>(shift);
      tile.others = others, tile.mixed = others != 0;
    }
  }
}

// Finds the ranges of all tiles. A tile whose rows have several lengths of chunks gets a further entry for each other
// length. Returns the number of tiles.
__device__ int32_t find_all_ranges(const PlanArgs& args, int32_t tiles) {
  constexpr int kAtOnce = kThreads / kTileLanes;
  const int lanes = threadIdx.x / kTileLanes;
  for (int t = lanes; t < tiles; t += kAtOnce) find_ranges<true>(args, args.lists.tiles[t]);
  __syncthreads();
  const int each = (tiles + kThreads - 1) / kThreads;
  const int from = min(static_cast<int>(threadIdx.x) * each, tiles), to = min(from + each, tiles);
  int32_t mine = 0, more;
  for (int t = from; t < to; ++t) mine += __popc(args.lists.tiles[t].others);
  int32_t at = tiles + scan<1>(mine, &more);
  if (more == 0) return tiles;
  if (tiles + more > args.max_tiles) __trap();  // the bounds were wrong
  for (int t = from; t < to; ++t) {
    for (uint32_t others = args.lists.tiles[t].others; others != 0; others &= others - 1) {
      args.lists.tiles[at] = args.lists.tiles[t];
      args.lists.tiles[at++].shift = static_cast<int16_t>(__ffs(static_cast<int>(others)) - 1);
    }
  }
  __syncthreads();
  for (int t = tiles + lanes; t < tiles + more; t += kAtOnce) find_ranges<false>(args, args.lists.tiles[t]);
  __syncthreads();
  return tiles + more;
}

__device__ int32_t chunks_of(const TileInfo& tile) {
  return ((tile.end - 1) >> tile.shift) - (tile.begin >> tile.shift) + 1;
}

// Calls item(begin, end, partial results) for each of `items` runs of chunks. The first run's chunks are merged on the
// spot, because merging goes from the left; each other chunk leaves a partial result.
template <typename Item>
__device__ void cut(const TileInfo& tile, int32_t items, const Item& item) {
  const int32_t chunks = chunks_of(tile), first = tile.begin >> tile.shift;
  for (int32_t i = 0; i < items; ++i) {
    const int32_t from = chunks * i / items, to = chunks * (i + 1) / items;
    item(max(tile.begin, (first + from) << tile.shift), min(tile.end, (first + to) << tile.shift),
         i == 0 ? 1 : to - from);
  }
}

// How a tile is split: into the fewest items of at most `target` positions, or one chunk, all about equally long. A
// tile little longer than the target is not split.
__device__ TileCut count_items(const TileInfo& tile, int32_t target) {
  const int32_t whole = target + target / 8 + kSplitCost;
  if (tile.end - tile.begin <= whole) return {1, 0};
  int32_t items = 0;
  for (int32_t at = tile.begin; at < tile.end; ++items) {
    const int32_t most = at + target >= tile.end ? tile.end : (at + target) >> tile.shift << tile.shift;
    at = max(most, min(chunk_end(at, tile.shift), tile.end));
  }
  const int32_t chunks = chunks_of(tile);
  return {items, 1 + chunks - chunks / items};
}

// The length of items: a block's share of the positions if all were alike, or somewhat more if each block then has at
// most one item. Chunks seldom add up to a share, and a second item costs a block more than a longer first one.
__device__ int32_t choose_target(const PlanArgs& args, int tiles, int32_t share) {
  __shared__ int32_t best;
  const int32_t least = max(share, kMinItem);
  if (static_cast<int64_t>(tiles) * args.kv_heads > args.blocks) return least;
  if (threadIdx.x == 0) best = kThreads / 32;
  __syncthreads();
  const int lane = threadIdx.x % 32, candidate = threadIdx.x / 32;
  const auto target_of = [&](int32_t i) { return least + static_cast<int32_t>(int64_t{least} * i / 16); };
  int32_t items = 0;
  for (int t = lane; t < tiles; t += 32) items += count_items(args.lists.tiles[t], target_of(candidate)).items;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) items += __shfl_xor_sync(0xffffffff, items, d);
  if (lane == 0 && items * args.kv_heads <= args.blocks) atomicMin(&best, candidate);
  __syncthreads();
  return best < kThreads / 32 ? target_of(best) : least;
}

// The lengths of the items that tiles are cut into: `usual`, and `fine` for long tiles from number `fine_from` on.
struct Lengths {
  int32_t usual, fine_from, fine;
};

// REQUIRES: tile.cut.items is the tile's number among the long ones, or -1.
__device__ TileCut cut_of(const TileInfo& tile, const Lengths& lengths) {
  return count_items(tile, tile.cut.items >= lengths.fine_from ? lengths.fine : lengths.usual);
}

// The cost of a division: how long the last block takes, in positions; INT32_MAX: it does not fit. Computed by a warp.
__device__ int32_t cost_of(const PlanArgs& args, int tiles, int32_t share, const Lengths& lengths) {
  int32_t items = 0, partials = 0, usual_items = 0, usual_length = 0, fine_length = 0;
  for (int t = static_cast<int>(threadIdx.x) % 32; t < tiles; t += 32) {
    const TileInfo& tile = args.lists.tiles[t];
    const TileCut cut = cut_of(tile, lengths);
    items += cut.items, partials += cut.partials;
    if (tile.cut.items < 0) continue;
    const int32_t chunks = (chunks_of(tile) + cut.items - 1) / cut.items;
    const int32_t length = min(tile.end - tile.begin, chunks << tile.shift);
    if (tile.cut.items >= lengths.fine_from) {
      fine_length = max(fine_length, length);
    } else {
      usual_length = max(usual_length, length), usual_items += cut.items;
    }
  }
  items = __reduce_add_sync(0xffffffff, items), partials = __reduce_add_sync(0xffffffff, partials);
  usual_items = __reduce_add_sync(0xffffffff, usual_items);
  usual_length = __reduce_max_sync(0xffffffff, usual_length);
  fine_length = __reduce_max_sync(0xffffffff, fine_length);
  if (items > args.max_items || partials > args.max_partials) return INT32_MAX;
  const int32_t waves = (usual_items * args.kv_heads + args.blocks - 1) / args.blocks;
  const auto merging = static_cast<int32_t>(int64_t{partials} * args.kv_heads * kSplitCost / args.blocks);
  return max(waves * usual_length, share) + fine_length + merging;
}

// If long tiles are a little more than whole waves of the grid, most blocks wait for the last items. So the tiles that
// fill whole waves are split into equal items, perhaps of a whole tile each, and the others into so short ones that all
// blocks get some. This is done if it saves an eighth of the time. Tiles must be about as long as the longest, or so
// short that their place does not matter.
__device__ Lengths choose_lengths(const PlanArgs& args, int tiles, int32_t share) {
  constexpr int kFines = 4;
  const Lengths plain = {choose_target(args, tiles, share), INT32_MAX, 0};
  if (!args.evened || share < kLeastShare) return plain;
  __shared__ int32_t longest, others;
  __shared__ unsigned long long best;
  if (threadIdx.x == 0) longest = others = 0, best = UINT64_MAX;
  __syncthreads();
  const int each = (tiles + kThreads - 1) / kThreads;
  const int from = min(static_cast<int>(threadIdx.x) * each, tiles), to = min(from + each, tiles);
  const auto length_of = [&](int t) { return args.lists.tiles[t].end - args.lists.tiles[t].begin; };
  for (int t = from; t < to; ++t) atomicMax(&longest, length_of(t));
  __syncthreads();
  const auto is_long = [&](int t) { return length_of(t) > longest - longest / 8; };
  int32_t mine = 0, long_tiles;
  for (int t = from; t < to; ++t) {
    mine += is_long(t) ? 1 : 0;
    if (!is_long(t) && length_of(t) > longest / 4) atomicAdd(&others, 1);
  }
  int32_t number = scan<6>(mine, &long_tiles);
  for (int t = from; t < to; ++t) args.lists.tiles[t].cut.items = is_long(t) ? number++ : -1;
  __syncthreads();
  if (others > long_tiles / 8) return plain;

  // Each warp tries one division: a number of items a tile, and lengths of the short ones.
  const int warp = threadIdx.x / 32, per_tile = warp / kFines + 1, fine = warp % kFines;
  const auto lengths_of = [&](int32_t per_tile, int32_t fine) -> Lengths {
    const int shift = chunk_shift(longest, args.long_chunks);
    const int32_t usual = (((longest - 1) / per_tile >> shift) + 1) << shift;  // whole chunks, without windows
    const int64_t units = int64_t{long_tiles} * per_tile;
    const int64_t waves = units * args.kv_heads / args.blocks;
    if (waves == 0) return {usual, INT32_MAX, 0};
    const auto whole = static_cast<int32_t>(waves * args.blocks / args.kv_heads / per_tile);
    const int64_t over = int64_t{long_tiles - whole} * longest * args.kv_heads / args.blocks;
    return {usual, whole, max(static_cast<int32_t>(over / 4 * (fine + 1)), kMinItem)};
  };
  const int32_t cost = cost_of(args, tiles, share, lengths_of(per_tile, fine));
  if (threadIdx.x % 32 == 0) {
    atomicMin(&best, static_cast<unsigned long long>(cost) << 32 | static_cast<unsigned>(warp));
  }
  const int32_t plain_cost = cost_of(args, tiles, share, plain);
  __syncthreads();
  // Without room for all its partial results a division leaves some tiles whole, for which there is no estimate.
  if (plain_cost == INT32_MAX || static_cast<int64_t>(best >> 32) * 8 > int64_t{plain_cost} * 7) return plain;
  const auto chosen = static_cast<int32_t>(best & 0xffffffff);
  return lengths_of(chosen / kFines + 1, chosen % kFines);
}

// Four buckets for each doubling, the most expensive first.
__device__ int bucket_of(int32_t positions) {
  const float tiles = static_cast<float>((positions + kTilePositions - 1) / kTilePositions);
  return kBuckets - 1 - min(kBuckets - 1, static_cast<int>((__float_as_uint(tiles) >> 21) - (127u << 2)));
}

__global__ void __launch_bounds__(kThreads, 1) plan_kernel(PlanArgs args) {
  extern __shared__ TileInfo shared_tiles[];
  __shared__ int32_t places[kBuckets];
  if (args.shared_tiles) args.lists.tiles = shared_tiles;
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  if (threadIdx.x < kBuckets) places[threadIdx.x] = 0;
  const int tiles = find_all_ranges(args, make_tiles(args));

  const int each = (tiles + kThreads - 1) / kThreads;
  const int from = min(static_cast<int>(threadIdx.x) * each, tiles), to = min(from + each, tiles);
  int32_t mine = 0, total;
  for (int t = from; t < to; ++t) mine += (args.lists.tiles[t].end - args.lists.tiles[t].begin + 63) / 64;
  scan<2>(mine, &total);
  const auto share = static_cast<int32_t>(int64_t{total} * 64 * args.kv_heads / args.blocks) + 1;
  const Lengths lengths = args.whole ? Lengths{INT32_MAX / 2, INT32_MAX, 0} : choose_lengths(args, tiles, share);
  mine = 0;
  for (int t = from; t < to; ++t) {
    TileInfo& tile = args.lists.tiles[t];
    tile.cut = lengths.fine_from < tiles ? cut_of(tile, lengths) : count_items(tile, lengths.usual);
    mine += tile.cut.partials;
  }
  const int32_t first_partial = scan<3>(mine, &total);
  // Where room for partial results runs out, tiles stay whole.
  const auto is_split = [&](int32_t partial, int32_t n) { return n > 1 && partial + n <= args.max_partials; };

  int32_t partial = first_partial;
  mine = 0;
  for (int t = from; t < to; ++t) {
    const TileInfo& tile = args.lists.tiles[t];
    const int32_t n = tile.cut.partials;
    if (is_split(partial, n)) {
      ++mine;
      cut(tile, tile.cut.items,
          [&](int32_t begin, int32_t end, int32_t) { atomicAdd(&places[bucket_of(end - begin)], 1); });
    } else {
      atomicAdd(&places[bucket_of(tile.end - tile.begin)], 1);
    }
    partial += n;
  }
  int32_t splits;
  int32_t split = scan<4>(mine, &splits);
  int32_t items;
  const int32_t in_bucket = threadIdx.x < kBuckets ? places[threadIdx.x] : 0;
  const int32_t place = scan<5>(in_bucket, &items);
  if (items > args.max_items) __trap();  // the bounds were wrong
  if (threadIdx.x < kBuckets) places[threadIdx.x] = place;
  if (threadIdx.x == 0) *args.lists.counts = {items, splits, 0};
  for (int i = static_cast<int>(threadIdx.x); i < splits * args.kv_heads; i += kThreads) args.lists.progress[i] = 0;
  __syncthreads();

  partial = first_partial;
  for (int t = from; t < to; ++t) {
    const TileInfo tile = args.lists.tiles[t];
    const auto [parts, n] = tile.cut;
    WorkItem item = {};
    item.row = tile.row, item.first = tile.first, item.count = tile.count, item.slot = tile.slot;
    item.begin = tile.begin, item.end = tile.end, item.all_begin = tile.all_begin, item.all_end = tile.all_end;
    item.written = tile.written;
    item.shift = tile.shift, item.mixed = tile.mixed != 0, item.folded = true;
    item.partial = item.split = -1;
    item.parts = 1;
    item.tile_partial = partial, item.tile_partials = n;
    const auto emit = [&] { args.lists.items[atomicAdd(&places[bucket_of(item.end - item.begin)], 1)] = item; };
    if (is_split(partial, n)) {
      item.split = split;
      item.parts = parts;
      // The most shares of merging with which none has parts of two blocks of 16 rows.
      const int32_t row_blocks = (tile.count + 15) / 16;
      item.shares = static_cast<int16_t>(parts < row_blocks ? parts : parts / row_blocks * row_blocks);
      item.partial = 0;
      args.lists.splits[split++] = {tile.row, tile.first, tile.count, tile.shift, tile.mixed, partial, n};
      cut(tile, parts, [&](int32_t begin, int32_t end, int32_t partials) {
        item.begin = begin;
        item.end = end;
        item.folded = begin == tile.begin;
        emit();
        item.partial += partials;
        ++item.part;
      });
    } else {
      emit();
    }
    partial += n;
  }
}

// Blocks of the grid: as many as fit on the multiprocessors that the pass may use.
int64_t most_blocks(const GpuInfo& gpu, const HeadShape& shape, int tile_rows) {
  const int count =
      shape.multiprocessors > 0 ? std::min(shape.multiprocessors, gpu.multiprocessors) : gpu.multiprocessors;
  return int64_t{count} * (tile_rows == kTileRows ? attention_blocks_per_multiprocessor(shape.head_dim) : 1);
}

struct WorkSize {
  AttentionWork work;  // without memory
  int64_t list_bytes, partial_floats;
};

WorkSize size_of(const GpuInfo& gpu, const Rows& rows, const HeadShape& shape, AttentionBackend backend) {
  VOLLEY_CHECK(shape.kv_heads >= 1 && shape.heads % shape.kv_heads == 0 && rows.max_segment_rows >= 0);
  VOLLEY_CHECK_GE(rows.max_positions, 1);
  const bool wide =
      shape.whole && backend == AttentionBackend::kWgmma && attention_wide_fits(shape.dtype, shape.head_dim);
  const int64_t tile_rows = wide ? kWideTileRows : kTileRows;
  const int64_t group = shape.heads / shape.kv_heads, segments = std::min(rows.n_segments, rows.rows);
  // Rows of a tile may have chunks of different lengths, up to those of the longest sequence.
  const int64_t lengths = std::min<int64_t>(
      chunk_shift(rows.max_positions, has_long_chunks(shape.heads, shape.v_in_k)) - kLeastChunkShift + 1,
      std::max(rows.max_segment_rows, 1));
  const int64_t tiles = lengths * std::min(segments * ((rows.max_segment_rows * group + tile_rows - 1) / tile_rows),
                                           rows.rows * group / tile_rows + segments);
  const int64_t blocks = most_blocks(gpu, shape, static_cast<int>(tile_rows));
  const int64_t chunks =
      shape.whole
          ? 1
          : std::min<int64_t>(chunk_end(rows.max_positions - 1, kLeastChunkShift) >> kLeastChunkShift, kMaxChunks);
  // With a chunk more, an item would be longer than a block's share of all positions. So beyond the first of each tile
  // there are fewer than two for each share, and up to two more where a tile's range begins and ends within chunks.
  const int64_t items = std::min(tiles * chunks, 3 * tiles + 2 * (blocks / shape.kv_heads + 1));
  const bool latents = shape.v_in_k > 0;
  const int64_t partials =
      std::min(tiles * chunks, (latents ? kLatentPartialsPerBlock : kPartialsPerBlock) * blocks / shape.kv_heads);
  WorkSize size;
  size.work.tile_rows = static_cast<int32_t>(tile_rows);
  size.work.max_tiles = static_cast<int32_t>(tiles);
  size.work.max_items = static_cast<int32_t>(items);
  size.work.max_partials = static_cast<int32_t>(chunks > 1 ? partials : 0);
  size.work.blocks = static_cast<int32_t>(std::min(blocks, items * shape.kv_heads));
  size.list_bytes =
      kCountsBytes + items * static_cast<int64_t>(sizeof(WorkItem)) +
      tiles * static_cast<int64_t>(sizeof(SplitTile) + sizeof(TileInfo) + shape.kv_heads * sizeof(TileProgress));
  size.partial_floats = partial_floats(size.work, shape.kv_heads, shape.value_dim());
  if (latents && chunks > 1) size.partial_floats += int64_t{size.work.blocks} * kTileRows * shape.value_dim();
  return size;
}

}  // namespace

AttentionWork plan_attention_cuda(Stream& stream, const Rows& rows, const RowView& view, const HeadShape& shape,
                                  Arena& scratch) {
  const AttentionBackend backend =
      resolve_attention_backend_cuda(stream.gpu(), shape.backend, shape.dtype, shape.head_dim, shape.v_in_k)
          .value();  // the caller has asked before
  if (backend == AttentionBackend::kPlain || rows.rows == 0 || rows.n_segments == 0) {
    AttentionWork none;
    none.backend = backend;
    return none;
  }
  WorkSize size = size_of(stream.gpu(), rows, shape, backend);
  AttentionWork work = size.work;
  work.backend = backend;
  work.lists = scratch.take(DType::kU8, {size.list_bytes}).data;
  if (size.partial_floats > 0) work.partials = scratch.take(DType::kF32, {size.partial_floats}).data;
  PlanArgs args;
  args.visible_begin = view.begin.as<int32_t>();
  args.visible_end = view.end.as<int32_t>();
  args.cache_positions = rows.cache_positions.data == nullptr ? nullptr : rows.cache_positions.as<int32_t>();
  args.segments = rows.segments;
  args.n_segments = rows.n_segments;
  args.rows = rows.rows;
  args.group = shape.heads / shape.kv_heads;
  args.kv_heads = shape.kv_heads;
  args.blocks = static_cast<int>(most_blocks(stream.gpu(), shape, work.tile_rows));
  args.tile_rows = work.tile_rows;
  args.whole = shape.whole;
  args.max_tiles = work.max_tiles;
  args.max_items = work.max_items;
  args.max_partials = work.max_partials;
  args.shared_tiles = work.max_tiles <= kSharedTiles;
  args.long_chunks = has_long_chunks(shape.heads, shape.v_in_k);
  args.evened = rows.max_segment_rows * args.group >= kLeastTiles * kTileRows;
  args.lists = work_lists(work, shape.kv_heads);
  cuda::Launch how;
  if (args.shared_tiles) how.shared_bytes = static_cast<size_t>(work.max_tiles) * sizeof(TileInfo);
  how.grid = dim3(1);
  how.block = dim3(kThreads);
  how.early = true;
  cuda::launch(plan_kernel, how, stream, args);
  return work;
}

}  // namespace volley::ops

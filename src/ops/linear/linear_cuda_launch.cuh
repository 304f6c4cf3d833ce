// Launches of the tiles of one width, for the files that instantiate them: each width is compiled in a file of its own,
// because together they take a minute.
#pragma once

#include "device/cuda/launch.h"
#include "ops/linear/linear_cuda_tiles.cuh"

namespace volley::ops {

using TileLaunch = void (*)(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);

// What linear_tiles_cuda chooses among, by the type of the operands and the tile's width in halves; tiles by rows
// apart.
void launch_tiles_2(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_tiles_3(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_tiles_4(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_tiles_6(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_row_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);

void launch_fp8_tiles_2(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_fp8_tiles_3(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_fp8_tiles_4(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_fp8_tiles_6(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);

// Tiles in pairs.
void launch_pair_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_fp8_pair_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);

// FP8 in blocks, tiles of any number of rows.
void launch_fp8_block_tiles_2(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_fp8_block_tiles_3(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_fp8_block_tiles_4(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_fp8_block_tiles_6(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_fp8_block_bias_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);

// Those that summarise rows.
void launch_summary_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_fp8_summary_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);

// Those that add a bias.
void launch_bias_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);
void launch_fp8_bias_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);

template <typename Shape>
void launch_tile(Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  cuda::Launch how;
  const int across = (args.halves + Shape::kHalves - 1) / Shape::kHalves;
  how.cluster = Shape::kShared ? 2 : static_cast<unsigned>(args.split);
  how.grid = dim3(static_cast<unsigned>((Shape::kShared ? (across + 1) / 2 : across) * args.row_tiles) * how.cluster);
  how.block = dim3(Shape::kThreads);
  how.shared_bytes = Shape::kSharedBytes;
  how.early = true;
  cuda::launch(linear_tiles_kernel<Shape>, how, stream, x_map, args);
}

// Rows of the tiles that have a kernel.
template <int... kRows>
struct TileRows {};

// The tile of kHalves and `rows` rows, one of kRows. Whether there is such a one.
template <DType kStorage, int kHalves, bool kShared, bool kSummarises, bool kBiased, bool kInBlocks, int... kRows>
bool launch_one_of(TileRows<kRows...>, int rows, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  return ((rows == kRows && (launch_tile<TileShape<kHalves, kRows, kShared, kStorage, kSummarises, kBiased, kInBlocks>>(
                                 stream, x_map, args),
                             true)) ||
          ...);
}

template <int kHalves, typename Alone, typename Shared, DType kStorage = DType::kBF16, bool kSummarises = false,
          bool kBiased = false, bool kInBlocks = false>
void launch_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  const bool launched = tile.shared ? launch_one_of<kStorage, kHalves, true, kSummarises, kBiased, kInBlocks>(
                                          Shared(), tile.rows, stream, x_map, args)
                                    : launch_one_of<kStorage, kHalves, false, kSummarises, kBiased, kInBlocks>(
                                          Alone(), tile.rows, stream, x_map, args);
  VOLLEY_CHECK_MSG(launched, "linear: a tile that has no kernel");
}

template <int kHalves, bool kBiased = false>
void launch_fp8_block_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  launch_tiles<kHalves, TileRows<8, 16, 32, 64, 96, 128>, TileRows<>, DType::kF8E4M3, false, kBiased, true>(
      tile, stream, x_map, args);
}

}  // namespace volley::ops

// Launches of the tiles of one width, for the files that instantiate them (launchers.cmake).
#pragma once

#include "ops/linear/cuda/linear_cuda_tiles.cuh"

namespace volley::ops {

using TileLaunch = void(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args);

// The kernels that linear_tiles_cuda chooses among, by the type of the operands and the tile's width in halves: tiles
// by rows and in pairs; for FP8 in blocks with any number of rows; those that summarise rows, and those that add a
// bias.
TileLaunch launch_tiles_2, launch_tiles_3, launch_tiles_4, launch_tiles_6, launch_row_tiles;
TileLaunch launch_fp8_tiles_2, launch_fp8_tiles_3, launch_fp8_tiles_4, launch_fp8_tiles_6;
TileLaunch launch_pair_tiles, launch_fp8_pair_tiles;
TileLaunch launch_fp8_block_tiles_2, launch_fp8_block_tiles_3, launch_fp8_block_tiles_4, launch_fp8_block_tiles_6;
TileLaunch launch_fp8_block_bias_tiles;
TileLaunch launch_summary_tiles, launch_fp8_summary_tiles;
TileLaunch launch_bias_tiles, launch_fp8_bias_tiles;

template <typename Shape>
void launch_tile(Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  cuda::launch(linear_tiles_kernel<Shape>, tile_launch<Shape>(args), stream, x_map, args);
}

// Rows of the tiles that have a kernel.
template <int... kRows>
struct TileRows {};
using FewRows = TileRows<8, 16, 32, 64, 96, 128>;
using ManyRows = TileRows<160, 192, 224, 256>;
using AnyRows = TileRows<8, 16, 32, 64, 96, 128, 160, 192, 224, 256>;

// Launches the tile of kHalves and `rows` rows, which is one of kRows. Returns whether that tile exists.
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

template <DType kStorage, int... kRows>
void launch_pairs(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  const bool launched =
      ((tile.rows == kRows &&
        (launch_tile<TileShape<2, kRows, false, kStorage, false, false, false, 2>>(stream, x_map, args), true)) ||
       ...);
  VOLLEY_CHECK_MSG(launched, "linear: a tile that has no kernel");
}

template <int kHalves, bool kBiased = false>
void launch_fp8_block_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  launch_tiles<kHalves, FewRows, TileRows<>, DType::kF8E4M3, false, kBiased, true>(tile, stream, x_map, args);
}

}  // namespace volley::ops

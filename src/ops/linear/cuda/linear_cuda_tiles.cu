#include "device/cuda/tensor_map.h"
#include "ops/linear/cuda/linear_cuda_launch.cuh"

namespace volley::ops {
namespace {

struct Tiles {
  int halves;
  TileLaunch* launch;
};
constexpr Tiles kBf16Tiles[] = {{2, launch_tiles_2}, {3, launch_tiles_3}, {4, launch_tiles_4}, {6, launch_tiles_6}};
constexpr Tiles kFp8Tiles[] = {
    {2, launch_fp8_tiles_2}, {3, launch_fp8_tiles_3}, {4, launch_fp8_tiles_4}, {6, launch_fp8_tiles_6}};
constexpr Tiles kFp8BlockTiles[] = {{2, launch_fp8_block_tiles_2},
                                    {3, launch_fp8_block_tiles_3},
                                    {4, launch_fp8_block_tiles_4},
                                    {6, launch_fp8_block_tiles_6}};

void launch(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args,
            std::span<const Tiles> choice) {
  for (const Tiles& tiles : choice) {
    if (tiles.halves == tile.halves) return tiles.launch(tile, stream, x_map, args);
  }
  VOLLEY_CHECK_MSG(false, "linear: a tile that has no kernel");
}

}  // namespace

void linear_tiles_cuda(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end,
                       const LinearCudaPlan& plan) {
  TileArgs args;
  args.weights = static_cast<const uint8_t*>(w.packed.data());
  args.y = y.data;
  args.halves = static_cast<int>(plan.halves);
  args.k_blocks = static_cast<int>(plan.k_blocks);
  args.rows = static_cast<int>(y.shape[0]);
  args.outputs = static_cast<int>(y.shape[1]);
  args.row_tiles = static_cast<int>(plan.row_tiles);
  args.split = plan.split;
  args.kind = end.kind;
  if (end.bias.data != nullptr) args.bias = end.bias.as<float>();
  args.y_bf16 = y.dtype == DType::kBF16;
  args.whole = end.summaries.whole;
  args.summary_weights = end.summaries.weights;
  args.sent = end.sent;
  const bool summarises = args.whole != nullptr, biased = args.bias != nullptr;
  VOLLEY_CHECK(!summarises || (plan.split == 1 && plan.tile.halves == kSummaryHalves));
  VOLLEY_CHECK(args.sent.turns == nullptr || plan.tile.rows <= kMostSentRows);
  VOLLEY_CHECK(!biased || (plan.tile.halves == kBiasHalves && !plan.tile.by_rows));
  if (stream.dry()) return stream.skip_launch();  // without a driver there are no tensor maps
  const int box_rows = plan.tile.rows / (plan.tile.shares_x() ? 2 : 1);
  if (w.format.code == DType::kF8E4M3) {
    VOLLEY_CHECK(!plan.tile.by_rows);
    args.weight_scales = linear_cuda_scales(w);
    args.row_scales = x.scales.as<float>();
    const CUtensorMap x_map = cuda::byte_matrix_map(x.values.data, args.rows, w.k, box_rows);
    if (w.format.in_blocks()) {
      VOLLEY_CHECK(!summarises && !plan.tile.shared && w.format == kFp8Blocks);
      args.row_scales_stride = static_cast<int>(x.scales.shape[1]);
      if (biased) return launch_fp8_block_bias_tiles(plan.tile, stream, x_map, args);
      return launch(plan.tile, stream, x_map, args, kFp8BlockTiles);
    }
    if (summarises) return launch_fp8_summary_tiles(plan.tile, stream, x_map, args);
    if (biased) return launch_fp8_bias_tiles(plan.tile, stream, x_map, args);
    if (plan.tile.in_pairs) return launch_fp8_pair_tiles(plan.tile, stream, x_map, args);
    return launch(plan.tile, stream, x_map, args, kFp8Tiles);
  }
  const CUtensorMap x_map = cuda::bf16_matrix_map(x.values.data, args.rows, w.k, box_rows);
  if (summarises) return launch_summary_tiles(plan.tile, stream, x_map, args);
  if (biased) return launch_bias_tiles(plan.tile, stream, x_map, args);
  if (plan.tile.by_rows) return launch_row_tiles(plan.tile, stream, x_map, args);
  if (plan.tile.in_pairs) return launch_pair_tiles(plan.tile, stream, x_map, args);
  launch(plan.tile, stream, x_map, args, kBf16Tiles);
}

}  // namespace volley::ops

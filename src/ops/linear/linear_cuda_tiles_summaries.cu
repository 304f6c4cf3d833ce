#include "ops/linear/linear_cuda_launch.cuh"

namespace volley::ops {

void launch_summary_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  launch_tiles<kSummaryHalves, TileRows<8, 16, 32, 64, 96, 128>, TileRows<160, 192, 224, 256>, DType::kBF16, true>(
      tile, stream, x_map, args);
}

}  // namespace volley::ops

#include "ops/linear/linear_cuda_launch.cuh"

namespace volley::ops {
namespace {

template <DType kStorage, int... kRows>
void launch_pairs(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  const bool launched =
      ((tile.rows == kRows &&
        (launch_tile<TileShape<2, kRows, false, kStorage, false, false, false, 2>>(stream, x_map, args), true)) ||
       ...);
  VOLLEY_CHECK_MSG(launched, "linear: a tile that has no kernel");
}

}  // namespace

void launch_pair_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  launch_pairs<DType::kBF16, 8, 16, 32, 64>(tile, stream, x_map, args);
}

void launch_fp8_pair_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  launch_pairs<DType::kF8E4M3, 8, 16, 32, 64>(tile, stream, x_map, args);
}

}  // namespace volley::ops

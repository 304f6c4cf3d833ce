#include "ops/linear/linear_cuda_launch.cuh"

namespace volley::ops {

void launch_fp8_tiles_3(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  launch_tiles<3, TileRows<8, 16, 32, 64, 96, 128>, TileRows<>, DType::kF8E4M3>(tile, stream, x_map, args);
}

}  // namespace volley::ops

#include "ops/linear/linear_cuda_launch.cuh"

namespace volley::ops {

void launch_bias_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  launch_tiles<kBiasHalves, TileRows<8, 16, 32, 64, 96, 128>, TileRows<>, DType::kBF16, false, true>(tile, stream,
                                                                                                     x_map, args);
}

void launch_fp8_bias_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  launch_tiles<kBiasHalves, TileRows<8, 16, 32, 64, 96, 128>, TileRows<>, DType::kF8E4M3, false, true>(tile, stream,
                                                                                                       x_map, args);
}

}  // namespace volley::ops

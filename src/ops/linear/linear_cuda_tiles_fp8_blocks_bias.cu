#include "ops/linear/linear_cuda_launch.cuh"

namespace volley::ops {

void launch_fp8_block_bias_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  launch_fp8_block_tiles<kBiasHalves, true>(tile, stream, x_map, args);
}

}  // namespace volley::ops

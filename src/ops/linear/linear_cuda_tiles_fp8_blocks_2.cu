#include "ops/linear/linear_cuda_launch.cuh"

namespace volley::ops {

void launch_fp8_block_tiles_2(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  launch_fp8_block_tiles<2>(tile, stream, x_map, args);
}

}  // namespace volley::ops

#include "ops/linear/linear_cuda_codes_tiles.cuh"

namespace volley::ops {

void launch_code_tiles_2(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const CodeTileArgs& args) {
  launch_code_tiles<2, false, 8, 16, 32, 64, 128>(tile, stream, x_map, args);
}

}  // namespace volley::ops

#include "ops/linear/cuda/linear_cuda_codes_tiles.cuh"

namespace volley::ops {

void launch_code_tiles_4(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const CodeTileArgs& args) {
  if (tile.shared) {
    VOLLEY_CHECK_EQ(tile.rows, 256);
    return launch_code_tile<CodeTileShape<4, 256, true>>(stream, x_map, args);
  }
  launch_code_tiles<4, false, false, 8, 16, 32, 64, 128, 256>(tile, stream, x_map, args);
}

}  // namespace volley::ops

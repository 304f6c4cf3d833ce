#include "ops/linear/linear_cuda_codes_tiles.cuh"

namespace volley::ops {

void launch_code_bias_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const CodeTileArgs& args) {
  launch_code_tiles<kBiasHalves, true, 16, 64, 128>(tile, stream, x_map, args);
}

}  // namespace volley::ops

#include "ops/attention/attention_hopper_cuda.cuh"

namespace volley::ops {

void attention_hopper_tiles(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args) {
  launch_hopper<false>(stream, head_dim, blocks, early, args);
}

}  // namespace volley::ops

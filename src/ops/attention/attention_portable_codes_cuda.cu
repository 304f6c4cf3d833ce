#include "ops/attention/attention_portable_cuda.cuh"

namespace volley::ops {

void attention_portable_code_tiles(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args) {
  launch_portable<true>(stream, head_dim, blocks, early, args);
}

}  // namespace volley::ops

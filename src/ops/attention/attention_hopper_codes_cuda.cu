#include "ops/attention/attention_hopper_cuda.cuh"

namespace volley::ops {

void attention_hopper_code_tiles(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args) {
  // Codes and what they are widened to take the room that tiles of bf16 do.
  static_assert(sizeof(HopperShape<64, true>::Shared) <= sizeof(HopperShape<64>::Shared));
  static_assert(sizeof(HopperShape<128, true>::Shared) <= sizeof(HopperShape<128>::Shared));
  static_assert(sizeof(HopperShape<256, true>::Shared) <= sizeof(HopperShape<256>::Shared));
  launch_hopper<true>(stream, head_dim, blocks, early, args);
}

}  // namespace volley::ops

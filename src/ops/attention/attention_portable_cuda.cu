#include "ops/attention/attention_portable_cuda.cuh"

namespace volley::ops {

bool attention_portable_fits(const GpuInfo& gpu, int head_dim) {
  constexpr int kStatic = 4 << 10;  // beside it, at most
  const int wanted = head_dim == 64    ? PortableShape<64>::kSharedBytes
                     : head_dim == 128 ? PortableShape<128>::kSharedBytes
                                       : PortableShape<256>::kSharedBytes;
  return wanted + (head_dim > 128 ? kStatic : 0) <= gpu.block_shared_bytes;
}

void attention_portable_tiles(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args) {
  launch_portable<false>(stream, head_dim, blocks, early, args);
}

}  // namespace volley::ops

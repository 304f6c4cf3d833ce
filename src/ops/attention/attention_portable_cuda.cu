#include "ops/attention/attention_portable_cuda.cuh"

namespace volley::ops {

bool attention_portable_fits(const GpuInfo& gpu, int head_dim) {
  constexpr int kStatic = 4 << 10;  // beside it, at most
  const int wanted =
      with_head_dim(head_dim, [](auto dim) { return PortableShape<decltype(dim)::value>::kSharedBytes; });
  return wanted + (head_dim > 128 ? kStatic : 0) <= gpu.block_shared_bytes;
}

}  // namespace volley::ops

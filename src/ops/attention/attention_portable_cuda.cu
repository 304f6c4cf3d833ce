#include "ops/attention/attention_portable_cuda.cuh"

#include "device/cuda/launch.h"

namespace volley::ops {
namespace {

template <typename Shape>
void run(Stream& stream, int blocks, bool early, const TilesArgs& args) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(blocks));
  how.block = dim3(Shape::kThreads);
  how.shared_bytes = Shape::kSharedBytes;
  how.early = early;
  cuda::launch(attention_portable_kernel<Shape>, how, stream, args);
}

}  // namespace

bool attention_portable_fits(const GpuInfo& gpu, int head_dim) {
  constexpr int kStatic = 4 << 10;  // beside it, at most
  const int wanted = head_dim == 64    ? PortableShape<64>::kSharedBytes
                     : head_dim == 128 ? PortableShape<128>::kSharedBytes
                                       : PortableShape<256>::kSharedBytes;
  return wanted + (head_dim > 128 ? kStatic : 0) <= gpu.block_shared_bytes;
}

void attention_portable_tiles(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args) {
  switch (head_dim) {
    case 64:
      return run<PortableShape<64>>(stream, blocks, early, args);
    case 128:
      return run<PortableShape<128>>(stream, blocks, early, args);
    default:
      VOLLEY_CHECK_EQ(head_dim, 256);
      return run<PortableShape<256>>(stream, blocks, early, args);
  }
}

}  // namespace volley::ops

#include "ops/attention/attention_hopper_cuda.cuh"

#include "device/cuda/launch.h"

namespace volley::ops {
namespace {

template <typename Shape>
void run(Stream& stream, int blocks, bool early, const TilesArgs& args) {
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(blocks));
  how.block = dim3(Shape::kThreads);
  how.shared_bytes = sizeof(typename Shape::Shared);
  how.early = early;
  cuda::launch(attention_hopper_kernel<Shape>, how, stream, args);
  if (stream.dry()) return;
}

}  // namespace

void attention_hopper_tiles(Stream& stream, int head_dim, int blocks, bool early, const TilesArgs& args) {
  switch (head_dim) {
    case 64:
      return run<HopperShape<64>>(stream, blocks, early, args);
    case 128:
      return run<HopperShape<128>>(stream, blocks, early, args);
    default:
      VOLLEY_CHECK_EQ(head_dim, 256);
      return run<HopperShape<256>>(stream, blocks, early, args);
  }
}

}  // namespace volley::ops

#include "ops/linear/linear_cuda_tiles.cuh"

#include "device/cuda/launch.h"
#include "device/cuda/tensor_map.h"

namespace volley::ops {
namespace {

template <int kHalves, int kRows>
void launch_tiles(Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  using Shape = TileShape<kHalves, kRows>;
  cuda::Launch how;
  const int tiles = (args.halves + kHalves - 1) / kHalves * args.row_tiles;
  how.grid = dim3(static_cast<unsigned>(tiles * args.split));
  how.block = dim3(Shape::kThreads);
  how.shared_bytes = Shape::kSharedBytes;
  how.cluster = static_cast<unsigned>(args.split);
  how.early = true;
  cuda::launch(linear_tiles_kernel<Shape>, how, stream, x_map, args);
}

template <int kHalves>
void launch_rows(int tile_rows, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  switch (tile_rows) {
    case 8:
      return launch_tiles<kHalves, 8>(stream, x_map, args);
    case 16:
      return launch_tiles<kHalves, 16>(stream, x_map, args);
    case 32:
      return launch_tiles<kHalves, 32>(stream, x_map, args);
    case 64:
      return launch_tiles<kHalves, 64>(stream, x_map, args);
    case 128:
      return launch_tiles<kHalves, 128>(stream, x_map, args);
    case 256:
      if constexpr (kHalves <= 4) return launch_tiles<kHalves, 256>(stream, x_map, args);
  }
  VOLLEY_CHECK_MSG(false, "linear: a tile that has no kernel");
}

}  // namespace

void linear_tiles_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, Epilogue epilogue) {
  const LinearCudaPlan plan = LinearCudaPlan::make(w.n, w.k, w.layout, y.shape[0]);
  TileArgs args;
  args.weights = static_cast<const uint8_t*>(w.packed.data());
  args.y = y.data;
  args.halves = static_cast<int>(plan.halves);
  args.k_blocks = static_cast<int>(plan.k_blocks);
  args.rows = static_cast<int>(y.shape[0]);
  args.outputs = static_cast<int>(y.shape[1]);
  args.row_tiles = static_cast<int>(plan.row_tiles);
  args.split = plan.split;
  args.epilogue = epilogue;
  args.y_bf16 = y.dtype == DType::kBF16;
  const CUtensorMap x_map = cuda::bf16_matrix_map(x.data, args.rows, w.k, plan.tile.rows);
  switch (plan.tile.halves) {
    case 2:
      return launch_rows<2>(plan.tile.rows, stream, x_map, args);
    case 3:
      return launch_rows<3>(plan.tile.rows, stream, x_map, args);
    case 4:
      return launch_rows<4>(plan.tile.rows, stream, x_map, args);
    case 6:
      return launch_rows<6>(plan.tile.rows, stream, x_map, args);
  }
  VOLLEY_CHECK_MSG(false, "linear: a tile that has no kernel");
}

}  // namespace volley::ops

#include "ops/linear/linear_cuda_tiles.cuh"

#include "device/cuda/launch.h"
#include "device/cuda/tensor_map.h"

namespace volley::ops {
namespace {

template <int kPanels, int kRows>
void launch_tiles(Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  using Shape = TileShape<kPanels, kRows>;
  cuda::Launch how;
  const int64_t tiles = (args.panels + kPanels - 1) / kPanels * args.row_tiles;
  how.grid = dim3(static_cast<unsigned>(tiles * args.split));
  how.block = dim3(Shape::kThreads);
  how.shared_bytes = Shape::kSharedBytes;
  how.early = true;
  cuda::launch(linear_tiles_kernel<Shape>, how, stream, x_map, args);
}

template <int kPanels>
void launch_rows(int tile_rows, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  switch (tile_rows) {
    case 8:
      return launch_tiles<kPanels, 8>(stream, x_map, args);
    case 16:
      return launch_tiles<kPanels, 16>(stream, x_map, args);
    case 32:
      return launch_tiles<kPanels, 32>(stream, x_map, args);
    case 64:
      return launch_tiles<kPanels, 64>(stream, x_map, args);
    case 128:
      return launch_tiles<kPanels, 128>(stream, x_map, args);
    default:
      VOLLEY_CHECK_MSG(false, "linear: a tile that has no kernel");
  }
}

}  // namespace

void linear_tiles_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, Epilogue epilogue,
                       Arena& scratch) {
  const LinearCudaPlan plan = LinearCudaPlan::make(w.n, w.k, w.layout, y.shape[0]);
  VOLLEY_CHECK_LE(plan.row_tiles, kMaxRowTiles);
  TileArgs args;
  args.weights = static_cast<const uint8_t*>(w.packed.data());
  args.y = y.data;
  args.panels = plan.panels;
  args.k_blocks = static_cast<int>(plan.k_blocks);
  args.rows = static_cast<int>(y.shape[0]);
  args.outputs = static_cast<int>(y.shape[1]);
  args.split = plan.split;
  args.epilogue = epilogue;
  args.y_bf16 = y.dtype == DType::kBF16;
  args.row_tiles = static_cast<int>(plan.row_tiles);
  ArenaScope scope(scratch);
  if (plan.split > 1) {
    args.partial = scratch.take(DType::kF32, {plan.partial_floats()}).as<float>();
    args.arrivals = reinterpret_cast<unsigned*>(static_cast<uint8_t*>(w.packed.data()) +
                                                linear_cuda_matrix_bytes(w.n, w.k, w.storage, w.layout));
  }
  const CUtensorMap x_map = cuda::bf16_matrix_map(x.data, args.rows, w.k, plan.tile.rows);
  if (plan.tile.rows == 256) {
    VOLLEY_CHECK_EQ(plan.tile.panels, 2);
    launch_tiles<2, 256>(stream, x_map, args);
  } else if (plan.tile.panels == 2) {
    launch_rows<2>(plan.tile.rows, stream, x_map, args);
  } else {
    launch_rows<3>(plan.tile.rows, stream, x_map, args);
  }
}

}  // namespace volley::ops

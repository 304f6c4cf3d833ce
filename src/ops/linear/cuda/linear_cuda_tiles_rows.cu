#include "ops/linear/cuda/linear_cuda_launch.cuh"
#include "ops/linear/cuda/linear_cuda_row_tiles.cuh"

namespace volley::ops {
namespace {

template <typename Shape>
void launch_row_tile(Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  const int across = (args.halves + Shape::kHalves - 1) / Shape::kHalves;
  const int down = Shape::kShared ? (args.row_tiles + 1) / 2 : args.row_tiles;
  cuda::Launch how;
  how.cluster = 2;
  how.grid = dim3(static_cast<unsigned>(across * down) * how.cluster);
  how.block = dim3(Shape::kThreads);
  how.shared_bytes = Shape::kSharedBytes;
  how.early = true;
  cuda::launch(linear_row_tiles_kernel<Shape>, how, stream, x_map, args);
}

}  // namespace

void launch_row_tiles(LinearTile tile, Stream& stream, const CUtensorMap& x_map, const TileArgs& args) {
  if (tile == LinearTile{3, 128, false, true}) return launch_row_tile<RowShape<3, 128, false>>(stream, x_map, args);
  if (tile == LinearTile{4, 128, false, true}) return launch_row_tile<RowShape<4, 128, false>>(stream, x_map, args);
  if (tile == LinearTile{6, 128, true, true}) return launch_row_tile<RowShape<6, 128, true>>(stream, x_map, args);
  VOLLEY_CHECK_MSG(false, "linear: a tile that has no kernel");
}

}  // namespace volley::ops

#include "device/cuda/tensor_map.h"
#include "ops/linear/linear_cuda_launch.cuh"

namespace volley::ops {

void linear_tiles_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, Epilogue epilogue,
                       const LinearCudaPlan& plan) {
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
  const CUtensorMap x_map = cuda::bf16_matrix_map(x.data, args.rows, w.k, plan.tile.rows / (plan.tile.shared ? 2 : 1));
  switch (plan.tile.halves) {
    case 2:
      return launch_tiles_2(plan.tile, stream, x_map, args);
    case 3:
      return launch_tiles_3(plan.tile, stream, x_map, args);
    case 4:
      return launch_tiles_4(plan.tile, stream, x_map, args);
    case 6:
      return launch_tiles_6(plan.tile, stream, x_map, args);
  }
  VOLLEY_CHECK_MSG(false, "linear: a tile that has no kernel");
}

}  // namespace volley::ops

// Codes: the choice of kernel, the launch of tiles, and the plain kernel on them.
#include "device/cuda/tensor_map.h"
#include "ops/linear/cuda/linear_cuda_codes_tiles.cuh"
#include "ops/linear/cuda/linear_cuda_plain.cuh"

namespace volley::ops {
namespace {

struct Codes {
  const uint8_t* packed;
  CodeKind kind;

  __device__ float value(int64_t row, int64_t k, int64_t columns, DType x_dtype) const {
    const float w = widened(packed, kind, row, k, columns);
    return x_dtype == DType::kBF16 ? __bfloat162float(__float2bfloat16_rn(w)) : w;
  }
};

CodeTileLaunch* launch_of(const LinearTile& tile, bool biased, bool wide) {
  if (biased) return wide ? launch_wide_code_bias_tiles : launch_code_bias_tiles;
  if (wide) return tile.halves == 2 ? launch_wide_code_tiles_2 : launch_wide_code_tiles_4;
  switch (tile.halves) {
    case 2:
      return launch_code_tiles_2;
    case 3:
      return launch_code_tiles_3;
    case 4:
      return launch_code_tiles_4;
    case 6:
      return launch_code_tiles_6;
  }
  VOLLEY_CHECK_MSG(false, "linear: a tile that has no kernel");
}

}  // namespace

void linear_codes_plain_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end) {
  const Codes codes{static_cast<const uint8_t*>(w.packed.data()), CodeKind(w.format)};
  launch_plain(stream, plain_args(codes, w, x, y, end));
}

void linear_codes_tiles_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end,
                             const LinearCudaPlan& plan) {
  CodeTileArgs args;
  args.kind = CodeKind(w.format);
  args.tile.weights = static_cast<const uint8_t*>(w.packed.data());
  args.tile.y = y.data;
  args.tile.halves = static_cast<int>(plan.halves);
  args.tile.k_blocks = static_cast<int>(plan.k_blocks);
  args.tile.rows = static_cast<int>(y.shape[0]);
  args.tile.outputs = static_cast<int>(y.shape[1]);
  args.tile.row_tiles = static_cast<int>(plan.row_tiles);
  args.tile.split = plan.split;
  args.tile.kind = end.kind;
  if (end.bias.data != nullptr) args.tile.bias = end.bias.as<float>();
  args.tile.y_bf16 = y.dtype == DType::kBF16;
  const bool biased = args.tile.bias != nullptr;
  VOLLEY_CHECK(!biased || plan.tile.halves == kBiasHalves);
  if (stream.dry()) return stream.skip_launch();  // without a driver there are no tensor maps
  const int box_rows = plan.tile.rows / (plan.tile.shared ? 2 : 1);
  const CUtensorMap x_map = cuda::bf16_matrix_map(x.data, args.tile.rows, w.k, box_rows);
  CodeTileLaunch* const launch = launch_of(plan.tile, biased, args.kind.bits > 4);
  launch(plan.tile, stream, x_map, args);
}

void linear_codes_cuda(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end) {
  LinearWeight as_bf16;  // the equivalent bf16 weight
  as_bf16.n = w.n;
  as_bf16.k = w.k;
  as_bf16.layout = w.layout;
  as_bf16.portable = w.portable;
  as_bf16.plain = w.plain;
  switch (linear_cuda_kernel(stream.gpu(), as_bf16, x.values.dtype)) {
    case LinearKernel::kTiles:
      return linear_codes_tiles_cuda(stream, w, x.values, y, end,
                                     linear_codes_plan(w, y.shape[0], end.bias.data != nullptr));
    case LinearKernel::kPortable:
      return linear_codes_portable_cuda(stream, w, x.values, y, end);
    case LinearKernel::kPlain:
      return linear_codes_plain_cuda(stream, w, x.values, y, end);
  }
}

}  // namespace volley::ops

// 4-bit codes: the choice of kernel, the launch of tiles, and the plain kernel: any rows and shape, on any GPU.
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/tensor_map.h"
#include "ops/linear/linear_cuda_codes_tiles.cuh"

namespace volley::ops {
namespace {

constexpr int kWarpRows = 4;  // rows of x that share one reading of a weight in the plain kernel

struct PlainArgs {
  const uint8_t* packed;
  CodeKind kind;
  LinearLayout layout;
  int64_t n, k;
  const void* x;
  DType x_dtype;
  void* y;
  DType y_dtype;
  int64_t rows, outputs;
  EndKind end;
  const float* bias;  // may be null
};

// As the plain kernel of bf16 adds: lane l takes k = l, l + 32, …; lanes are added as a tree.
__device__ void warp_sums(const PlainArgs& args, int64_t weight_row, int64_t row, int rows, float (&sums)[kWarpRows]) {
  for (float& s : sums) s = 0;
  for (int64_t i = threadIdx.x % 32; i < args.k; i += 32) {
    float w = widened(args.packed, args.kind, weight_row, i, args.k);
    if (args.x_dtype == DType::kBF16) w = __bfloat162float(__float2bfloat16_rn(w));
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      if (r < rows) sums[r] = fmaf(cuda::load_float(args.x, args.x_dtype, (row + r) * args.k + i), w, sums[r]);
    }
  }
#pragma unroll
  for (float& s : sums) {
    for (int lane = 16; lane > 0; lane /= 2) s += __shfl_xor_sync(0xffffffff, s, lane);
  }
}

// A warp per output and kWarpRows rows.
__global__ void plain_codes_kernel(const PlainArgs args) {
  const int64_t output = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kWarpRows;
  if (output >= args.outputs) return;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kWarpRows), args.rows - row));
  float sums[kWarpRows];
  warp_sums(args, packed_row(output, args.n, args.layout), row, rows, sums);
  if (args.end == EndKind::kSwiGlu) {
    float up[kWarpRows];
    warp_sums(args, packed_row(args.n / 2 + output, args.n, args.layout), row, rows, up);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) sums[r] = sums[r] / (1.0f + expf(-sums[r])) * up[r];
  }
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    if (threadIdx.x % 32 != r || r >= rows) continue;
    if (args.bias != nullptr) sums[r] += args.bias[output];
    const int64_t at = (row + r) * args.outputs + output;
    if (args.end == EndKind::kAdd) sums[r] = static_cast<const float*>(args.y)[at] + sums[r];
    cuda::store_float(args.y, args.y_dtype, at, sums[r]);
  }
}

CodeTileLaunch launch_of(const LinearTile& tile) {
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
  const float* bias = end.bias.data == nullptr ? nullptr : end.bias.as<float>();
  const PlainArgs args{static_cast<const uint8_t*>(w.packed.data()),
                       CodeKind(w.format),
                       w.layout,
                       w.n,
                       w.k,
                       x.data,
                       x.dtype,
                       y.data,
                       y.dtype,
                       y.shape[0],
                       y.shape[1],
                       end.kind,
                       bias};
  cuda::Launch how;
  how.block = dim3(256);
  how.grid = dim3(static_cast<unsigned>((args.outputs + 7) / 8),
                  static_cast<unsigned>((args.rows + kWarpRows - 1) / kWarpRows));
  cuda::launch(plain_codes_kernel, how, stream, args);
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
  const CodeTileLaunch launch = biased ? launch_code_bias_tiles : launch_of(plan.tile);
  launch(plan.tile, stream, x_map, args);
}

void linear_codes_cuda(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end) {
  LinearWeight as_bf16;  // what it is a product with
  as_bf16.n = w.n;
  as_bf16.k = w.k;
  as_bf16.layout = w.layout;
  as_bf16.portable = w.portable;
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

// What the parts of the CUDA linear operation share: packed layout, plan and entry points. Private to this folder.
//
// Packed layout: panels of 64 rows of weights; bf16: a panel is a run of blocks [64 rows][64 k] of 8 KB, k ascending,
// padded with zeros, each swizzled as the matrix unit reads it from shared memory (device/cuda/products.cuh), so that
// a plain contiguous copy brings it there. fp32: a panel is [64][k], row-major. kGateUp: the rows of a panel are 32
// gates, then the 32 ups of the same outputs.
//
// Order of a sum (bf16 x bf16): k is cut into `split` slices of whole blocks; within a slice the matrix unit adds along
// k, 16 at a time, into one fp32 accumulator; slices are added in ascending order. Tile sizes do not enter. The split
// depends on the weight's shape alone. Everything else goes to a plain kernel with an order of its own, also fixed by
// the shape.
#pragma once

#include <cstdint>

#include "ops/linear/linear.h"

namespace volley::ops {

inline constexpr int64_t kPanelRows = 64;
inline constexpr int64_t kBlockK = 64;
inline constexpr int64_t kBlockBytes = kPanelRows * kBlockK * 2;

// Multiprocessors that the plan fills. A constant: the split is arithmetic, and must not change with the GPU.
inline constexpr int64_t kPlanProcessors = 132;

inline int64_t linear_cuda_panels(int64_t n, LinearLayout layout) {
  return layout == LinearLayout::kGateUp ? (n / 2 + 31) / 32 : (n + kPanelRows - 1) / kPanelRows;
}
inline int64_t linear_cuda_k_blocks(int64_t k) {
  return (k + kBlockK - 1) / kBlockK;
}
// Behind the matrix lie the counters by which the blocks of a split find each other, one a tile, zero between calls:
// calls with the same weight must be on one stream.
int64_t linear_cuda_matrix_bytes(int64_t n, int64_t k, DType storage, LinearLayout layout);
int64_t linear_cuda_packed_bytes(int64_t n, int64_t k, DType storage, LinearLayout layout);

// Row of the packed matrix that holds row `row` of the stacked parts.
constexpr int64_t packed_row(int64_t row, int64_t n, LinearLayout layout) {
  if (layout == LinearLayout::kPlain) return row;
  const int64_t half = n / 2, output = row < half ? row : row - half;
  return output / 32 * kPanelRows + output % 32 + (row < half ? 0 : 32);
}

// The part of the output that a group of `split` blocks computes: 64 * panels outputs for `rows` rows.
struct LinearTile {
  int panels = 0;
  int rows = 0;
};

// How a call is cut into blocks. The split is a function of the weight's shape; the rest affects speed only.
struct LinearCudaPlan {
  int64_t panels = 0, k_blocks = 0;
  int split = 1;  // 1, 2 or 4 slices of k: as many as it takes to give all multiprocessors work
  LinearTile tile;
  int64_t row_tiles = 0;

  static LinearCudaPlan make(int64_t n, int64_t k, LinearLayout layout, int64_t rows);
  int64_t tiles() const { return (panels + tile.panels - 1) / tile.panels * row_tiles; }
  int64_t partial_floats() const { return split == 1 ? 0 : tiles() * split * tile.rows * tile.panels * kPanelRows; }
};

inline constexpr int64_t kMaxRowTiles = 16;
inline constexpr int64_t kMaxTileRows = 2048;  // rows that one launch takes: 16 tiles of 128

// Whether the matrix-unit kernels take this call; `major` is the device's compute capability.
bool linear_cuda_uses_tiles(int major, const LinearWeight& w, DType x);

int64_t linear_scratch_bytes_cuda(int64_t n, int64_t k, LinearLayout layout, int64_t rows);
Result<LinearWeight> pack_linear_cuda(Device& device, std::span<const WeightRows> parts, int64_t k, DType storage,
                                      LinearLayout layout);
void linear_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, Epilogue epilogue, Arena& scratch);

// The two kernels. linear_tiles_cuda REQUIRES linear_cuda_uses_tiles and at most kMaxTileRows rows.
void linear_tiles_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, Epilogue epilogue,
                       Arena& scratch);
void linear_plain_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, Epilogue epilogue);

}  // namespace volley::ops

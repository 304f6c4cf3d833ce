// Shared by the parts of the CUDA linear operation: packed layout, plan and entry points. Private to this folder.
//
// Packed layout: panels of 64 rows of weights; bf16: a panel is a run of blocks [64 rows][64 k] of 8 KB, k ascending,
// padded with zeros, each swizzled as the matrix unit reads it from shared memory (device/cuda/products.cuh), so that
// a plain contiguous copy brings it there. FP8: the same with blocks [64 rows][128 k], and behind the last panel the
// scales of all packed rows, or of kFp8Blocks [32 packed rows][128 k]. fp32: a panel is [64][k], row-major. kGateUp:
// the rows of a panel are 32 gates, then the 32 ups of the same outputs.
//
// Order of a sum (bf16 x bf16, FP8 x FP8): k is cut into one or two slices of whole blocks, which the weight's shape
// decides; within a slice the matrix unit adds along k, 32 bytes at a time, into one fp32 accumulator; then first slice
// plus second; of FP8 times the weight's scale, times x's. Of kFp8Blocks the matrix unit adds 128 along k, and an fp32
// sum takes each of these with its scales (linear_cuda_blocks.cuh). Tile sizes do not matter. Everything else uses a
// plain kernel with an order of its own, also fixed by the shape.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/linear/linear.h"

namespace volley::ops {

inline constexpr int64_t kPanelRows = 64;
inline constexpr int64_t kBlockK = 64;  // bf16
inline constexpr int64_t kBlockBytes = kPanelRows * kBlockK * 2;
constexpr int64_t linear_cuda_block_k(DType storage) {
  return storage == DType::kF8E4M3 ? 128 : kBlockK;
}
inline constexpr int kHalfBytes = kBlockBytes / 2;  // 32 rows: what tiles are made of

// Multiprocessors that the plan fills. A constant, because the split decides the arithmetic and must not change with
// the GPU.
inline constexpr int64_t kPlanProcessors = 132;

inline int64_t linear_cuda_panels(int64_t n, LinearLayout layout) {
  return layout == LinearLayout::kGateUp ? (n / 2 + 31) / 32 : (n + kPanelRows - 1) / kPanelRows;
}
inline int64_t linear_cuda_k_blocks(int64_t k, DType storage = DType::kBF16) {
  return (k + linear_cuda_block_k(storage) - 1) / linear_cuda_block_k(storage);
}
int64_t linear_cuda_packed_bytes(int64_t n, int64_t k, const WeightFormat& format, LinearLayout layout);
// The scales, in device memory. REQUIRES: w.format.code is kF8E4M3.
float* linear_cuda_scales(const LinearWeight& w);

// Row of the packed matrix that holds row `row` of the stacked parts.
constexpr int64_t packed_row(int64_t row, int64_t n, LinearLayout layout) {
  if (layout == LinearLayout::kPlain) return row;
  const int64_t half = n / 2, output = row < half ? row : row - half;
  return output / 32 * kPanelRows + output % 32 + (row < half ? 0 : 32);
}

// A tile: 32 * halves weight rows for `rows` rows of x. By one block; or, where k is split, by a cluster of two with a
// slice each; or, shared, by one block of a pair that takes all of k and copies half of the rows of x, which both need,
// to both: that halves the bytes of x that a multiprocessor must get from the cache. by_rows: with the rows of x as the
// M side of the matrix unit (linear_cuda_row_tiles.cuh), where k is split, bf16; if shared, a block takes one slice
// after the other, and both need the same weights. in_pairs: two blocks share a multiprocessor. Where there are more
// blocks than multiprocessors, one reads while the other finishes its sums.
struct LinearTile {
  int halves = 0;
  int rows = 0;
  bool shared = false;
  bool by_rows = false;
  bool in_pairs = false;

  bool shares_x() const { return shared && !by_rows; }
  bool operator==(const LinearTile&) const = default;
};

// Width of the tiles that summarise rows: the same that weights with many outputs get anyway.
inline constexpr int kSummaryHalves = 6;
// Width of the tiles that add a bias: weights with one have few outputs.
inline constexpr int kBiasHalves = 2;

// How a call is divided into blocks. The split is a function of the weight's shape; everything else affects speed only.
struct LinearCudaPlan {
  int64_t halves = 0, k_blocks = 0;  // size of the whole weight
  int split = 1;                     // 1 or 2 slices of k: two if that gives more multiprocessors work
  LinearTile tile;
  int64_t row_tiles = 0;

  // split_as: LinearWeight's
  static LinearCudaPlan make(int64_t n, int64_t k, LinearLayout layout, int64_t rows,
                             const WeightFormat& format = DType::kBF16, int64_t split_as = 0);
  static LinearCudaPlan make(const LinearWeight& w, int64_t rows);
  // The same with a tile that summarises rows. REQUIRES: linear_cuda_summarises().
  static LinearCudaPlan make_summarising(const LinearWeight& w, int64_t rows);
  // The same with a tile that adds a bias.
  static LinearCudaPlan make_biased(const LinearWeight& w, int64_t rows);
  // All tiles that have a kernel for the layout, split and format.
  static std::vector<LinearTile> tiles(LinearLayout layout, int split, const WeightFormat& format = DType::kBF16);
  static std::vector<LinearTile> summary_tiles();
  static std::vector<LinearTile> bias_tiles();
};

// The same for the portable kernel: the split is the same, and with it every bit.
struct LinearPortablePlan {
  int split = 1;
  int warps = 4;  // warps of a slice, 16 weight rows each
  int tile_rows = 0;
  int64_t row_tiles = 0;

  static LinearPortablePlan make(int64_t n, int64_t k, LinearLayout layout, int64_t rows, int64_t split_as = 0);
};

enum class LinearKernel {
  kPlain,     // any GPU, any operands
  kPortable,  // sm_80 and later, bf16 (linear_cuda_portable.cu)
  kTiles,     // sm_90a, bf16 or FP8 (linear_cuda_tiles.cuh)
};

// Whether FP8 weights have a kernel on such a GPU.
bool linear_cuda_takes_fp8(const GpuInfo& gpu);

// Which kernel takes this call. kTiles and kPortable give the same bits.
// REQUIRES: linear_cuda_takes_fp8() for FP8 weights.
LinearKernel linear_cuda_kernel(const GpuInfo& gpu, const LinearWeight& w, DType x);
// Whether such a call can summarise rows: by tiles, with k in one slice.
bool linear_cuda_summarises(const GpuInfo& gpu, const LinearWeight& w, DType x);
// linear_sends()
bool linear_cuda_sends(const GpuInfo& gpu, const LinearWeight& w, DType x, int64_t rows);

Result<LinearWeight> pack_linear_cuda(Device& device, std::span<const WeightRows> parts, int64_t k,
                                      const WeightFormat& format, LinearLayout layout);
// Rows [first_row, first_row + rows) of an FP8 weight from `raw`: [rows, k] of dtype, on the device.
void pack_fp8_rows_cuda(Stream& stream, const void* raw, DType dtype, int64_t first_row, int64_t rows,
                        const LinearWeight& w);
// The same of rows that are e4m3 already: raw has the fp32 scales of `rows` rows, of each one or kFp8Blocks' groups,
// then the codes.
void store_fp8_rows_cuda(Stream& stream, const void* raw, int64_t first_row, int64_t rows, const LinearWeight& w);
// Rows of a part to `raw`, on the device: plain values, of WeightRows::values as fp32; or codes as above, with
// so many scales a row.
void upload_rows(Device& device, const WeightRows& part, int64_t first, int64_t rows, int64_t k, void* raw,
                 int64_t scales = 1);
void linear_cuda(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end);

// The kernels. linear_tiles_cuda and linear_portable_cuda REQUIRE what linear_cuda_kernel asks for them; the first, a
// plan for this weight and these rows, whose tile may be any that exists (that summarises or adds a bias, if the end
// says so).
void linear_tiles_cuda(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end,
                       const LinearCudaPlan& plan);
void linear_portable_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end);
void linear_plain_cuda(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, const End& end);

}  // namespace volley::ops

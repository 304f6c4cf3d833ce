// Shared by the parts of the CUDA grouped products: packed layout, the choice of kernel, entry points. Private to this
// folder.
//
// Packed layout, for each expert: bf16: panels of 64 rows of weights, a panel a run of blocks [64 rows][64 k] as those
// of ops/linear (linear_cuda.h), padded with zeros; fp32: [n][k]. A thread of the matrix unit holds sums of rows r and
// r + 8, so weight rows are placed in a panel such that these are the gate and up of one output (a panel is 32
// outputs), or two neighbouring outputs.
//
// Order of a sum (bf16 x bf16): along the whole of k, 16 at a time, into one fp32 accumulator. Tile sizes and other
// rows do not matter. Everything else uses a plain kernel with an order of its own.
#pragma once

#include "ops/grouped_linear/experts.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/cuda/linear_cuda.h"

namespace volley::ops {

constexpr int64_t grouped_cuda_panels(int64_t n, LinearLayout layout) {
  return layout == LinearLayout::kGateUp ? (n / 2 + 31) / 32 : (n + kPanelRows - 1) / kPanelRows;
}
constexpr int64_t grouped_cuda_expert_bytes(int64_t n, int64_t k, DType storage, LinearLayout layout) {
  if (storage == DType::kF32) return n * k * 4;
  return grouped_cuda_panels(n, layout) * ((k + kBlockK - 1) / kBlockK) * kBlockBytes;
}

// Row of an expert's bf16 panels that holds row `row` of part `part` (0; or 0 gate, 1 up).
constexpr int64_t grouped_cuda_row(int64_t row, int part, LinearLayout layout) {
  if (layout == LinearLayout::kGateUp) {
    const int64_t output = row % 32;
    return row / 32 * kPanelRows + output / 8 * 16 + output % 8 + part * 8;
  }
  const int64_t output = row % kPanelRows, pair = output / 2;
  return row / kPanelRows * kPanelRows + pair / 8 * 16 + pair % 8 + output % 2 * 8;
}

// The most rows of x that a tile of the sm_90a kernels takes. Further rows of an expert are further tiles, which read
// its weights again.
enum class GroupedTileSize { kFewRows = 64, kManyRows = 256 };
// The mean number of rows of an expert: all entries over Routing::spread. Chooses tiles, and so affects no result.
GroupedTileSize grouped_tile_size(int64_t entries, int64_t experts);

// Which kernel takes this call, as in linear(). kTiles and kPortable give the same bits.
LinearKernel grouped_cuda_kernel(const GpuInfo& gpu, const ExpertWeights& w, DType x);

// A call in the form that kernels take.
struct GroupedArgs {
  const uint8_t* weights = nullptr;  // packed
  const uint8_t* x = nullptr;
  void* y = nullptr;
  const int32_t* offsets = nullptr;  // Routing::offsets; with each_rows no routing is there
  const int32_t* entries = nullptr;
  const int32_t* chosen = nullptr;  // [entries]: Routing::experts
  int64_t expert_bytes = 0;
  int experts = 0, top_k = 0, entry_count = 0;
  int likely = 0;  // Routing::likely()
  int spread = 0;  // Routing::spread
  int n = 0, k = 0, k_blocks = 0, panels = 0, outputs = 0;
  int x_step = 0, y_step = 0;  // elements from a row of x, or of y, to the next
  // > 0: every expert gets so many rows; entry row * experts + expert is the row of x and of y.
  int each_rows = 0;
  GroupedRows rows = GroupedRows::kIn;
  LinearLayout layout = LinearLayout::kPlain;
  DType storage = DType::kBF16, x_dtype = DType::kBF16, y_dtype = DType::kF32;
  bool routing_ready = false;
  const float* bias = nullptr;  // [experts][n]; or null
  EndKind end = EndKind::kStore;
  SwiGluClamp clamp;  // kClampedSwiGlu
};

GroupedArgs grouped_args(const ExpertWeights& w, TensorView x, const Routing& routing, TensorView y,
                         const GroupedCall& call, const End& end);

// The arguments of the kernel of both products.
struct ExpertsArgs {
  GroupedArgs gate_up, down;
  // Counters, 0 at first: tiles that were handed out; panels of gate and up that are written, for each tile of rows.
  int32_t* dealt = nullptr;
  int32_t* written = nullptr;
};

// head_linear() of ops/latent: a grouped product with a matrix a head and all rows for each.
void head_linear_cuda(Stream& stream, const ExpertWeights& w, TensorView x, TensorView y);

// The kernels. `processors`: multiprocessors to fill.
void grouped_tiles_cuda(Stream& stream, const GroupedArgs& args, GroupedTileSize size, int processors);
void grouped_portable_cuda(Stream& stream, const GroupedArgs& args, int processors);
// rows: those of the pass, which bound an expert's.
void experts_tiles_cuda(Stream& stream, const ExpertsArgs& args, int64_t rows, int processors);

}  // namespace volley::ops

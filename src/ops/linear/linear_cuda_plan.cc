#include <algorithm>

#include "ops/linear/linear_cuda.h"

namespace volley::ops {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Time of a call in panels of k that the busiest multiprocessor reads, times 4 (whole numbers for every split).
int64_t cost(int64_t panels, int tile_panels, int split, int64_t row_tiles) {
  const int64_t blocks = ceil_div(panels, tile_panels) * row_tiles * split;
  return ceil_div(blocks, kPlanProcessors) * tile_panels * (4 / split);
}

constexpr int kTilePanels[] = {2, 3};
// The tiles that have a kernel (linear_cuda_tiles.cu). Three panels of 256 rows do not fit into the registers.
constexpr LinearTile kTiles[] = {{2, 8},  {3, 8},  {2, 16},  {3, 16},  {2, 32}, {3, 32},
                                 {2, 64}, {3, 64}, {2, 128}, {3, 128}, {2, 256}};
constexpr int64_t kLeastBlocks =
    8;  // of k in a slice: below, filling and draining the pipeline costs more than it saves

int best_split(int64_t panels, int64_t k_blocks) {
  int best = 1;
  int64_t best_cost = INT64_MAX;
  for (int split : {1, 2, 4}) {
    if (split > 1 && k_blocks / split < kLeastBlocks) break;
    for (int tile_panels : kTilePanels) {
      const int64_t c = cost(panels, tile_panels, split, 1);
      if (c < best_cost) {
        best_cost = c;
        best = split;
      }
    }
  }
  return best;
}

LinearTile best_tile(int64_t panels, int split, int64_t rows) {
  LinearTile best;
  int64_t best_cost = INT64_MAX;
  for (const LinearTile tile : kTiles) {
    // Below 128 rows the weights are read once; above, a second tile of rows costs less than multiplying padding.
    if (tile.rows < std::min<int64_t>(rows, 128) || (rows <= 128 && tile.rows >= 2 * rows && tile.rows > 8)) continue;
    const int64_t c = cost(panels, tile.panels, split, ceil_div(rows, tile.rows)) * tile.rows;
    if (c <= best_cost) {  // the larger tile reads x less often
      best_cost = c;
      best = tile;
    }
  }
  return best;
}

}  // namespace

int64_t linear_cuda_matrix_bytes(int64_t n, int64_t k, DType storage, LinearLayout layout) {
  const int64_t panels = linear_cuda_panels(n, layout);
  return storage == DType::kBF16 ? panels * linear_cuda_k_blocks(k) * kBlockBytes : panels * kPanelRows * k * 4;
}

int64_t linear_cuda_packed_bytes(int64_t n, int64_t k, DType storage, LinearLayout layout) {
  const int64_t counters = linear_cuda_panels(n, layout) * kMaxRowTiles * static_cast<int64_t>(sizeof(unsigned));
  return linear_cuda_matrix_bytes(n, k, storage, layout) + counters;
}

LinearCudaPlan LinearCudaPlan::make(int64_t n, int64_t k, LinearLayout layout, int64_t rows) {
  LinearCudaPlan plan;
  plan.panels = linear_cuda_panels(n, layout);
  plan.k_blocks = linear_cuda_k_blocks(k);
  plan.split = best_split(plan.panels, plan.k_blocks);
  plan.tile = best_tile(plan.panels, plan.split, rows);
  plan.row_tiles = ceil_div(rows, plan.tile.rows);
  return plan;
}

// Tiles grow with the rows, and so does what they leave; but for equal tiles fewer rows never need more.
int64_t linear_scratch_bytes_cuda(int64_t n, int64_t k, LinearLayout layout, int64_t rows) {
  int64_t floats = 0;
  for (int64_t r : {int64_t{8}, int64_t{16}, int64_t{32}, int64_t{64}, int64_t{128}}) {
    if (r < 2 * rows || r == 8) floats = std::max(floats, LinearCudaPlan::make(n, k, layout, r).partial_floats());
  }
  for (int64_t r = 256; r < std::min(rows, kMaxTileRows) + 128; r += 128) {
    floats = std::max(floats, LinearCudaPlan::make(n, k, layout, r).partial_floats());
  }
  return floats * static_cast<int64_t>(sizeof(float)) + 64;  // and what aligning it may cost
}

bool linear_cuda_uses_tiles(int major, const LinearWeight& w, DType x) {
  const int64_t outputs = w.layout == LinearLayout::kGateUp ? w.n / 2 : w.n;
  return major == 9 && x == DType::kBF16 && w.storage == DType::kBF16 && w.k % 8 == 0 && outputs % 4 == 0;
}

}  // namespace volley::ops

#include <algorithm>
#include <cmath>

#include "ops/linear/linear_cuda.h"

namespace volley::ops {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

constexpr int kTileHalves[] = {2, 3, 4, 6};
constexpr int kTileRows[] = {8, 16, 32, 64, 128, 256};
constexpr int64_t kLeastBlocks =
    8;  // of k in a slice: below, filling and draining the pipeline costs more than it saves

// The tiles that have a kernel (linear_cuda_tiles.cu). A pair of gate and up must not be cut.
bool possible(LinearTile tile, LinearLayout layout) {
  if (layout == LinearLayout::kGateUp && tile.halves % 2 != 0) return false;
  return tile.rows <= 128 || tile.halves <= 4;  // more sums do not fit into the registers
}

// Half panels that the busiest multiprocessor reads, times 2 (whole numbers for every split).
int64_t cost(int64_t halves, LinearTile tile, int split) {
  const int64_t blocks = ceil_div(halves, tile.halves) * split;
  return ceil_div(blocks, kPlanProcessors) * tile.halves * (2 / split);
}

int best_split(int64_t halves, int64_t k_blocks, LinearLayout layout) {
  int best = 1;
  int64_t best_cost = INT64_MAX;
  for (int split : {1, 2}) {
    if (split > 1 && k_blocks / split < kLeastBlocks) break;
    for (int tile_halves : kTileHalves) {
      const LinearTile tile{tile_halves, 8};
      if (!possible(tile, layout)) continue;
      const int64_t c = cost(halves, tile, split);
      if (c < best_cost) {
        best_cost = c;
        best = split;
      }
    }
  }
  return best;
}

// Up to 128 rows the weights are read once; above, a second tile of rows costs less than multiplying padding.
bool fits(LinearTile tile, int64_t rows) {
  if (rows > 128) return tile.rows >= 128;
  return tile.rows >= rows && (tile.rows < 2 * rows || tile.rows == kTileRows[0]);
}

// Time of a call in nanoseconds per element of k, by what an H200 was seen to do: weights come from memory at 34 GB/s
// for each multiprocessor; all that enters shared memory, x again for every tile, at 8.5 TB/s in all and 60 GB/s a
// multiprocessor; and the matrix unit multiplies 2900 pairs a nanosecond. Chooses tiles, and so affects no result.
double estimate(int64_t halves, LinearTile tile, int split, int64_t rows) {
  const double tiles = static_cast<double>(ceil_div(halves, tile.halves) * ceil_div(rows, tile.rows));
  const double waves = std::ceil(tiles * split / kPlanProcessors) / split;
  const double weight_rows = 32.0 * tile.halves, bytes = 2 * (weight_rows + tile.rows);
  const double reads = static_cast<double>(ceil_div(rows, tile.rows));  // of the weights: all but one from the cache
  return std::max({waves * 2 * weight_rows / reads / 34, tiles * bytes / 8500, waves * bytes / 60,
                   waves * weight_rows * tile.rows / 2900});
}

LinearTile best_tile(int64_t halves, int split, LinearLayout layout, int64_t rows) {
  LinearTile best;
  double best_time = 1e30;
  for (int tile_rows : kTileRows) {
    for (int tile_halves : kTileHalves) {
      const LinearTile tile{tile_halves, tile_rows};
      if (!fits(tile, rows) || !possible(tile, layout)) continue;
      const double time = estimate(halves, tile, split, rows);
      if (time <= best_time) {  // the larger tile reads x less often
        best_time = time;
        best = tile;
      }
    }
  }
  return best;
}

}  // namespace

LinearCudaPlan LinearCudaPlan::make(int64_t n, int64_t k, LinearLayout layout, int64_t rows) {
  LinearCudaPlan plan;
  plan.halves = 2 * linear_cuda_panels(n, layout);
  plan.k_blocks = linear_cuda_k_blocks(k);
  plan.split = best_split(plan.halves, plan.k_blocks, layout);
  plan.tile = best_tile(plan.halves, plan.split, layout, rows);
  plan.row_tiles = ceil_div(rows, plan.tile.rows);
  return plan;
}

int64_t linear_cuda_packed_bytes(int64_t n, int64_t k, DType storage, LinearLayout layout) {
  const int64_t panels = linear_cuda_panels(n, layout);
  return storage == DType::kBF16 ? panels * linear_cuda_k_blocks(k) * kBlockBytes : panels * kPanelRows * k * 4;
}

bool linear_cuda_uses_tiles(int major, const LinearWeight& w, DType x) {
  const int64_t outputs = w.layout == LinearLayout::kGateUp ? w.n / 2 : w.n;
  return major == 9 && x == DType::kBF16 && w.storage == DType::kBF16 && w.k % 8 == 0 && outputs % 4 == 0;
}

}  // namespace volley::ops

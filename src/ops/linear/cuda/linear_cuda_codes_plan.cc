#include <algorithm>
#include <cmath>

#include "ops/linear/cuda/linear_cuda_codes.h"

namespace volley::ops {
namespace {

constexpr int kTileHalves[] = {2, 3, 4, 6};
constexpr int kTileRows[] = {8, 16, 32, 64, 128};
constexpr int kBiasRows[] = {16, 64, 128};

// Time of a call in nanoseconds per block of k, like linear_cuda_plan.cc for bf16. Widening took 115 for a warpgroup
// alone, before there were teams, and 63 with all warpgroups of a block. Chooses tiles, and so affects no result.
double estimate(const LinearCudaPlan& plan, LinearTile tile, int64_t rows) {
  const auto row_tiles = static_cast<double>(divide_up(rows, tile.rows));
  const double tiles = static_cast<double>(divide_up(plan.halves, tile.halves)) * row_tiles;
  const double waves = std::ceil(tiles * plan.split / kPlanProcessors) / plan.split;
  const double groups = (tile.halves + 1) / 2, codes = tile.halves * code_half_bytes(2, 4);
  const double bytes = codes + 128.0 * tile.rows / (tile.shared ? 2 : 1);
  // Two warpgroups with many rows do not keep the matrix unit busy while both widen.
  const double product = groups * 64 * kBlockK * tile.rows / (tile.rows > 128 ? 1900 : 2900);
  return waves * std::max({115.0, 63 * groups, codes / row_tiles / 34, product, bytes / 69});
}

bool fits(LinearTile tile, int64_t rows) {
  if (rows > 128) return tile.rows >= 128;
  return tile.rows >= rows && (tile.rows < 4 * rows || tile.rows <= 16);
}

}  // namespace

std::vector<LinearTile> linear_codes_tiles(LinearLayout layout, int split, bool biased, bool wide) {
  std::vector<LinearTile> tiles;
  if (biased) {
    for (int rows : kBiasRows) tiles.push_back({kBiasHalves, rows});
    return tiles;
  }
  for (int rows : kTileRows) {
    for (int halves : kTileHalves) {
      if (wide && halves != 2 && halves != 4) continue;
      // A pair of gate and up must not be cut.
      if (layout == LinearLayout::kPlain || halves % 2 == 0) tiles.push_back({halves, rows});
    }
  }
  if (wide) return tiles;
  tiles.push_back({4, 256});
  if (split == 1) tiles.push_back({4, 256, true});
  return tiles;
}

LinearCudaPlan linear_codes_plan(const LinearWeight& w, int64_t rows, bool biased) {
  LinearCudaPlan plan = LinearCudaPlan::make(w.n, w.k, w.layout, rows, DType::kBF16, w.split_as);
  double best_time = 1e30;
  for (const LinearTile& tile : linear_codes_tiles(w.layout, plan.split, biased, !w.format.is_nibbles())) {
    if (!fits(tile, rows)) continue;
    const double time = estimate(plan, tile, rows);
    if (time >= best_time) continue;
    best_time = time;
    plan.tile = tile;
  }
  plan.row_tiles = divide_up(rows, plan.tile.rows);
  return plan;
}

}  // namespace volley::ops

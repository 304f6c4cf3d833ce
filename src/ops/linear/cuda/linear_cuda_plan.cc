#include <algorithm>
#include <cmath>
#include <span>

#include "base/math.h"
#include "ops/linear/cuda/linear_cuda.h"

namespace volley::ops {
namespace {

// Code for sm_90a runs only there; on other GPUs a program uses the portable kernel.
#ifdef VOLLEY_CUDA_SM90A
constexpr bool kBuiltForSm90a = true;
#else
constexpr bool kBuiltForSm90a = false;
#endif

constexpr int kTileHalves[] = {2, 3, 4, 6};
constexpr int kTileRows[] = {8, 16, 32, 64, 96, 128, 160, 192, 224, 256};
constexpr int64_t kLeastBlocks =
    8;  // least k of a slice: below, filling and draining the pipeline costs more than it saves

// Tiles by rows that have a kernel (linear_cuda_tiles_rows.cu).
constexpr LinearTile kRowTiles[] = {{3, 128, false, true}, {4, 128, false, true}, {6, 128, true, true}};

// Tiles in pairs that have a kernel (launchers.cmake).
constexpr int kPairRows[] = {8, 16, 32, 64};
constexpr int kMostPairRows = 64;
constexpr int kPairHalves = 2;

// The others (linear_cuda_tiles_2.cu and its like). A pair of gate and up must not be cut.
bool possible(LinearTile tile, LinearLayout layout, int split, bool in_blocks = false) {
  if (layout == LinearLayout::kGateUp && tile.halves % 2 != 0) return false;
  if (tile.halves < 4 && tile.rows > 128) return false;
  if (in_blocks && tile.rows > 128) return false;  // sums twice: registers hold no more
  // Blocks that share rows each take all of k; with two slices a pair is used for the slices instead. Few rows are not
  // worth sharing.
  return !tile.shared || (split == 1 && tile.rows >= 160 && tile.halves >= 4);
}

// Half panels that the busiest multiprocessor reads, times 2 (whole numbers for every split).
int64_t cost(int64_t halves, LinearTile tile, int split) {
  const int64_t blocks = divide_up(halves, tile.halves) * split;
  return divide_up(blocks, kPlanProcessors) * tile.halves * (2 / split);
}

int best_split(int64_t halves, int64_t k_blocks, LinearLayout layout) {
  int best = 1;
  int64_t best_cost = INT64_MAX;
  for (int split : {1, 2}) {
    if (split > 1 && k_blocks / split < kLeastBlocks) break;
    for (int tile_halves : kTileHalves) {
      const LinearTile tile{tile_halves, 8};
      if (!possible(tile, layout, split)) continue;
      const int64_t c = cost(halves, tile, split);
      if (c < best_cost) {
        best_cost = c;
        best = split;
      }
    }
  }
  return best;
}

// Up to 128 rows the weights are read once; above, another tile of rows costs less than multiplying padding.
bool fits(LinearTile tile, int64_t rows) {
  if (rows > 128) return tile.rows >= 96;
  return tile.rows >= rows && (tile.rows < 2 * rows || tile.rows == kTileRows[0]);
}

// Time of a call in nanoseconds per element of k (FP8: two elements, which are as many bytes and as much work), from
// measurements on an H200: weights come from memory at 34 GB/s for each multiprocessor; all that enters shared memory,
// x again for every tile, at 8.5 TB/s in all and 69 GB/s a multiprocessor, or 58 where three warpgroups read what
// enters; and the matrix unit multiplies 2900 pairs a nanosecond. Tiles by rows save a twentieth of the whole time or
// more at their end. Chooses tiles, and so affects no result.
double estimate(int64_t halves, LinearTile tile, int split, int64_t rows) {
  const double row_tiles = static_cast<double>(divide_up(rows, tile.rows));
  const double tiles = static_cast<double>(divide_up(halves, tile.halves)) * row_tiles;
  const double slices = tile.by_rows && tile.shared ? 1 : split;  // slices of k in different blocks
  const double waves = std::ceil(tiles * slices / kPlanProcessors) / slices;
  const double weight_rows = 32.0 * tile.halves;
  const double common = tile.shares_x() ? tile.rows : tile.shared ? weight_rows : 0;
  const double bytes = 2 * (weight_rows + tile.rows - common / 2);
  // All reads of a weight but one are from the cache.
  const double rate = tile.halves > 4 ? 58 : 69;
  const double time = std::max({waves * 2 * weight_rows / row_tiles / 34, tiles * bytes / 8500, waves * bytes / rate,
                                waves * weight_rows * tile.rows / 2900});
  return tile.by_rows ? 0.95 * time : time;
}

LinearTile best_tile(int64_t halves, int split, int64_t rows, std::span<const LinearTile> tiles) {
  LinearTile best;
  double best_time = 1e30;
  int64_t best_padded = 0;
  for (const LinearTile& tile : tiles) {
    if (!fits(tile, rows) || tile.in_pairs) continue;
    const int64_t padded = divide_up(rows, tile.rows) * tile.rows;
    const double time = estimate(halves, tile, split, rows);
    // Among equals the one with less padding, then the larger, which reads x less often.
    if (time < best_time || (time == best_time && padded <= best_padded)) {
      best_time = time;
      best_padded = padded;
      best = tile;
    }
  }
  return best;
}

LinearCudaPlan with_best_tile(LinearCudaPlan plan, int64_t rows, std::span<const LinearTile> tiles) {
  plan.tile = best_tile(plan.halves, plan.split, rows, tiles);
  plan.row_tiles = divide_up(rows, plan.tile.rows);
  return plan;
}

// Whether a multiprocessor gets one small block after the other. Between them it reads nothing, unless it has two at a
// time.
bool comes_in_waves(const LinearCudaPlan& plan) {
  return (plan.split == 2 || plan.tile.halves == kPairHalves) &&
         divide_up(plan.halves, plan.tile.halves) * plan.split > kPlanProcessors;
}

// REQUIRES: rows are at most kMostPairRows.
LinearTile pair_tile(int64_t rows) {
  const int* fitting = std::find_if(std::begin(kPairRows), std::end(kPairRows), [&](int of) { return of >= rows; });
  return {kPairHalves, *fitting, false, false, true};
}

}  // namespace

std::vector<LinearTile> LinearCudaPlan::tiles(LinearLayout layout, int split, const WeightFormat& format) {
  std::vector<LinearTile> tiles;
  for (bool shared : {false, true}) {
    for (int rows : kTileRows) {
      for (int halves : kTileHalves) {
        const LinearTile tile = {halves, rows, shared};
        if (possible(tile, layout, split, format.in_blocks())) tiles.push_back(tile);
      }
    }
  }
  if (layout == LinearLayout::kPlain && split == 2 && format.code == DType::kBF16) {
    tiles.insert(tiles.end(), std::begin(kRowTiles), std::end(kRowTiles));
  }
  if (!format.in_blocks()) {
    for (int rows : kPairRows) tiles.push_back(pair_tile(rows));
  }
  return tiles;
}

LinearCudaPlan LinearCudaPlan::make(int64_t n, int64_t k, LinearLayout layout, int64_t rows, const WeightFormat& format,
                                    int64_t split_as) {
  LinearCudaPlan plan;
  plan.halves = 2 * linear_cuda_panels(n, layout);
  plan.k_blocks = linear_cuda_k_blocks(k, format.code);
  plan.split = best_split(split_as > 0 ? 2 * linear_cuda_panels(split_as, layout) : plan.halves, plan.k_blocks, layout);
  plan.tile = best_tile(plan.halves, plan.split, rows, tiles(layout, plan.split, format));
  if (rows <= kMostPairRows && !format.in_blocks() && comes_in_waves(plan)) plan.tile = pair_tile(rows);
  plan.row_tiles = divide_up(rows, plan.tile.rows);
  return plan;
}

LinearCudaPlan LinearCudaPlan::make(const LinearWeight& w, int64_t rows) {
  return make(w.n, w.k, w.layout, rows, w.format, w.split_as);
}

std::vector<LinearTile> LinearCudaPlan::summary_tiles() {
  std::vector<LinearTile> tiles;
  for (int rows : kTileRows) tiles.push_back({kSummaryHalves, rows, rows >= 160});
  return tiles;
}

LinearCudaPlan LinearCudaPlan::make_summarising(const LinearWeight& w, int64_t rows) {
  return with_best_tile(make(w, rows), rows, summary_tiles());
}

std::vector<LinearTile> LinearCudaPlan::bias_tiles() {
  std::vector<LinearTile> tiles;
  for (int rows : kTileRows) {
    if (rows <= 128) tiles.push_back({kBiasHalves, rows});
  }
  return tiles;
}

LinearCudaPlan LinearCudaPlan::make_biased(const LinearWeight& w, int64_t rows) {
  return with_best_tile(make(w, rows), rows, bias_tiles());
}

int64_t linear_cuda_packed_bytes(int64_t n, int64_t k, const WeightFormat& format, LinearLayout layout) {
  const int64_t panels = linear_cuda_panels(n, layout), blocks = linear_cuda_k_blocks(k, format.code);
  if (format.code == DType::kF32) return panels * kPanelRows * k * 4;
  int64_t scales = 0;
  if (format.code == DType::kF8E4M3) scales = panels * kPanelRows / format.group_n * (format.in_blocks() ? blocks : 1);
  return panels * blocks * kBlockBytes + scales * static_cast<int64_t>(sizeof(float));
}

float* linear_cuda_scales(const LinearWeight& w) {
  VOLLEY_CHECK(w.format.code == DType::kF8E4M3);
  const int64_t blocks = linear_cuda_panels(w.n, w.layout) * linear_cuda_k_blocks(w.k, w.format.code);
  return reinterpret_cast<float*>(static_cast<char*>(w.packed.data()) + blocks * kBlockBytes);
}

LinearPortablePlan LinearPortablePlan::make(int64_t n, int64_t k, LinearLayout layout, int64_t rows, int64_t split_as) {
  LinearPortablePlan plan;
  const int64_t panels = linear_cuda_panels(n, layout);
  const int64_t split_panels = split_as > 0 ? linear_cuda_panels(split_as, layout) : panels;
  plan.split = best_split(2 * split_panels, linear_cuda_k_blocks(k), layout);
  plan.tile_rows = rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  plan.row_tiles = divide_up(rows, plan.tile_rows);
  // Half panels where whole ones would leave multiprocessors idle; a pair of gate and up is a whole one.
  if (layout == LinearLayout::kPlain && panels * plan.row_tiles < kPlanProcessors) plan.warps = 2;
  return plan;
}

LinearKernel linear_cuda_kernel(const GpuInfo& gpu, const LinearWeight& w, DType x) {
  const int64_t outputs = w.layout == LinearLayout::kGateUp ? w.n / 2 : w.n;
  if (w.format.code == DType::kF8E4M3) return LinearKernel::kTiles;
  const bool fits = x == DType::kBF16 && w.format.code == DType::kBF16 && w.k % 8 == 0 && outputs % 4 == 0;
  if (!fits || w.plain || !gpu.at_least(80)) return LinearKernel::kPlain;
  return kBuiltForSm90a && gpu.is_hopper() && !w.portable ? LinearKernel::kTiles : LinearKernel::kPortable;
}

bool linear_cuda_summarises(const GpuInfo& gpu, const LinearWeight& w, DType x) {
  return w.layout == LinearLayout::kPlain && !w.format.in_blocks() &&
         linear_cuda_kernel(gpu, w, x) == LinearKernel::kTiles && LinearCudaPlan::make(w, 1).split == 1;
}

bool linear_cuda_sends(const GpuInfo& gpu, const LinearWeight& w, DType x, int64_t rows) {
  return w.layout == LinearLayout::kPlain && rows <= kMostSentRows &&
         linear_cuda_kernel(gpu, w, x) == LinearKernel::kTiles &&
         LinearCudaPlan::make(w, rows).tile.rows <= kMostSentRows;
}

bool linear_cuda_takes_fp8(const GpuInfo& gpu) {
  return kBuiltForSm90a && gpu.is_hopper();
}

}  // namespace volley::ops

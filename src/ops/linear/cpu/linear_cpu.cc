#include "ops/linear/cpu/linear_cpu.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "device/cpu/thread_pool.h"
#include "ops/cpu_features.h"
#include "ops/linear/linear_kernels.h"

namespace volley::ops {
namespace {

// x[rows, k] as floats [k, rows]; a line of bf16 weights holds two k, so an odd end gets a zero.
template <typename T>
void pack_tile_f32(const T* x, int64_t stride, int64_t rows, int64_t k, float* tile) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k; ++i) tile[i * rows + r] = to_float(x[r * stride + i]);
    if (k % 2 != 0) tile[k * rows + r] = 0.0f;
  }
}

// Copies scattered rows side by side: [rows][k], `size` bytes a value.
void gather_block(const PanelProduct& p, int64_t row, int64_t rows, int64_t k0, int64_t k, int64_t size, char* to) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t source = p.x_rows[row + r] / p.x_divisor;
    std::memcpy(to + r * k * size, static_cast<const char*>(p.x.data) + (source * p.x_stride + k0) * size, k * size);
  }
}

// The rows' columns [k0, k0 + k), filled up with zeros as the kernel reads them.
void pack_tile(const PanelProduct& p, int64_t row, int64_t rows, int64_t k0, int64_t k, void* tile) {
  if (const int64_t padded = divide_up(k, p.pad) * p.pad; padded != k) {
    const int64_t step_bytes = rows * (p.pairs ? 2 : 4);  // bytes of a column; a pair's bytes lie side by side
    std::memset(static_cast<char*>(tile) + k / 2 * 2 * step_bytes, 0, (padded - k / 2 * 2) * step_bytes);
  }
  alignas(64) char gathered[kTileBytes];  // no larger than the tile
  const int64_t size = static_cast<int64_t>(dtype_size(p.x.dtype));
  const char* x = static_cast<const char*>(p.x.data) + (row * p.x_stride + k0) * size;
  int64_t stride = p.x_stride;
  if (p.x_rows != nullptr) {
    gather_block(p, row, rows, k0, k, size, gathered);
    x = gathered;
    stride = k;
  }
  if (p.pairs) {
    pack_tile_avx512bf16(reinterpret_cast<const BFloat16*>(x), stride, rows, k, static_cast<uint32_t*>(tile));
  } else if (p.x.dtype == DType::kBF16) {
    pack_tile_f32(reinterpret_cast<const BFloat16*>(x), stride, rows, k, static_cast<float*>(tile));
  } else {
    pack_tile_f32(reinterpret_cast<const float*>(x), stride, rows, k, static_cast<float*>(tile));
  }
}

// Finished sums of these panels to rows of y that lie side by side, or each to its own.
void write_rows(const PanelProduct& p, const float* sums, int64_t row, int64_t rows, int64_t panel, int64_t panels) {
  const int64_t columns = p.y.shape[1], column = panel / p.unit * kPanelWidth;
  const int64_t size = static_cast<int64_t>(dtype_size(p.y.dtype));
  char* y = static_cast<char*>(p.y.data) + column * size;
  TileOutput out{.sums = sums,
                 .rows = rows,
                 .panels = panels,
                 .kind = p.kind,
                 .bias = p.bias == nullptr ? nullptr : p.bias + column,
                 .up_bias = p.bias == nullptr || p.unit == 1 ? nullptr : p.bias + columns + column,
                 .clamp = p.clamp,
                 .dtype = p.y.dtype,
                 .y = y + row * p.y_stride * size,
                 .stride = p.y_stride,
                 .columns = columns - column};
  if (p.y_rows == nullptr) return write_tile(out);
  VOLLEY_CHECK(p.kind != EndKind::kAdd);
  alignas(64) char some[kSumBytes];  // outputs take no more than their sums
  const int64_t width = std::min(out.columns, panels / p.unit * kPanelWidth);
  out.y = some;
  out.stride = out.columns = width;
  write_tile(out);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(y + p.y_rows[row + r] * p.y_stride * size, some + r * width * size, width * size);
  }
}

// Panels [panel, panel + panels) for rows [row, row + rows), a tile of at most kTileRows. `next`: the weights that are
// read after these.
void run_tile(const PanelProduct& p, int64_t row, int64_t rows, int64_t panel, int64_t panels, const char* next) {
  alignas(64) unsigned char tile[kTileBytes];
  alignas(64) float sums[kSumBytes / sizeof(float)];
  float x_sums[kTileBytes / 2 / kLeastGroup];
  const int64_t k = p.k;
  const int64_t least = std::max<int64_t>(p.step, 2);
  const int64_t most = kTileBytes / (rows * (p.pairs ? 2 : 4)) / least * least;
  const int64_t block = divide_up(divide_up(k, divide_up(k, most)), least) * least;
  const char* weights = p.weights + panel * p.panel_bytes;
  for (int64_t k0 = 0; k0 < k; k0 += block) {
    const int64_t count = std::min(block, k - k0);
    pack_tile(p, row, rows, k0, count, tile);
    if (p.sums_x) {
      sum_groups_avx512bf16(reinterpret_cast<const uint32_t*>(tile), rows, count, p.group, x_sums);
    }
    p.multiply({.x = tile,
                .rows = rows,
                .k = count,
                .group = p.group,
                .halves = p.halves,
                .weights = weights + k0 / p.step * p.step_bytes,
                .panel_bytes = p.panel_bytes,
                .panels = panels,
                .next = k0 + block < k ? weights + (k0 + block) / p.step * p.step_bytes : next,
                .sums = sums,
                .first = k0 == 0,
                .x_sums = x_sums});
  }
  write_rows(p, sums, row, rows, panel, panels);
}

}  // namespace

namespace {

TileMultiply multiply_of(const WeightFormat& format, bool pairs) {
  if (format.is_codes()) return pairs ? multiply_codes_avx512bf16(format) : multiply_codes(format);
  if (format.code == DType::kF32) return multiply_tile_f32;
  return pairs ? multiply_tile_avx512bf16 : multiply_tile_bf16;
}

}  // namespace

PanelProduct PanelProduct::make(const char* weights, int64_t n, int64_t k, const WeightFormat& format,
                                LinearLayout layout, const TensorView& x, const TensorView& y, EndKind kind) {
  const bool codes = format.is_codes(), bf16 = format.code == DType::kBF16;
  const bool pairs = x.dtype == DType::kBF16 && ((bf16 && cpu_has_avx512_bf16()) || (codes && cpu_has_avx512_vbmi()));
  return {.weights = weights,
          .k = k,
          .panels = linear_panels(n, layout),
          .panel_bytes = linear_panel_bytes(k, format),
          .unit = layout == LinearLayout::kGateUp ? 2 : 1,
          .step = codes  ? format.group_k
                  : bf16 ? 2
                         : 1,
          .step_bytes = codes ? linear_group_bytes(format) : kLineBytes,
          .group = codes ? format.group_k : 0,
          .halves = format.halves,
          .pad = codes ? kCodePad : 2,
          .pairs = pairs,
          .sums_x = pairs && format.minimums,
          .multiply = multiply_of(format, pairs),
          .x = x,
          .y = y,
          .x_stride = k,
          .y_stride = y.shape[1],
          .kind = kind};
}

void run_panels(const PanelProduct& product, int64_t group, int64_t row, int64_t row_end, int64_t panel,
                int64_t panel_end) {
  const int64_t rows = row_end - row;
  const int64_t tiles = divide_up(rows, kTileRows);
  for (int64_t p = panel; p < panel_end; p += group) {
    const int64_t panels = std::min(group, panel_end - p);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin = rows * t / tiles, end = rows * (t + 1) / tiles;
      const int64_t next = t + 1 < tiles ? p : p + panels;
      run_tile(product, row + begin, end - begin, p, panels, product.weights + next * product.panel_bytes);
    }
  }
}

LinearPlan LinearPlan::make(int64_t rows, int64_t k, int64_t panels, int64_t panel_bytes, int64_t unit, int threads) {
  // A thread's speed per ns, from the third-level cache; only the order of magnitude matters here.
  constexpr int64_t kBytesPerNs = 40, kProductsPerNs = 200;
  constexpr int64_t kTaskNs = 4000;        // handing out a task costs a few percent of this
  constexpr int64_t kTasksPerThread = 16;  // so that a thread that was held up does not hold up the others for long
  // A group may outgrow the second-level cache: with 512 KB, x was packed so often that 512 rows of k = 3072 took 11 %
  // longer.
  constexpr int64_t kGroupBytes = 2 << 20;
  const int64_t cost = std::max(panels * panel_bytes / kBytesPerNs, rows * panels * kPanelWidth * k / kProductsPerNs);
  const int64_t units = panels / unit;
  LinearPlan plan;
  if (threads > 1 && cost > kTaskNs) {
    const int64_t wanted = divide_up(std::min(cost / kTaskNs + 1, kTasksPerThread * threads), threads) * threads;
    // Packing x costs a task as much as multiplying it by a third of a panel (16 rows) or a whole one (4 rows): with 2
    // panels to a task these took 40 % and 60 % longer.
    const int64_t least = (rows > kTileRows ? 16 : rows > 1 ? 8 : 4) / unit;
    plan.panel_tasks = std::clamp(units / least, int64_t{1}, wanted);
    if (plan.panel_tasks > threads)
      plan.panel_tasks -= plan.panel_tasks % threads;  // 5 tasks take 2 threads as long as 6
    plan.row_tasks = std::min(divide_up(wanted, plan.panel_tasks), divide_up(rows, kTileRows));
  }
  const int64_t tile_rows = std::min(rows, kTileRows);
  const int64_t fit = kSumBytes / (tile_rows * kPanelWidth * static_cast<int64_t>(sizeof(float)));
  const int64_t cached = std::max<int64_t>(kGroupBytes / panel_bytes, 4);
  plan.group = (rows > kTileRows ? std::min(fit, cached) : fit) / unit * unit;
  return plan;
}

namespace {

int64_t packed_bytes_cpu(int64_t n, int64_t k, const WeightFormat& format, LinearLayout layout) {
  return linear_panels(n, layout) * linear_panel_bytes(k, format);
}

void linear_cpu(Stream& stream, const LinearWeight& w, const Input& input, TensorView y, const End& end) {
  if (stream.dry()) return;
  const TensorView& x = input.values;
  const int64_t n = has_gates(end.kind) ? w.n : y.shape[1];  // the outputs that y has room for
  PanelProduct product =
      PanelProduct::make(static_cast<const char*>(w.packed.data()), n, w.k, w.format, w.layout, x, y, end.kind);
  if (end.bias.data != nullptr) product.bias = end.bias.as<float>();
  const int64_t rows = x.shape[0], unit = product.unit, units = product.panels / unit;
  const LinearPlan plan = LinearPlan::make(rows, w.k, product.panels, product.panel_bytes, unit, stream.threads());
  stream.pool().parallel_for(plan.panel_tasks * plan.row_tasks, [&](int64_t task, int) {
    const int64_t pt = task / plan.row_tasks, rt = task % plan.row_tasks;
    run_panels(product, plan.group, rows * rt / plan.row_tasks, rows * (rt + 1) / plan.row_tasks,
               units * pt / plan.panel_tasks * unit, units * (pt + 1) / plan.panel_tasks * unit);
  });
}

}  // namespace

const LinearKernels LinearKernels::kCpu = {pack_linear_cpu, packed_bytes_cpu, linear_cpu, nullptr, nullptr, nullptr};

}  // namespace volley::ops

#include "ops/linear/linear_cpu.h"

#include <algorithm>

#include "base/math.h"
#include "device/cpu/thread_pool.h"
#include "ops/cpu_features.h"

namespace volley::ops {
namespace {

// One call, with what its dtypes choose.
struct Call {
  const LinearWeight& w;
  TensorView x;
  TensorView y;
  Epilogue epilogue;
  int64_t panels;
  int64_t panel_bytes;
  int64_t unit;     // panels that must stay together: 2 for gate and up
  int64_t k_bytes;  // of a panel, per k (of an even number of k)
  bool pairs;       // vdpbf16ps
  void (*multiply)(const TileProduct&);
};

Call make_call(const LinearWeight& w, TensorView x, TensorView y, Epilogue epilogue) {
  const bool bf16 = w.storage == DType::kBF16;
  const bool pairs = bf16 && x.dtype == DType::kBF16 && cpu_has_avx512_bf16();
  return {.w = w,
          .x = x,
          .y = y,
          .epilogue = epilogue,
          .panels = linear_panels(w.n, w.layout),
          .panel_bytes = linear_panel_bytes(w.k, w.storage),
          .unit = w.layout == LinearLayout::kGateUp ? 2 : 1,
          .k_bytes = bf16 ? kLineBytes / 2 : kLineBytes,
          .pairs = pairs,
          .multiply = pairs  ? multiply_tile_avx512bf16
                      : bf16 ? multiply_tile_bf16
                             : multiply_tile_f32};
}

template <typename T>
float x_value(T x) {
  return to_float(x);
}
template <>
float x_value(float x) {
  return x;
}

// x[rows, k] as floats [k, rows]; a line of bf16 weights holds two k, so an odd end gets a zero.
template <typename T>
void pack_tile_f32(const T* x, int64_t stride, int64_t rows, int64_t k, float* tile) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k; ++i) tile[i * rows + r] = x_value(x[r * stride + i]);
    if (k % 2 != 0) tile[k * rows + r] = 0.0f;
  }
}

void pack_tile(const Call& call, int64_t row, int64_t rows, int64_t k0, int64_t k, void* tile) {
  const int64_t stride = call.w.k;
  const int64_t offset = row * stride + k0;
  if (call.pairs) {
    pack_tile_avx512bf16(call.x.as<BFloat16>() + offset, stride, rows, k, static_cast<uint32_t*>(tile));
  } else if (call.x.dtype == DType::kBF16) {
    pack_tile_f32(call.x.as<BFloat16>() + offset, stride, rows, k, static_cast<float*>(tile));
  } else {
    pack_tile_f32(call.x.as<float>() + offset, stride, rows, k, static_cast<float*>(tile));
  }
}

// Panels [panel, panel + panels) for rows [row, row + rows), a tile of at most kTileRows. `next`: the weights that are
// read after these.
void run_tile(const Call& call, int64_t row, int64_t rows, int64_t panel, int64_t panels, const char* next) {
  alignas(64) unsigned char tile[kTileBytes];
  alignas(64) float sums[kSumBytes / sizeof(float)];
  const int64_t k = call.w.k;
  const int64_t most = kTileBytes / (rows * (call.pairs ? 2 : 4)) / 2 * 2;
  const int64_t block = divide_up(divide_up(k, divide_up(k, most)), 2) * 2;
  const char* weights = static_cast<const char*>(call.w.packed.data()) + panel * call.panel_bytes;
  for (int64_t k0 = 0; k0 < k; k0 += block) {
    const int64_t count = std::min(block, k - k0);
    pack_tile(call, row, rows, k0, count, tile);
    call.multiply({.x = tile,
                   .rows = rows,
                   .k = count,
                   .weights = weights + k0 * call.k_bytes,
                   .panel_bytes = call.panel_bytes,
                   .panels = panels,
                   .next = k0 + block < k ? weights + (k0 + block) * call.k_bytes : next,
                   .sums = sums,
                   .first = k0 == 0});
  }
  const int64_t columns = call.y.shape[1];
  const int64_t column = panel / call.unit * kPanelWidth;
  const int64_t element = static_cast<int64_t>(dtype_size(call.y.dtype));
  write_tile({.sums = sums,
              .rows = rows,
              .panels = panels,
              .epilogue = call.epilogue,
              .dtype = call.y.dtype,
              .y = static_cast<char*>(call.y.data) + (row * columns + column) * element,
              .stride = columns,
              .columns = columns - column});
}

// Panels [panel, panel_end) for rows [row, row_end). A group of panels is worked through for all rows before the next,
// so that it is read from memory once.
void run_task(const Call& call, const LinearPlan& plan, int64_t row, int64_t row_end, int64_t panel,
              int64_t panel_end) {
  const int64_t rows = row_end - row;
  const int64_t tiles = divide_up(rows, kTileRows);
  const char* weights = static_cast<const char*>(call.w.packed.data());
  for (int64_t p = panel; p < panel_end; p += plan.group) {
    const int64_t panels = std::min(plan.group, panel_end - p);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t begin = rows * t / tiles, end = rows * (t + 1) / tiles;
      const int64_t next = t + 1 < tiles ? p : p + panels;
      run_tile(call, row + begin, end - begin, p, panels, weights + next * call.panel_bytes);
    }
  }
}

}  // namespace

LinearPlan LinearPlan::make(int64_t rows, int64_t k, int64_t panels, int64_t panel_bytes, int64_t unit, int threads) {
  // What a thread does per ns, from the third-level cache; only the order of magnitude matters here.
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

void linear_cpu(Stream& stream, const LinearWeight& w, TensorView x, TensorView y, Epilogue epilogue) {
  const Call call = make_call(w, x, y, epilogue);
  const int64_t rows = x.shape[0];
  const int64_t units = call.panels / call.unit;
  const LinearPlan plan =
      LinearPlan::make(rows, w.k, call.panels, call.panel_bytes, call.unit, stream.pool().threads());
  stream.pool().parallel_for(plan.panel_tasks * plan.row_tasks, [&](int64_t task, int) {
    const int64_t pt = task / plan.row_tasks, rt = task % plan.row_tasks;
    run_task(call, plan, rows * rt / plan.row_tasks, rows * (rt + 1) / plan.row_tasks,
             units * pt / plan.panel_tasks * call.unit, units * (pt + 1) / plan.panel_tasks * call.unit);
  });
}

}  // namespace volley::ops

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/cpu/thread_pool.h"
#include "ops/latent/latent_kernels.h"
#include "ops/linear/cpu/linear_cpu.h"
#include "ops/paged_kv/cpu_tile.h"

namespace volley::ops {
namespace {

// The panels of all heads are shared out as if they were those of one matrix.
void head_linear_cpu(Stream& stream, const ExpertWeights& w, TensorView x, TensorView y) {
  if (stream.dry()) return;
  const int64_t rows = x.dim(0), heads = w.experts;
  PanelProduct all = PanelProduct::make(nullptr, w.n, w.k, w.format, w.layout, {x.data, x.dtype, {rows, w.k}},
                                        {y.data, y.dtype, {rows, w.n}}, EndKind::kStore);
  all.x_stride = heads * x.dim(2);
  all.y_stride = heads * y.dim(2);
  const int64_t panels = all.panels, total = heads * panels;
  const LinearPlan plan = LinearPlan::make(rows, w.k, total, all.panel_bytes, 1, stream.threads());
  const auto run_head = [&](int64_t head, int64_t panel, int64_t panel_end) {
    const auto of_head = [head](const TensorView& view) {
      return static_cast<char*>(view.data) + head * view.dim(2) * static_cast<int64_t>(dtype_size(view.dtype));
    };
    PanelProduct product = all;
    product.weights = static_cast<const char*>(w.packed.data()) + head * panels * all.panel_bytes;
    product.x.data = of_head(x);
    product.y.data = of_head(y);
    run_panels(product, plan.group, 0, rows, panel, panel_end);
  };
  stream.pool().parallel_for(plan.panel_tasks, [&](int64_t task, int) {
    const int64_t task_end = total * (task + 1) / plan.panel_tasks;
    for (int64_t at = total * task / plan.panel_tasks; at < task_end;) {
      const int64_t head = at / panels, stop = std::min(task_end, (head + 1) * panels);
      run_head(head, at - head * panels, stop - head * panels);
      at = stop;
    }
  });
}

// Consecutive rows of a segment that lie in one tile.
struct TileRows {
  int32_t slot, row, rows, position;
};

// y = x / rms(x) * weight. Sixteen partial sums, element i in sum i mod 16, added neighbours first.
void norm_latent(const float* x, const float* weight, float eps, int32_t n, float* y) {
  constexpr int32_t kSums = 16;
  float sums[kSums] = {};
  for (int32_t i = 0; i < n; i += kSums) {
    for (int32_t j = 0; j < kSums; ++j) sums[j] += x[i + j] * x[i + j];
  }
  for (int32_t step = 1; step < kSums; step *= 2) {
    for (int32_t j = 0; j < kSums; j += 2 * step) sums[j] += sums[j + step];
  }
  const float inverse = 1.0f / std::sqrt(sums[0] / static_cast<float>(n) + eps);
  for (int32_t i = 0; i < n; ++i) y[i] = x[i] * inverse * weight[i];
}

template <typename T>
void rotate(const T* x, const float* cos, const float* sin, int32_t n, float* y) {
  for (int32_t i = 0; i < n / 2; ++i) {
    const float a = to_float(x[i]), b = to_float(x[n / 2 + i]);
    y[i] = a * cos[i] - b * sin[i];
    y[n / 2 + i] = b * cos[i] + a * sin[i];
  }
}

void store(const float* x, int32_t n, float* to) {
  std::memcpy(to, x, static_cast<size_t>(n) * sizeof(float));
}
void store(const float* x, int32_t n, BFloat16* to) {
  for (int32_t i = 0; i < n; ++i) to[i] = to_bfloat16(x[i]);
}

// A position's elements in a K tile: `pair` neighbours lie side by side.
template <typename T, typename Convert>
void store_key(const float* x, int32_t n, int32_t pair, int32_t in_tile, std::byte* tile, const Convert& convert) {
  T* to = reinterpret_cast<T*>(tile) + in_tile * pair;
  for (int32_t i = 0; i < n; ++i) to[i / pair * kKvTile * pair + i % pair] = convert(x[i]);
}

class LatentWriter {
 public:
  LatentWriter(const Rows& rows, const RowView& view, const LatentWrite& args)
      : rows_(rows), view_(view), args_(args) {}

  void write(const TileRows& unit) const {
    const KvLayer& kv = args_.kv;
    const int32_t width = kv.v_in_k, rope = kv.head_dim - width;
    std::byte* const tile = prepare_tile(unit);
    for (int32_t r = 0; r < unit.rows; ++r) {
      const int64_t row = unit.row + r, angle = int64_t{rows_.rope_positions.as<int32_t>()[row]} * (rope / 2);
      const float *x = args_.row.as<float>() + row * kv.head_dim, *cos = args_.rope.cos.as<float>() + angle,
                  *sin = args_.rope.sin.as<float>() + angle;
      float key[kMaxLatentKey];
      norm_latent(x, args_.norm.as<float>(), args_.eps, width, key);
      rotate(x + width, cos, sin, rope, key + width);
      store_position(key, unit.position % kKvTile + r, tile);
      args_.q.dtype == DType::kF32 ? rotate_q<float>(row, cos, sin) : rotate_q<BFloat16>(row, cos, sin);
      const int32_t grown = rows_.rope_positions.as<int32_t>()[row] / args_.growth.every;
      if (args_.growth.factor > 0 && grown > 0) {
        grow_q(row, 1.0f + args_.growth.factor * std::log(1.0f + static_cast<float>(grown)));
      }
    }
  }

 private:
  // Cleared when the rows begin it and do not fill it, as write_qkv() does.
  std::byte* prepare_tile(const TileRows& unit) const {
    const KvLayer& kv = args_.kv;
    const TensorView& table = view_.page_table;
    const int32_t page = table.as<int32_t>()[unit.slot * table.dim(1) + unit.position / kv.page_size];
    const int64_t bytes = kv_tile_bytes(kv);
    std::byte* tile = kv_head_tiles(kv, page, 0).k + unit.position % kv.page_size / kKvTile * bytes;
    if (unit.position % kKvTile == 0 && unit.rows < kKvTile) std::memset(tile, 0, static_cast<size_t>(bytes));
    return tile;
  }

  void store_position(const float* key, int32_t in_tile, std::byte* tile) const {
    const KvLayer& kv = args_.kv;
    if (kv.dtype == DType::kF32) return store_key<float>(key, kv.head_dim, 1, in_tile, tile, [](float x) { return x; });
    if (kv.dtype == DType::kBF16) return store_key<BFloat16>(key, kv.head_dim, 2, in_tile, tile, to_bfloat16);
    const auto code = [&](float x) { return to_float8_e4m3(x / kv.k_scale); };
    store_key<Float8E4M3>(key, kv.head_dim, 2, in_tile, tile, code);
  }

  void grow_q(int64_t row, float by) const {
    const int64_t n = args_.q_out.dim(1) * args_.q_out.dim(2);
    for (int64_t i = row * n; i < (row + 1) * n; ++i) {
      if (args_.q_out.dtype == DType::kF32) {
        args_.q_out.as<float>()[i] *= by;
      } else {
        BFloat16& x = args_.q_out.as<BFloat16>()[i];
        x = to_bfloat16(to_float(x) * by);
      }
    }
  }

  template <typename T>
  void rotate_q(int64_t row, const float* cos, const float* sin) const {
    const int32_t width = args_.kv.v_in_k, rope = args_.kv.head_dim - width;
    const int64_t heads = args_.q.dim(1), from = args_.q.dim(2), to = args_.kv.head_dim;
    for (int64_t head = row * heads; head < (row + 1) * heads; ++head) {
      float y[kMaxLatentKey];
      rotate(args_.q.as<T>() + (head + 1) * from - rope, cos, sin, rope, y);
      const int64_t at = head * to + width;
      args_.q_out.dtype == DType::kF32 ? store(y, rope, args_.q_out.as<float>() + at)
                                       : store(y, rope, args_.q_out.as<BFloat16>() + at);
    }
  }

  const Rows& rows_;
  const RowView& view_;
  const LatentWrite& args_;
};

// Positions are the engine's own numbers: wrong ones would write into another request's pages.
void check_segment(const Rows& rows, const RowView& view, const LatentWrite& args, const RowSegment& segment) {
  VOLLEY_CHECK(segment.row_begin >= 0 && segment.rows >= 0 && segment.row_begin + segment.rows <= rows.rows);
  VOLLEY_CHECK(segment.slot >= 0 && segment.slot < view.page_table.dim(0));
  for (int32_t row = segment.row_begin; row < segment.row_begin + segment.rows; ++row) {
    const int32_t position = rows.cache_positions.as<int32_t>()[row], rope = rows.rope_positions.as<int32_t>()[row];
    VOLLEY_CHECK_EQ(position, rows.cache_positions.as<int32_t>()[segment.row_begin] + row - segment.row_begin);
    VOLLEY_CHECK(rope >= 0 && rope < args.rope.cos.dim(0));
    const int64_t page = position / args.kv.page_size;
    VOLLEY_CHECK(position >= 0 && page < view.page_table.dim(1));
    VOLLEY_CHECK_GE(view.page_table.as<int32_t>()[segment.slot * view.page_table.dim(1) + page], 0);
  }
}

// Calls use() with the rows of each tile, in order.
template <typename Use>
void for_each_tile(const Rows& rows, const Use& use) {
  for (int32_t i = 0; i < rows.n_segments; ++i) {
    const RowSegment& segment = rows.segments[i];
    for (int32_t done = 0; done < segment.rows;) {
      const int32_t row = segment.row_begin + done, position = rows.cache_positions.as<int32_t>()[row];
      const int32_t n = std::min(segment.rows - done, kKvTile - position % kKvTile);
      use(TileRows{segment.slot, row, n, position});
      done += n;
    }
  }
}

void write_latent_cpu(Stream& stream, const Rows& rows, const RowView& view, const LatentWrite& args) {
  if (stream.dry()) return;
  for (int32_t i = 0; i < rows.n_segments; ++i) check_segment(rows, view, args, rows.segments[i]);
  int64_t units = 0;
  for_each_tile(rows, [&](const TileRows&) { ++units; });
  // About 2 ns an element; a task should take some microseconds.
  constexpr int64_t kElementsPerTask = 4096;
  const int64_t elements = args.row.count() + args.q.count();
  const int64_t tasks = std::clamp(elements / kElementsPerTask, std::min<int64_t>(units, 1), units);
  const LatentWriter writer(rows, view, args);
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
    int64_t at = 0;
    for_each_tile(rows, [&](const TileRows& unit) {
      if (at >= units * task / tasks && at < units * (task + 1) / tasks) writer.write(unit);
      ++at;
    });
  });
}

}  // namespace

const LatentKernels LatentKernels::kCpu = {head_linear_cpu, write_latent_cpu};

}  // namespace volley::ops

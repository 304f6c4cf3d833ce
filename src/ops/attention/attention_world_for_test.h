// Shared by the tests of attention on every device: sequences with known K and V, batches of rows, and the fp64 oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/dry_run.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_plan.h"
#include "ops/device_for_test.h"

namespace volley::ops {

struct AttentionShape {
  DType dtype = DType::kBF16;
  int head_dim = 64;
  int heads = 6;
  int kv_heads = 2;
  int page_size = 16;
  bool sinks = false;
  // Scales of codes, chosen so that some values are above the largest code, and some below the least normal one.
  float k_scale() const { return dtype == DType::kF8E4M3 ? 0.0078f : 1.0f; }
  float v_scale() const { return dtype == DType::kF8E4M3 ? 13.0f : 1.0f; }
};

struct AttentionRow {
  int slot = 0;
  int begin = 0, end = 1;  // visible cache positions
  int id = 0;              // seed of its q
};

// As q and attention's output are.
inline float rounded(float x, DType dtype) {
  return attention_dtype(dtype) == DType::kBF16 ? to_float(to_bfloat16(x)) : x;
}

// As the cache keeps it.
inline double cached(float x, DType dtype, float scale) {
  if (dtype == DType::kF8E4M3) return double{to_float(to_float8_e4m3(x / scale))} * scale;
  return rounded(x, dtype);
}

inline void put(std::vector<std::byte>& to, size_t i, float x, DType kv) {
  const DType dtype = attention_dtype(kv);
  const BFloat16 half = to_bfloat16(x);
  std::memcpy(to.data() + i * dtype_size(dtype),
              dtype == DType::kF32 ? static_cast<const void*>(&x) : static_cast<const void*>(&half), dtype_size(dtype));
}

inline float element(const std::vector<std::byte>& bytes, size_t i, DType dtype) {
  if (dtype == DType::kF32) {
    float x;
    std::memcpy(&x, bytes.data() + i * 4, 4);
    return x;
  }
  BFloat16 x;
  std::memcpy(&x, bytes.data() + i * 2, 2);
  return to_float(x);
}

// Sequences with known K and V in pages of random order, and the same in plain arrays for the oracle. All arrays of the
// calls are the device's memory.
class AttentionWorld {
 public:
  AttentionWorld(Device& device, const AttentionShape& shape, const std::vector<int>& lengths, bool write_all = true,
                 int page_order = 7)
      : shape_(shape), lengths_(lengths), device_(device) {
    pages_per_slot_ = (longest() + shape.page_size - 1) / shape.page_size;
    const int pages = pages_per_slot_ * static_cast<int>(lengths.size());
    std::vector<int32_t> table(pages);
    for (int i = 0; i < pages; ++i) table[i] = i;
    std::shuffle(table.begin(), table.end(), std::mt19937(page_order));
    // A page that no sequence needs stays out of the pool.
    for (size_t slot = 0; slot < lengths.size(); ++slot) {
      const int used = (lengths[slot] + shape.page_size - 1) / shape.page_size;
      std::fill(table.begin() + slot * pages_per_slot_ + used, table.begin() + (slot + 1) * pages_per_slot_, -1);
    }
    page_table_ = std::make_unique<DeviceTensor>(device, table);
    const int64_t bytes = kv_layer_bytes(shape.page_size, shape.kv_heads, shape.head_dim, shape.dtype);
    const int64_t stride = bytes + 4096;  // another layer's
    // The bytes of a former owner: NaN in every element.
    memory_ = std::make_unique<DeviceTensor>(device, static_cast<size_t>(pages * stride));
    kv_ = {memory_->view(DType::kU8, {pages * stride}).as<std::byte>(),
           stride,
           shape.page_size,
           shape.kv_heads,
           shape.head_dim,
           shape.dtype,
           shape.k_scale(),
           shape.v_scale()};
    const size_t angles = static_cast<size_t>(pages_per_slot_) * shape.page_size * shape.head_dim / 2;
    std::vector<float> sinks;
    for (int h = 0; h < shape.heads; ++h) sinks.push_back(sink(h));
    sinks_ = std::make_unique<DeviceTensor>(device, sinks);
    cos_ = std::make_unique<DeviceTensor>(device, std::vector<float>(angles, 1.0f));
    sin_ = std::make_unique<DeviceTensor>(device, std::vector<float>(angles, 0.0f));
    const int64_t scratch =
        attention_scratch_bytes(1024, shape.heads, shape.head_dim, longest(), device.stream().threads());
    const int64_t widened = device.stream().threads() * made_tile_bytes(kv_);
    arena_ = std::make_unique<Arena>(std::move(device_.allocate(static_cast<size_t>(scratch + widened))).value());
    for (size_t slot = 0; write_all && slot < lengths.size(); ++slot) write(static_cast<int>(slot), 0, lengths[slot]);
  }

  // CUDA: how run() uses the GPU, none of which may change a result.
  struct Launch {
    int multiprocessors = 0;  // AttentionRows
    int blocks = 0;           // blocks of the grid, unless 0, instead of the plan's
    int calls = 1;            // one after the other
    bool whole = false;       // HeadShape
  };
  void set_launch(const Launch& launch) { launch_ = launch; }
  int last_blocks() const { return blocks_; }  // planned blocks of the last run()'s grid
  int last_items() const { return items_; }    // that its plan has on a GPU; of a run() without `replay`

  int longest() const { return *std::max_element(lengths_.begin(), lengths_.end()); }
  const AttentionShape& shape() const { return shape_; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

  // From sinks with hardly any weight to some that outweigh thousands of positions.
  static float sink(int head) { return static_cast<float>(head * 7 % 5) * 3.0f - 3.5f; }

  // K and V of a position: [kv_heads][head_dim] each, K first; a function of (slot, position) alone.
  std::vector<float> values(int slot, int position) const {
    std::mt19937 random(1000003u * slot + position + 1);
    std::normal_distribution<float> normal;
    std::vector<float> x(2 * shape_.kv_heads * shape_.head_dim);
    for (float& v : x) v = normal(random);
    return x;
  }

  // Writes positions [from, to) of a slot in one call.
  void write(int slot, int from, int to) {
    std::vector<float> qkv;
    std::vector<int32_t> positions;
    for (int p = from; p < to; ++p) {
      const auto x = values(slot, p);
      qkv.insert(qkv.end(), x.begin(), x.end());
      positions.push_back(p);
    }
    write_values(slot, positions, qkv);
  }

  void write_values(int slot, const std::vector<int32_t>& positions, const std::vector<float>& qkv) {
    with_write(slot, positions, qkv, [&](const Write& write) {
      write_qkv(device_.stream(), write.rows, write.rows.views[kWholeView], write.args);
      device_.synchronize();
    });
  }

  struct Write {
    Rows rows;
    QkvWrite args;
  };

  // Calls use(the Write), while it is valid.
  template <typename Use>
  void with_write(int slot, const std::vector<int32_t>& positions, const std::vector<float>& qkv, const Use& use) {
    RowSegment segment{0, static_cast<int32_t>(positions.size()), slot};
    const int64_t n = segment.rows;
    const DeviceTensor qkv_device(device_, qkv), positions_device(device_, positions);
    const DeviceTensor slots(device_, std::vector<int32_t>(positions.size(), slot));
    Write write;
    QkvWrite& args = write.args;
    args.qkv = qkv_device.view(DType::kF32, {n, 2 * shape_.kv_heads * shape_.head_dim});
    args.rope = {cos_->view(DType::kF32, {longest(), shape_.head_dim / 2}),
                 sin_->view(DType::kF32, {longest(), shape_.head_dim / 2})};
    args.kv = kv_;
    Rows& rows = write.rows;
    rows.rows = segment.rows;
    rows.slots = slots.view(DType::kI32, {n});
    rows.rope_positions = rows.cache_positions = positions_device.view(DType::kI32, {n});
    rows.segments = &segment;
    rows.n_segments = 1;
    rows.views[kWholeView].page_table = page_table();
    use(write);
  }

  std::vector<float> q_of(const AttentionRow& row, int head) const {
    std::mt19937 random(0x80000000u + 7919u * row.id + head);  // a seed that no position has: q is nobody's K
    std::normal_distribution<float> normal;
    std::vector<float> q(shape_.head_dim);
    for (float& v : q) v = rounded(normal(random), shape_.dtype);
    return q;
  }

  // Rows of the same slot must be neighbours. Returns out's bytes, row after row. `idle` adds segments without rows and
  // makes the bounds larger than they must be. With `replay`, as many rows of the same slots, the call is recorded for
  // `rows` and replayed for those, with the same arguments and other positions in the device's memory. With `writes`,
  // each of them and attention right after it, without waiting in between; the last result counts.
  std::vector<std::byte> run(const std::vector<AttentionRow>& rows, bool idle = false,
                             AttentionBackend backend = AttentionBackend::kAuto,
                             const std::vector<AttentionRow>* replay = nullptr, const std::vector<Write>& writes = {}) {
    const auto n = static_cast<int64_t>(rows.size());
    const int64_t width = shape_.heads * shape_.head_dim;
    const std::vector<std::byte> q = queries(rows);
    std::vector<int32_t> begin, end;
    std::vector<RowSegment> segments;
    if (idle) segments.push_back({0, 0, 0});
    int32_t max_rows = 0;
    for (int64_t i = 0; i < n; ++i) {
      begin.push_back(rows[i].begin);
      end.push_back(rows[i].end);
      if (segments.empty() || segments.back().rows == 0 || segments.back().slot != rows[i].slot) {
        segments.push_back({static_cast<int32_t>(i), 0, rows[i].slot});
      }
      max_rows = std::max(max_rows, ++segments.back().rows);
    }
    if (idle) segments.push_back({0, 0, -1});
    const DeviceTensor q_device(device_, q), out(device_, q.size()), begin_device(device_, begin),
        end_device(device_, end), segments_device(device_, segments);
    Rows batch;
    batch.rows = static_cast<int32_t>(n);
    RowView& view = batch.views[kWholeView];
    view = {begin_device.view(DType::kI32, {n}), end_device.view(DType::kI32, {n}), page_table()};
    // Rows with written positions see themselves last.
    std::vector<int32_t> last = end;
    for (int32_t& p : last) --p;
    const DeviceTensor last_device(device_, last);
    if (!writes.empty()) batch.cache_positions = last_device.view(DType::kI32, {n});
    batch.segments = static_cast<RowSegment*>(segments_device.view(DType::kU8, {1}).data);
    batch.n_segments = static_cast<int32_t>(segments.size());
    batch.max_segment_rows = idle ? 3 * max_rows + 5 : max_rows;
    batch.max_positions = idle ? 5 * longest() : longest();
    HeadShape heads = {shape_.heads, shape_.kv_heads, shape_.head_dim, shape_.dtype, backend};
    heads.multiprocessors = launch_.multiprocessors;
    heads.whole = launch_.whole;
    const int64_t work_bytes = measure_scratch(
        device_.stream(), [&](Arena& arena) { plan_attention(device_.stream(), batch, view, heads, arena); });
    Arena work_arena(std::move(device_.allocate(static_cast<size_t>(std::max<int64_t>(work_bytes, 1)))).value());
    Attention args;
    args.q = q_device.view(attention_dtype(shape_.dtype), {n, shape_.heads, shape_.head_dim});
    args.heads = shape_.heads;
    args.scale = scale();
    args.kv = kv_;
    if (shape_.sinks) args.sinks = sinks_->view(DType::kF32, {shape_.heads});
    args.out = out.view(attention_dtype(shape_.dtype), {n, width});
    const auto enqueue = [&] {
      args.work = plan_attention(device_.stream(), batch, view, heads, work_arena);
      blocks_ = args.work.blocks;
      if (launch_.blocks > 0) args.work.blocks = launch_.blocks;
      for (int call = 0; writes.empty() && call < launch_.calls; ++call) {
        attention(device_.stream(), batch, view, args, *arena_);
      }
      args.after_write = true;
      for (const Write& write : writes) {
        write_qkv(device_.stream(), write.rows, write.rows.views[kWholeView], write.args);
        attention(device_.stream(), batch, view, args, *arena_);
      }
    };
    if (replay == nullptr) {
      enqueue();
      auto result = out.read<std::byte>();
      if (args.work.lists != nullptr) device_.download(&items_, args.work.lists, sizeof(items_));  // WorkCounts::items
      return result;
    }
    const std::unique_ptr<StepGraph> graph = device_.record(enqueue);
    for (int64_t i = 0; i < n; ++i) {
      begin[i] = (*replay)[i].begin;
      end[i] = (*replay)[i].end;
    }
    device_.upload(view.begin.data, begin.data(), begin.size() * 4);
    device_.upload(view.end.data, end.data(), end.size() * 4);
    device_.upload(args.q.data, queries(*replay).data(), q.size());
    graph->launch();
    return out.read<std::byte>();
  }

 private:
  std::vector<std::byte> queries(const std::vector<AttentionRow>& rows) const {
    const size_t width = static_cast<size_t>(shape_.heads) * shape_.head_dim;
    std::vector<std::byte> q(rows.size() * width * dtype_size(attention_dtype(shape_.dtype)));
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int h = 0; h < shape_.heads; ++h) {
        const auto x = q_of(rows[i], h);
        for (int d = 0; d < shape_.head_dim; ++d) put(q, i * width + h * shape_.head_dim + d, x[d], shape_.dtype);
      }
    }
    return q;
  }
  TensorView page_table() const {
    return page_table_->view(DType::kI32, {static_cast<int64_t>(lengths_.size()), pages_per_slot_});
  }

  AttentionShape shape_;
  std::vector<int> lengths_;
  Device& device_;
  int pages_per_slot_ = 0;
  std::unique_ptr<DeviceTensor> page_table_, memory_, cos_, sin_, sinks_;
  KvLayer kv_;
  std::unique_ptr<Arena> arena_;
  Launch launch_;
  int blocks_ = 0;
  int32_t items_ = 0;
};

// The largest |out - oracle| / tolerance over all rows.
//
// Tolerance, bf16 (8 significant bits): probabilities and the output are rounded, relative error at most 2^-8 each. The
// sum is of the rounded probabilities, so that the first kind acts only on what distinguishes a V from the mean:
// 2^-8 (sum w|v - out| + |out|).
// Plus fp32 rounding of scores (about 5 in size) and sums, as in fp32: 2e-6 sum w|v|.
inline double worst_error(AttentionWorld& world, const std::vector<AttentionRow>& rows,
                          AttentionBackend backend = AttentionBackend::kAuto) {
  const AttentionShape& shape = world.shape();
  const auto out = world.run(rows, false, backend);
  const int group = shape.heads / shape.kv_heads;
  double worst = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<std::vector<float>> kv;
    for (int p = rows[r].begin; p < rows[r].end; ++p) kv.push_back(world.values(rows[r].slot, p));
    for (int h = 0; h < shape.heads; ++h) {
      const auto q = world.q_of(rows[r], h);
      const int k_at = h / group * shape.head_dim;
      const int v_at = (shape.kv_heads + h / group) * shape.head_dim;
      std::vector<double> w(kv.size());
      double sum = shape.sinks ? std::exp(double{world.sink(h)}) : 0.0;
      for (size_t p = 0; p < kv.size(); ++p) {
        double s = 0;
        for (int d = 0; d < shape.head_dim; ++d)
          s += double{q[d]} * cached(kv[p][k_at + d], shape.dtype, shape.k_scale());
        sum += w[p] = std::exp(s * world.scale());
      }
      for (int d = 0; d < shape.head_dim; ++d) {
        double mean = 0, magnitude = 0, spread = 0;
        for (size_t p = 0; p < kv.size(); ++p)
          mean += w[p] / sum * cached(kv[p][v_at + d], shape.dtype, shape.v_scale());
        for (size_t p = 0; p < kv.size(); ++p) {
          const double v = cached(kv[p][v_at + d], shape.dtype, shape.v_scale());
          magnitude += w[p] / sum * std::abs(v);
          spread += w[p] / sum * std::abs(v - mean);
        }
        double tolerance = 2e-6 * magnitude;
        if (attention_dtype(shape.dtype) == DType::kBF16) tolerance += std::ldexp(spread + std::abs(mean), -8);
        const size_t at = (r * shape.heads + h) * shape.head_dim + d;
        const double difference = std::abs(element(out, at, shape.dtype) - mean);
        const double error = difference == 0 ? 0 : difference / tolerance;  // a V of zero has no tolerance
        worst = std::isnan(error) ? 1e30 : std::max(worst, error);
      }
    }
  }
  return worst;
}

inline std::vector<AttentionRow> causal(int slot, int first, int n) {
  std::vector<AttentionRow> rows;
  for (int i = 0; i < n; ++i) rows.push_back({slot, 0, first + i + 1, 100 * slot + i});
  return rows;
}

// Rows [first, first + n) of a batch's bytes.
inline std::vector<std::byte> part(const std::vector<std::byte>& bytes, size_t rows, size_t first, size_t n) {
  const size_t stride = bytes.size() / rows;
  return {bytes.begin() + first * stride, bytes.begin() + (first + n) * stride};
}

// A decoding row, a causal block across a tile's end, a bidirectional block, sliding windows of both kinds.
inline std::vector<AttentionRow> mixed_rows() {
  std::vector<AttentionRow> rows = {{0, 0, 38, 1}};
  for (const AttentionRow& row : causal(1, 25, 9)) rows.push_back(row);
  for (int i = 0; i < 16; ++i) rows.push_back({2, 0, 77, 300 + i});
  for (int i = 0; i < 20; ++i) rows.push_back({3, 40 + i, 61 + i, 400 + i});
  for (int i = 0; i < 5; ++i) rows.push_back({4, 30 + i, 90, 500 + i});
  rows.push_back({5, 0, 1, 600});
  rows.push_back({6, 47, 48, 601});
  return rows;
}
inline const std::vector<int> kMixedLengths = {40, 40, 80, 90, 90, 1, 48};

inline std::string name_of(const AttentionShape& s) {
  return std::string(dtype_name(s.dtype)) + " head_dim " + std::to_string(s.head_dim) + " heads " +
         std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " page " + std::to_string(s.page_size) +
         (s.sinks ? " sinks" : "");
}

// By the type of K and V, and whether heads have sinks.
class AttentionByType : public testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  static DType dtype() { return std::get<DType>(GetParam()); }
  static AttentionShape shape(int head_dim, int heads, int kv_heads, int page_size) {
    return {dtype(), head_dim, heads, kv_heads, page_size, std::get<bool>(GetParam())};
  }
  // Scores far apart: the smallest probabilities vanish, and no value overflows. A sequence of 600 and 6 heads of 64.
  static void expect_finite(AttentionWorld& world) {
    for (int p : {3, 250, 599}) {
      auto x = world.values(0, p);
      for (float& v : x) v *= 300.0f;
      world.write_values(0, {p}, x);
    }
    for (const AttentionRow& row : {AttentionRow{0, 0, 600, 1}, {0, 0, 200, 2}, {0, 251, 599, 3}}) {
      const auto out = world.run({row});
      for (int i = 0; i < 6 * 64; ++i) EXPECT_TRUE(std::isfinite(element(out, i, dtype()))) << i;
    }
  }
};
inline const auto kAttentionTypes =
    testing::Combine(testing::Values(DType::kBF16, DType::kF32, DType::kF8E4M3), testing::Bool());
inline std::string name_of_types(const testing::TestParamInfo<std::tuple<DType, bool>>& info) {
  return std::string(dtype_name(std::get<DType>(info.param))) + (std::get<bool>(info.param) ? "_sinks" : "");
}

}  // namespace volley::ops

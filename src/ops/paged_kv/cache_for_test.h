// Shared by the tests of write_qkv on every device: pages, batches of rows, and the fp64 oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "ops/device_for_test.h"
#include "ops/paged_kv/paged_kv.h"

namespace volley::ops {

// Where element `element` of K or V of a position lies, in bytes from the layer's block in the page.
using KvElementBytes = int64_t (*)(const KvLayer& kv, int head, bool is_v, int in_page, int element);

struct CacheConfig {
  DType dtype = DType::kBF16;
  int head_dim = 64;
  int heads = 6;  // 0: K and V alone
  int kv_heads = 2;
  int page_size = 16;
  bool norm = true;
  int layers = 1;  // more than one with heads == 0
  bool bias = false;
  bool v_norm = false, v_from_k = false;
  float k_scale = 1, v_scale = 1;
  int narrow_dim = 0;
  int foreign_heads = 0;  // padding before and after a row of qkv: NaN, which must not be read
};

inline constexpr int kSlots = 3;
inline constexpr int kMaxPositions = 192;
inline constexpr float kEps = 1e-6f;
inline constexpr int kRopeShift = 5;  // RoPE position = cache position + this: the two are different numbers

// One write: rows of slots at positions, in order.
struct Piece {
  int slot, from, to;
};

class TestCache {
 public:
  TestCache(Device& device, const CacheConfig& config, KvElementBytes element_bytes)
      : config_(config), device_(device), element_bytes_(element_bytes) {
    const int pages_per_slot = kMaxPositions / config.page_size;
    for (int i = 0; i < kSlots * pages_per_slot; ++i) page_table_.push_back(i);
    std::shuffle(page_table_.begin(), page_table_.end(), std::mt19937(3));
    const int64_t layer = kv_layer_bytes(config.page_size, config.kv_heads, config.head_dim, config.dtype);
    const int64_t stride = (config.layers + 2) * layer;  // behind one layer, and before one
    // NaN, in either dtype
    memory_ = std::make_unique<DeviceTensor>(device, page_table_.size() * static_cast<size_t>(stride));
    kv_ = {memory_->view(DType::kU8, {1}).as<std::byte>() + layer,
           stride,
           config.page_size,
           config.kv_heads,
           config.head_dim,
           config.dtype,
           config.k_scale,
           config.v_scale};
    const int half = config.head_dim / 2;
    for (int p = 0; p < kMaxPositions + kRopeShift; ++p) {
      for (int i = 0; i < half; ++i) {
        const double angle = p * std::pow(10000.0, -static_cast<double>(i) / half);
        cos_.push_back(static_cast<float>(std::cos(angle)));
        sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    std::mt19937 random(11);
    std::uniform_real_distribution<float> weight(0.5f, 1.5f);
    for (int i = 0; i < config.head_dim; ++i) q_norm_.push_back(weight(random));
    for (int i = 0; i < config.layers * config.head_dim; ++i) k_norm_.push_back(weight(random));
    for (int i = 0; config.bias && i < width(); ++i) bias_.push_back(weight(random) - 1);
  }

  int source_dim() const { return config_.narrow_dim > 0 ? config_.narrow_dim : config_.head_dim; }
  int width() const { return (config_.heads + config_.layers * sources() * config_.kv_heads) * source_dim(); }
  int sources() const { return config_.v_from_k ? 1 : 2; }  // heads of qkv for each KV head

  // The row of qkv for a position; the same for every config with the same sizes.
  std::vector<float> input(int slot, int position) const {
    if (fill_) return std::vector<float>(width(), *fill_);
    std::mt19937 random(1009 * slot + position);
    std::normal_distribution<float> normal;
    std::vector<float> x(width());
    for (float& v : x) v = normal(random);
    return x;
  }

  // The same row with heads of head_dim.
  std::vector<float> widened(const std::vector<float>& row) const {
    const size_t from = source_dim(), to = config_.head_dim;
    std::vector<float> wide(row.size() / from * to);
    for (size_t i = 0; i < row.size(); ++i) {
      wide[i / from * to + i % from + (i % from < from / 2 ? 0 : (to - from) / 2)] = row[i];
    }
    return wide;
  }

  void fill_input(float x) { fill_ = x; }

  // Returns q_out's bytes.
  std::vector<std::byte> write(const std::vector<Piece>& pieces) {
    std::vector<float> qkv;
    std::vector<int32_t> cache, rope, slots;
    std::vector<RowSegment> segments;
    for (const Piece& piece : pieces) {
      segments.push_back({static_cast<int32_t>(cache.size()), piece.to - piece.from, piece.slot});
      for (int p = piece.from; p < piece.to; ++p) {
        const auto x = input(piece.slot, p);
        const std::vector<float> foreign(static_cast<size_t>(config_.foreign_heads * config_.head_dim), NAN);
        for (const auto* part : {&foreign, &x, &foreign}) qkv.insert(qkv.end(), part->begin(), part->end());
        cache.push_back(p);
        rope.push_back(p + kRopeShift);
        slots.push_back(piece.slot);
      }
    }
    const auto rows = static_cast<int64_t>(cache.size());
    const int64_t half = config_.head_dim / 2;
    const DType q_dtype = attention_dtype(config_.dtype);
    const size_t q_bytes = rows * config_.heads * config_.head_dim * dtype_size(q_dtype);
    const DeviceTensor qkv_device(device_, qkv), cache_device(device_, cache), rope_device(device_, rope),
        slots_device(device_, slots), table(device_, page_table_), cos(device_, cos_), sin(device_, sin_),
        q_norm(device_, q_norm_), k_norm(device_, k_norm_), bias(device_, bias_.empty() ? q_norm_ : bias_),
        q(device_, std::max<size_t>(q_bytes, 1));
    QkvWrite args;
    const int64_t foreign = int64_t{config_.foreign_heads} * config_.head_dim;
    args.qkv = qkv_device.view(DType::kF32, {rows, width() + 2 * foreign});
    args.qkv.data = args.qkv.as<float>() + foreign;
    args.heads = config_.heads;
    args.layers = config_.layers;
    args.narrow_dim = config_.narrow_dim;
    if (config_.norm) {
      args.q_norm = q_norm.view(DType::kF32, {config_.head_dim});
      args.k_norm = k_norm.view(DType::kF32, {config_.layers * config_.head_dim});
    }
    if (config_.bias) args.bias = bias.view(DType::kF32, {width()});
    args.v_norm = config_.v_norm;
    args.v_from_k = config_.v_from_k;
    args.eps = kEps;
    args.rope = {cos.view(DType::kF32, {kMaxPositions + kRopeShift, half}),
                 sin.view(DType::kF32, {kMaxPositions + kRopeShift, half})};
    args.kv = kv_;
    if (config_.heads > 0) args.q_out = q.view(q_dtype, {rows, config_.heads, config_.head_dim});
    Rows batch;
    batch.rows = static_cast<int32_t>(rows);
    batch.slots = slots_device.view(DType::kI32, {rows});
    batch.rope_positions = rope_device.view(DType::kI32, {rows});
    batch.cache_positions = cache_device.view(DType::kI32, {rows});
    batch.segments = segments.data();
    batch.n_segments = static_cast<int32_t>(segments.size());
    RowView view;
    view.page_table = table.view(DType::kI32, {kSlots, kMaxPositions / config_.page_size});
    write_qkv(device_.stream(), batch, view, args);
    snapshot_ = memory_->read<std::byte>();
    if (q_bytes == 0) return {};
    return q.read<std::byte>();
  }

  // Element i of K or V of a KV head at a position, as the last write left it. `head`: the first layer's heads, then
  // the next layer's, and so on.
  float stored(bool is_v, int slot, int position, int head, int i) const {
    const int64_t next = kv_layer_bytes(kv_.page_size, kv_.kv_heads, kv_.head_dim, kv_.dtype);
    const int64_t page = page_table_[slot * (kMaxPositions / config_.page_size) + position / config_.page_size];
    const int64_t layer = kv_.base - memory_->view(DType::kU8, {1}).as<std::byte>() + head / config_.kv_heads * next;
    const int64_t at = page * kv_.page_stride + layer +
                       element_bytes_(kv_, head % config_.kv_heads, is_v, position % config_.page_size, i);
    if (config_.dtype == DType::kF32) {
      float x;
      std::memcpy(&x, &snapshot_[at], 4);
      return x;
    }
    if (config_.dtype == DType::kF8E4M3) {
      return to_float(Float8E4M3{static_cast<uint8_t>(snapshot_[at])}) * (is_v ? config_.v_scale : config_.k_scale);
    }
    BFloat16 x;
    std::memcpy(&x, &snapshot_[at], 2);
    return to_float(x);
  }

  // All of K and V of a slot's first `n` positions.
  std::vector<float> dump(int slot, int n) const {
    std::vector<float> all;
    for (int p = 0; p < n; ++p) {
      for (int h = 0; h < config_.kv_heads; ++h) {
        for (int i = 0; i < config_.head_dim; ++i) {
          all.push_back(stored(false, slot, p, h, i));
          all.push_back(stored(true, slot, p, h, i));
        }
      }
    }
    return all;
  }

  // Bytes of elements whose bytes are no longer all 0xff, in all pages and layers.
  int64_t touched() const {
    const size_t size = dtype_size(config_.dtype);
    int64_t bytes = 0;
    for (size_t at = 0; at < snapshot_.size(); at += size) {
      const auto from = snapshot_.begin() + static_cast<std::ptrdiff_t>(at);
      if (std::any_of(from, from + static_cast<std::ptrdiff_t>(size),
                      [](std::byte b) { return b != std::byte{0xff}; })) {
        bytes += static_cast<int64_t>(size);
      }
    }
    return bytes;
  }

  // fp64: y = RoPE(RMSNorm(x)).
  std::vector<double> expected(const float* x, const float* norm, int position) const {
    const int n = config_.head_dim;
    std::vector<double> y(x, x + n);
    double squares = 0;
    for (double v : y) squares += v * v;
    for (int i = 0; config_.norm && i < n; ++i) y[i] *= norm[i] / std::sqrt(squares / n + kEps);
    std::vector<double> out(n);
    for (int i = 0; i < n / 2; ++i) {
      const double c = cos_[(position + kRopeShift) * (n / 2) + i];
      const double s = sin_[(position + kRopeShift) * (n / 2) + i];
      out[i] = y[i] * c - y[i + n / 2] * s;
      out[i + n / 2] = y[i + n / 2] * c + y[i] * s;
    }
    return out;
  }

  // Largest error of a head over its tolerance: rounding to bf16 is 2^-8 of the value, to e4m3 2^-4 of it or half a
  // step of 2^-9; fp32 arithmetic on values of a few units 1e-6.
  double worst(const std::vector<double>& expected, const auto& actual, DType dtype, double scale = 1) const {
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      double wanted = expected[i], tolerance = 1e-6;
      if (dtype == DType::kBF16) tolerance += std::abs(wanted) / 256;
      if (dtype == DType::kF8E4M3) {
        wanted = std::clamp(wanted, -kMaxFloat8E4M3 * scale, kMaxFloat8E4M3 * scale);
        tolerance += std::max(std::abs(wanted) / 16, scale / 1024);
      }
      worst = std::max(worst, std::abs(actual(static_cast<int>(i)) - wanted) / tolerance);
    }
    return worst;
  }

  const std::vector<float>& q_norm() const { return q_norm_; }
  const std::vector<float>& k_norm() const { return k_norm_; }
  const std::vector<float>& bias() const { return bias_; }  // empty: none

 private:
  CacheConfig config_;
  Device& device_;
  KvElementBytes element_bytes_;
  std::vector<int32_t> page_table_;
  std::optional<float> fill_;  // every input element, instead of random ones
  std::unique_ptr<DeviceTensor> memory_;
  std::vector<std::byte> snapshot_;
  KvLayer kv_;
  std::vector<float> cos_, sin_, q_norm_, k_norm_, bias_;
};

// Segments that begin in the middle of a tile, end in one, and cross pages.
inline const std::vector<Piece> kPieces = {{0, 0, 21}, {2, 0, 5}, {1, 0, 64}};
inline const std::vector<Piece> kMorePieces = {{2, 5, 40}, {0, 21, 22}};

inline void expect_oracle(TestCache& cache, const CacheConfig& config) {
  const int d = config.head_dim;
  for (const auto& pieces : {kPieces, kMorePieces}) {
    const auto q = cache.write(pieces);
    size_t row = 0;
    for (const Piece& piece : pieces) {
      for (int p = piece.from; p < piece.to; ++p, ++row) {
        auto x = cache.input(piece.slot, p);
        for (size_t i = 0; i < cache.bias().size(); ++i) x[i] += cache.bias()[i];
        x = cache.widened(x);
        for (int h = 0; h < config.heads; ++h) {
          const size_t at = (row * config.heads + h) * d;
          ASSERT_LE(cache.worst(
                        cache.expected(&x[h * d], cache.q_norm().data(), p),
                        [&](int i) {
                          return config.dtype == DType::kF32
                                     ? reinterpret_cast<const float*>(q.data())[at + i]
                                     : to_float(reinterpret_cast<const BFloat16*>(q.data())[at + i]);
                        },
                        attention_dtype(config.dtype)),
                    1.0)
              << "q, row " << row;
        }
        for (int h = 0; h < config.layers * config.kv_heads; ++h) {
          const int layer = h / config.kv_heads;
          const float* k = &x[(config.heads + layer * (cache.sources() - 1) * config.kv_heads + h) * d];
          std::vector<float> v(k, k + d);
          if (!config.v_from_k) v.assign(k + config.kv_heads * d, k + (config.kv_heads + 1) * d);
          ASSERT_LE(cache.worst(
                        cache.expected(k, &cache.k_norm()[layer * d], p),
                        [&](int i) { return cache.stored(false, piece.slot, p, h, i); }, config.dtype, config.k_scale),
                    1.0)
              << "k at " << p;
          if (config.v_norm) {
            double squares = 0;
            for (const double value : v) squares += value * value;
            const double inverse = 1 / std::sqrt(squares / d + kEps);
            const auto at = [&](int i) { return cache.stored(true, piece.slot, p, h, i); };
            ASSERT_LE(cache.worst(
                          std::vector<double>(v.begin(), v.end()), [&](int i) { return at(i) / inverse; }, config.dtype,
                          config.v_scale / inverse),
                      1.0)
                << "v at " << p;
            continue;
          }
          for (int i = 0; i < d; ++i) {
            float want = config.dtype == DType::kF32 ? v[i] : to_float(to_bfloat16(v[i]));
            if (config.dtype == DType::kF8E4M3) {
              want = to_float(to_float8_e4m3(v[i] / config.v_scale)) * config.v_scale;
            }
            ASSERT_EQ(cache.stored(true, piece.slot, p, h, i), want) << "v at " << p;
          }
        }
      }
    }
  }
}

}  // namespace volley::ops

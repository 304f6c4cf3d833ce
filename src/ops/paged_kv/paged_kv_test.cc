#include "ops/paged_kv/paged_kv.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "ops/paged_kv/cpu_tile.h"

namespace volley::ops {
namespace {

struct Config {
  DType dtype = DType::kBF16;
  int head_dim = 64;
  int heads = 6;  // 0: K and V alone
  int kv_heads = 2;
  int page_size = 16;
  bool norm = true;
  int threads = 2;
};

constexpr int kSlots = 3;
constexpr int kMaxPositions = 192;
constexpr float kEps = 1e-6f;
constexpr int kRopeShift = 5;  // RoPE position = cache position + this: the two are different numbers

// One write: rows of slots at positions, in order.
struct Piece {
  int slot, from, to;
};

class Cache {
 public:
  explicit Cache(const Config& config) : config_(config), device_(*make_cpu_device(config.threads)) {
    const int pages_per_slot = kMaxPositions / config.page_size;
    for (int i = 0; i < kSlots * pages_per_slot; ++i) page_table_.push_back(i);
    std::shuffle(page_table_.begin(), page_table_.end(), std::mt19937(3));
    const int64_t layer = kv_layer_bytes(config.page_size, config.kv_heads, config.head_dim, config.dtype);
    const int64_t stride = 3 * layer;  // the middle one of three layers
    memory_ = std::move(device_->allocate(page_table_.size() * static_cast<size_t>(stride))).value();
    std::memset(memory_.data(), 0xff, memory_.bytes());  // NaN, in either dtype
    kv_ = {bytes() + layer, stride, config.page_size, config.kv_heads, config.head_dim, config.dtype};
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
    for (int i = 0; i < config.head_dim; ++i) {
      q_norm_.push_back(weight(random));
      k_norm_.push_back(weight(random));
    }
  }

  int width() const { return (config_.heads + 2 * config_.kv_heads) * config_.head_dim; }

  // The row of qkv for a position; the same for every config with the same sizes.
  std::vector<float> input(int slot, int position) const {
    if (fill_) return std::vector<float>(width(), *fill_);
    std::mt19937 random(1009 * slot + position);
    std::normal_distribution<float> normal;
    std::vector<float> x(width());
    for (float& v : x) v = normal(random);
    return x;
  }

  void fill_input(float x) { fill_ = x; }

  // Returns q_out's bytes.
  std::vector<std::byte> write(const std::vector<Piece>& pieces) {
    std::vector<float> qkv;
    std::vector<int32_t> cache, rope;
    std::vector<RowSegment> segments;
    for (const Piece& piece : pieces) {
      segments.push_back({static_cast<int32_t>(cache.size()), piece.to - piece.from, piece.slot});
      for (int p = piece.from; p < piece.to; ++p) {
        const auto x = input(piece.slot, p);
        qkv.insert(qkv.end(), x.begin(), x.end());
        cache.push_back(p);
        rope.push_back(p + kRopeShift);
      }
    }
    const auto rows = static_cast<int64_t>(cache.size());
    std::vector<std::byte> q(rows * config_.heads * config_.head_dim * dtype_size(config_.dtype));
    const int half = config_.head_dim / 2;
    QkvWrite args;
    args.qkv = TensorView(qkv.data(), DType::kF32, {rows, width()});
    args.heads = config_.heads;
    if (config_.norm) {
      args.q_norm = TensorView(q_norm_.data(), DType::kF32, {config_.head_dim});
      args.k_norm = TensorView(k_norm_.data(), DType::kF32, {config_.head_dim});
    }
    args.eps = kEps;
    args.rope = {TensorView(cos_.data(), DType::kF32, {kMaxPositions + kRopeShift, half}),
                 TensorView(sin_.data(), DType::kF32, {kMaxPositions + kRopeShift, half})};
    args.rope_positions = TensorView(rope.data(), DType::kI32, {rows});
    args.cache_positions = TensorView(cache.data(), DType::kI32, {rows});
    args.page_table = TensorView(page_table_.data(), DType::kI32, {kSlots, kMaxPositions / config_.page_size});
    args.segments = segments.data();
    args.n_segments = static_cast<int32_t>(segments.size());
    args.kv = kv_;
    if (config_.heads > 0) args.q_out = TensorView(q.data(), config_.dtype, {rows, config_.heads, config_.head_dim});
    write_qkv(device_->stream(), args);
    return q;
  }

  // Element i of K or V of a KV head at a position, read by the layout that cpu_tile.h states.
  float stored(bool is_v, int slot, int position, int head, int i) const {
    const int page = page_table_[slot * (kMaxPositions / config_.page_size) + position / config_.page_size];
    const HeadTiles tiles = kv_head_tiles(kv_, page, head);
    const std::byte* tile = (is_v ? tiles.v : tiles.k) + position % config_.page_size / kKvTile * kv_tile_bytes(kv_);
    const int p = position % kKvTile;
    if (config_.dtype == DType::kF32) {
      return reinterpret_cast<const float*>(tile)[is_v ? p * config_.head_dim + i : i * kKvTile + p];
    }
    const auto* x = reinterpret_cast<const BFloat16*>(tile);
    return to_float(is_v ? x[(p / 2 * config_.head_dim + i) * 2 + p % 2] : x[(i / 2 * kKvTile + p) * 2 + i % 2]);
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

  // Bytes that are no longer 0xff, in all pages and layers.
  int64_t touched() const {
    return static_cast<int64_t>(memory_.bytes()) - std::count(bytes(), bytes() + memory_.bytes(), std::byte{0xff});
  }

  // fp64: y = RoPE(RMSNorm(x)).
  std::vector<double> expected(const float* x, const std::vector<float>& norm, int position) const {
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

  // Largest error of a head over its tolerance: rounding to bf16 is 2^-8 of the value; fp32 arithmetic on values of a
  // few units 1e-6.
  double worst(const std::vector<double>& expected, const auto& actual) const {
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double tolerance = 1e-6 + (config_.dtype == DType::kBF16 ? std::abs(expected[i]) / 256 : 0);
      worst = std::max(worst, std::abs(actual(static_cast<int>(i)) - expected[i]) / tolerance);
    }
    return worst;
  }

  const std::vector<float>& q_norm() const { return q_norm_; }
  const std::vector<float>& k_norm() const { return k_norm_; }

 private:
  std::byte* bytes() const { return static_cast<std::byte*>(memory_.data()); }

  Config config_;
  std::unique_ptr<Device> device_;
  std::vector<int32_t> page_table_;
  std::optional<float> fill_;  // every input element, instead of random ones
  Buffer memory_;
  KvLayer kv_;
  std::vector<float> cos_, sin_, q_norm_, k_norm_;
};

// Segments that begin in the middle of a tile, end in one, and cross pages.
const std::vector<Piece> kPieces = {{0, 0, 21}, {2, 0, 5}, {1, 0, 64}};
const std::vector<Piece> kMorePieces = {{2, 5, 40}, {0, 21, 22}};

void expect_oracle(const Config& config) {
  Cache cache(config);
  const int d = config.head_dim;
  for (const auto& pieces : {kPieces, kMorePieces}) {
    const auto q = cache.write(pieces);
    size_t row = 0;
    for (const Piece& piece : pieces) {
      for (int p = piece.from; p < piece.to; ++p, ++row) {
        const auto x = cache.input(piece.slot, p);
        for (int h = 0; h < config.heads; ++h) {
          const size_t at = (row * config.heads + h) * d;
          ASSERT_LE(cache.worst(cache.expected(&x[h * d], cache.q_norm(), p),
                                [&](int i) {
                                  return config.dtype == DType::kF32
                                             ? reinterpret_cast<const float*>(q.data())[at + i]
                                             : to_float(reinterpret_cast<const BFloat16*>(q.data())[at + i]);
                                }),
                    1.0)
              << "q, row " << row;
        }
        for (int h = 0; h < config.kv_heads; ++h) {
          const float* k = &x[(config.heads + h) * d];
          const float* v = &x[(config.heads + config.kv_heads + h) * d];
          ASSERT_LE(cache.worst(cache.expected(k, cache.k_norm(), p),
                                [&](int i) { return cache.stored(false, piece.slot, p, h, i); }),
                    1.0)
              << "k at " << p;
          for (int i = 0; i < d; ++i) {
            const float want = config.dtype == DType::kF32 ? v[i] : to_float(to_bfloat16(v[i]));
            ASSERT_EQ(cache.stored(true, piece.slot, p, h, i), want) << "v at " << p;
          }
        }
      }
    }
  }
}

TEST(WriteQkv, MatchesTheOracle) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (int head_dim : {16, 32, 64, 80, 128, 256}) {
      for (bool norm : {true, false}) expect_oracle({.dtype = dtype, .head_dim = head_dim, .norm = norm});
    }
    expect_oracle({.dtype = dtype, .heads = 0});
    expect_oracle({.dtype = dtype, .heads = 8, .kv_heads = 1, .page_size = 64});
    expect_oracle({.dtype = dtype, .heads = 3, .kv_heads = 3, .page_size = 48});
  }
}

TEST(WriteQkv, MatchesTheOracleOnEveryInstructionSet) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    expect_oracle({.dtype = DType::kBF16});
    expect_oracle({.dtype = DType::kF32, .head_dim = 80});
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// The same bits however a prefix was cut into writes, on any number of threads and page size.
TEST(WriteQkv, PiecesThreadsAndPagesChangeNothing) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    Cache whole({.dtype = dtype});
    const auto q = whole.write({{1, 0, 100}});
    const size_t q_row = q.size() / 100;
    for (int piece : {1, 3, 16, 30}) {
      for (int threads : {1, 3}) {
        Cache cut({.dtype = dtype, .page_size = piece == 3 ? 64 : 16, .threads = threads});
        for (int p = 0; p < 100; p += piece) {
          const int end = std::min(100, p + piece);
          const auto part = cut.write({{0, p, end}, {1, p, end}});
          EXPECT_EQ(std::memcmp(part.data() + part.size() / 2, q.data() + p * q_row, part.size() / 2), 0);
        }
        EXPECT_EQ(cut.dump(1, 100), whole.dump(1, 100)) << piece;
      }
    }
  }
}

// A reused page holds its former owner's bytes. Beginning a tile clears the rest of it; continuing one keeps what the
// sequence wrote; nothing else (other tiles, other layers) is touched.
TEST(WriteQkv, ClearsATileWhenItBegins) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    const Config config{.dtype = dtype, .heads = 0, .page_size = 32};
    Cache cache(config);
    cache.write({{0, 0, 5}});
    for (int p = 5; p < kKvTile; ++p) {
      EXPECT_EQ(cache.stored(false, 0, p, 1, 7), 0.0f);
      EXPECT_EQ(cache.stored(true, 0, p, 1, 7), 0.0f);
    }
    EXPECT_TRUE(std::isnan(cache.stored(false, 0, kKvTile, 1, 7)));
    EXPECT_TRUE(std::isnan(cache.stored(true, 0, kKvTile, 0, 0)));
    const int64_t tile_bytes = int64_t{kKvTile} * config.head_dim * static_cast<int64_t>(dtype_size(dtype));
    EXPECT_LE(cache.touched(), 2 * config.kv_heads * tile_bytes);

    const auto before = cache.dump(0, 5);
    cache.write({{0, 5, 9}});
    EXPECT_EQ(cache.dump(0, 5), before);
    cache.write({{0, 3, 4}});  // a rejected token's position, written again
    EXPECT_EQ(cache.dump(0, 5), before);
    EXPECT_EQ(cache.stored(true, 0, 12, 0, 0), 0.0f);
  }
}

// A NaN whose mantissa would overflow when rounded must not become a zero, on any instruction set.
TEST(WriteQkv, KeepsNaN) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
      Cache cache({.heads = 0, .norm = false});
      cache.fill_input(std::bit_cast<float>(bits));
      cache.write({{0, 0, 2}});
      EXPECT_TRUE(std::isnan(cache.stored(false, 0, 1, 1, 3))) << hwy::TargetName(target) << " " << bits;
      EXPECT_TRUE(std::isnan(cache.stored(true, 0, 1, 1, 3))) << hwy::TargetName(target) << " " << bits;
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(WriteQkv, RefusesWhatWouldHitAnothersPage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Cache({.threads = 1}).write({{0, kMaxPositions - 1, kMaxPositions + 1}}), "CHECK failed");
  EXPECT_DEATH(Cache({.threads = 1}).write({{kSlots, 0, 1}}), "CHECK failed");
}

}  // namespace
}  // namespace volley::ops

// Protects: products of heads, and attention over written latents, against fp64 oracles; that a row's bits depend only
// on its own input and on the positions that it sees, not on pages, pieces, threads, chunks or other rows; that what a
// row does not see cannot reach it.
#include "ops/latent/latent.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "device/arena.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_plan.h"
#include "ops/device_for_test.h"
#include "ops/grouped_linear/grouped_linear_testing.h"

namespace volley::ops {
namespace {

#ifdef VOLLEY_OPS_TEST_CUDA
constexpr bool kOnGpu = true;
#else
constexpr bool kOnGpu = false;
#endif

std::shared_ptr<Device> device_under_test(int threads) {
  if (!kOnGpu) return *make_cpu_device(threads);
  static const std::shared_ptr<Device> gpu = std::move(make_cuda_device(0)).value();
  return gpu;
}
#define GPU_OR_SKIP()                        \
  if (kOnGpu && !make_cuda_device(0).ok()) { \
    GTEST_SKIP() << "needs a GPU";           \
  }

std::vector<float> random_values(uint32_t seed, int64_t n) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = normal(random);
  return values;
}

float as(DType dtype, float x) {
  return dtype == DType::kBF16 ? to_float(to_bfloat16(x)) : x;
}

// Values of one dtype, here and on the device.
struct Values {
  Values(Device& device, DType dtype, const std::vector<float>& from)
      : device(device), dtype(dtype), bytes(from.size() * dtype_size(dtype)) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (dtype == DType::kF32) {
        reinterpret_cast<float*>(bytes.data())[i] = from[i];
      } else {
        reinterpret_cast<BFloat16*>(bytes.data())[i] = to_bfloat16(from[i]);
      }
    }
    there = std::move(device.allocate(bytes.size())).value();
    device.upload(there.data(), bytes.data(), bytes.size());
  }
  const std::vector<std::byte>& read() {
    device.download(bytes.data(), there.data(), bytes.size());
    return bytes;
  }
  float at(int64_t i) const {
    return dtype == DType::kF32 ? reinterpret_cast<const float*>(bytes.data())[i]
                                : to_float(reinterpret_cast<const BFloat16*>(bytes.data())[i]);
  }
  TensorView view(std::initializer_list<int64_t> dims) { return there.view(dtype, dims); }
  Device& device;
  DType dtype;
  std::vector<std::byte> bytes;
  Buffer there;
};

struct Product {
  int64_t heads, rows, k, n, more_x, more_y;
};

// Sums in fp32 of products of bf16 or fp32: relative to the sum of magnitudes.
TEST(HeadLinear, MatchesTheOracle) {
  GPU_OR_SKIP();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int threads : {1, 3}) {
      const auto device = device_under_test(threads);
      for (const Product& p : {Product{1, 1, 16, 16, 0, 0},
                               {3, 5, 24, 32, 8, 16},
                               {5, 40, 33, 7, 0, 3},
                               {4, 2, 512, 128, 64, 0},
                               {2, 300, 64, 72, 8, 64}}) {
        const std::vector<float> weights = random_values(3, p.heads * p.n * p.k);
        std::vector<WeightRows> parts;
        for (int64_t h = 0; h < p.heads; ++h) parts.push_back({weights.data() + h * p.n * p.k, DType::kF32, p.n});
        const auto w = pack_experts(*device, parts, p.heads, p.k, dtype, LinearLayout::kPlain);
        ASSERT_TRUE(w.ok());
        const int64_t wide_x = p.k + p.more_x, wide_y = p.n + p.more_y;
        Values x(*device, dtype, random_values(5, p.rows * p.heads * wide_x));
        Values y(*device, dtype, std::vector<float>(static_cast<size_t>(p.rows * p.heads * wide_y), 7.0f));
        head_linear(device->stream(), *w, x.view({p.rows, p.heads, wide_x}), y.view({p.rows, p.heads, wide_y}));
        y.read();
        for (int64_t i = 0; i < p.rows * p.heads; ++i) {
          for (int64_t j = 0; j < wide_y; ++j) {
            if (j >= p.n) {
              EXPECT_EQ(y.at(i * wide_y + j), 7.0f);
              continue;
            }
            double sum = 0, magnitude = 0;
            for (int64_t c = 0; c < p.k; ++c) {
              const double product =
                  double{x.at(i * wide_x + c)} * as(dtype, weights[(i % p.heads * p.n + j) * p.k + c]);
              sum += product;
              magnitude += std::abs(product);
            }
            const double tolerance = 1e-6 * magnitude + (dtype == DType::kBF16 ? std::ldexp(std::abs(sum), -8) : 0.0);
            ASSERT_NEAR(y.at(i * wide_y + j), sum, tolerance) << p.n << "x" << p.k << " row " << i << ", " << j;
          }
        }
        // A row alone has the same bits.
        Values alone(*device, dtype, std::vector<float>(static_cast<size_t>(p.heads * wide_y), 7.0f));
        head_linear(device->stream(), *w, x.view({p.rows, p.heads, wide_x}).rows(p.rows - 1, 1),
                    alone.view({1, p.heads, wide_y}));
        alone.read();
        EXPECT_EQ(
            std::memcmp(alone.bytes.data(), y.bytes.data() + y.bytes.size() - alone.bytes.size(), alone.bytes.size()),
            0);
      }
    }
  }
}

// A checkpoint's FP8 blocks stay codes where they lie along whole heads, as DeepSeek-V3's do.
TEST(HeadLinear, MatchesTheOracleOnCodes) {
  GPU_OR_SKIP();
  const auto device = device_under_test(3);
  for (const WeightFormat& format :
       {kFp8Weights, WeightFormat(DType::kF8E4M3, 1, 64), WeightFormat(DType::kI4, 1, 32)}) {
    for (const Product& p :
         {Product{4, 1, 512, 128, 64, 0}, {3, 5, 128, 192, 0, 64}, {2, 40, 256, 72, 8, 3}, {2, 300, 128, 64, 64, 0}}) {
      SCOPED_TRACE(format_name(format) + ", " + std::to_string(p.rows) + " rows");
      ExpertWeights shape;
      shape.experts = p.heads, shape.n = p.n, shape.k = p.k, shape.format = format;
      const int64_t wide_x = p.k + p.more_x, wide_y = p.n + p.more_y;
      Values x(*device, DType::kBF16, random_values(5, p.rows * p.heads * wide_x));
      const auto product = [&](const WeightFormat& stored) {
        const std::vector<WeightRows> parts = coded_parts(shape, stored == DType::kBF16);
        const auto w = pack_experts(*device, parts, p.heads, p.k, stored, LinearLayout::kPlain);
        EXPECT_TRUE(w.ok());
        Values y(*device, DType::kBF16, std::vector<float>(static_cast<size_t>(p.rows * p.heads * wide_y), 7.0f));
        head_linear(device->stream(), *w, x.view({p.rows, p.heads, wide_x}), y.view({p.rows, p.heads, wide_y}));
        y.read();
        return y;
      };
      const Values y = product(format);
      if (kOnGpu) {
        EXPECT_EQ(y.bytes, product(DType::kBF16).bytes);
      }
      const std::vector<WeightRows> values = coded_parts(shape, true);
      std::vector<float> w(static_cast<size_t>(p.k));
      for (int64_t h = 0; h < p.heads; ++h) {
        for (int64_t j = 0; j < p.n; ++j) {
          values[h].values(j, w.data());
          for (int64_t r = 0; r < p.rows; ++r) {
            const int64_t row = r * p.heads + h;
            double sum = 0, magnitude = 0;
            for (int64_t c = 0; c < p.k; ++c) {
              const double product = double{x.at(row * wide_x + c)} * w[c];
              sum += product;
              magnitude += std::abs(product);
            }
            ASSERT_NEAR(y.at(row * wide_y + j), sum, 1e-6 * magnitude + std::ldexp(std::abs(sum), -8))
                << row << ", " << j;
          }
        }
      }
    }
  }
}

struct Kind {
  DType kv;
  LatentShape shape;
  DType activation;
};

constexpr int32_t kPositions = 700;  // more than one chunk
constexpr int32_t kManyPositions = 4200;
constexpr float kNormEps = 1e-6f;
constexpr int32_t kRopeShift = 3;

// One sequence of random rows in pages of random order.
class LatentWorld {
 public:
  LatentWorld(const Kind& kind, int32_t page_size, int threads, int32_t positions = kPositions)
      : kind_(kind), device_(device_under_test(threads)), positions_(positions) {
    const LatentShape& s = kind.shape;
    const int32_t pages = (positions + page_size - 1) / page_size;
    std::vector<int32_t> table;
    for (int32_t i = 0; i < pages; ++i) table.push_back(i);
    std::shuffle(table.begin(), table.end(), std::mt19937(9));
    table_ = std::make_unique<DeviceTensor>(*device_, table);
    pages_ = pages;
    const int64_t bytes = kv_layer_bytes(page_size, 1, s.key(), kind.kv, true);
    EXPECT_EQ(bytes, int64_t{page_size} * s.key() * static_cast<int64_t>(dtype_size(kind.kv)));
    memory_ = std::make_unique<DeviceTensor>(*device_, static_cast<size_t>(pages * bytes));  // NaN
    kv_ = {memory_->view(DType::kU8, {pages * bytes}).as<std::byte>(),
           bytes,
           page_size,
           1,
           s.key(),
           kind.kv,
           k_scale(),
           k_scale(),
           s.width};
    norm_ = random_values(2, s.width);
    const int64_t angles = int64_t{positions + kRopeShift} * s.rope / 2;
    for (int64_t i = 0; i < angles; ++i) {
      const double angle = static_cast<double>(i / (s.rope / 2)) / (1.0 + static_cast<double>(i % (s.rope / 2)));
      cos_.push_back(static_cast<float>(std::cos(angle)));
      sin_.push_back(static_cast<float>(std::sin(angle)));
    }
    cos_there_ = std::make_unique<DeviceTensor>(*device_, cos_);
    sin_there_ = std::make_unique<DeviceTensor>(*device_, sin_);
    scratch_ = std::make_unique<Arena>(*device_->allocate((kOnGpu ? 256 : 64) << 20));
  }

  float k_scale() const { return kind_.kv == DType::kF8E4M3 ? 0.01f : 1.0f; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(kind_.shape.query())); }
  std::vector<float> row(int32_t position) const {
    if (position == spoiled_) {
      return std::vector<float>(static_cast<size_t>(kind_.shape.key()), std::numeric_limits<float>::infinity());
    }
    return random_values(1000 + position, kind_.shape.key());
  }
  // q of a row, of which the last part is rotated.
  std::vector<float> q(int32_t position) const {
    return random_values(90'000 + position, int64_t{kind_.shape.heads} * kind_.shape.query());
  }
  // What stands for U^T q_nope.
  std::vector<float> absorbed(int32_t position) const {
    return random_values(50'000 + position, int64_t{kind_.shape.heads} * kind_.shape.width);
  }
  void spoil(int32_t position) { spoiled_ = position; }

  // Writes positions [from, to) in one pass, and attends for each; the output's bytes.
  std::vector<std::byte> pass(int32_t from, int32_t to) {
    const LatentShape& s = kind_.shape;
    const int64_t rows = to - from, heads = s.heads;
    std::vector<float> row_values, q_values, q_out_values;
    std::vector<int32_t> cache, rope, begin, end;
    for (int32_t p = from; p < to; ++p) {
      const auto append = [](std::vector<float>& all, const std::vector<float>& more) {
        all.insert(all.end(), more.begin(), more.end());
      };
      append(row_values, row(p));
      append(q_values, q(p));
      const std::vector<float> wide = absorbed(p);
      for (int64_t h = 0; h < heads; ++h) {
        q_out_values.insert(q_out_values.end(), wide.begin() + h * s.width, wide.begin() + (h + 1) * s.width);
        q_out_values.insert(q_out_values.end(), static_cast<size_t>(s.rope), NAN);  // to be written
      }
      cache.push_back(p);
      rope.push_back(p + kRopeShift);
      begin.push_back(0);
      end.push_back(p + 1);
    }
    const DType dtype = attention_dtype(kind_.kv);
    Values row_view(*device_, DType::kF32, row_values), q_view(*device_, kind_.activation, q_values),
        q_out(*device_, dtype, q_out_values), norm(*device_, DType::kF32, norm_),
        out(*device_, dtype, std::vector<float>(static_cast<size_t>(rows * heads * s.width)));
    const DeviceTensor segment(*device_, std::vector<RowSegment>{{0, static_cast<int32_t>(rows), 0}});
    Rows batch;
    batch.rows = static_cast<int32_t>(rows);
    std::vector<std::unique_ptr<DeviceTensor>> lists;
    const auto ints = [&](const std::vector<int32_t>& list) {
      return lists.emplace_back(std::make_unique<DeviceTensor>(*device_, list))->view(DType::kI32, {rows});
    };
    batch.slots = ints(std::vector<int32_t>(static_cast<size_t>(rows)));
    batch.rope_positions = ints(rope);
    batch.cache_positions = ints(cache);
    batch.segments = segment.view(DType::kU8, {static_cast<int64_t>(sizeof(RowSegment))}).as<RowSegment>();
    batch.n_segments = 1;
    batch.max_segment_rows = batch.rows;
    batch.max_positions = positions_;
    RowView& view = batch.views[kWholeView];
    view = {ints(begin), ints(end), table_->view(DType::kI32, {1, pages_})};
    LatentWrite write;
    write.row = row_view.view({rows, s.key()});
    write.norm = norm.view({s.width});
    write.eps = kNormEps;
    const int64_t half = s.rope / 2;
    write.rope = {cos_there_->view(DType::kF32, {std::ssize(cos_) / half, half}),
                  sin_there_->view(DType::kF32, {std::ssize(sin_) / half, half})};
    write.q = q_view.view({rows, heads, s.query()});
    write.q_out = q_out.view({rows, heads, s.key()});
    write.kv = kv_;
    ArenaScope scope(*scratch_);
    Attention attend;
    attend.work = plan_attention(
        device_->stream(), batch, view,
        {.heads = s.heads, .kv_heads = 1, .head_dim = s.key(), .dtype = kind_.kv, .v_in_k = s.width}, *scratch_);
    write_latent(device_->stream(), batch, view, write);
    attend.q = write.q_out;
    attend.heads = s.heads;
    attend.scale = scale();
    attend.after_write = true;
    attend.kv = kv_;
    attend.out = out.view({rows, heads, s.width});
    attention(device_->stream(), batch, view, attend, *scratch_);
    return out.read();
  }

  // The rotated x, in fp64, rounded as it is kept.
  std::vector<double> rotated(const float* x, int32_t position) const {
    const int32_t half = kind_.shape.rope / 2;
    std::vector<double> y(static_cast<size_t>(2 * half));
    for (int32_t i = 0; i < half; ++i) {
      const size_t at = static_cast<size_t>(position + kRopeShift) * half + i;
      y[i] = double{x[i]} * cos_[at] - double{x[half + i]} * sin_[at];
      y[half + i] = double{x[half + i]} * cos_[at] + double{x[i]} * sin_[at];
    }
    return y;
  }
  double kept(double x) const {
    const auto value = static_cast<float>(x);
    if (kind_.kv == DType::kF8E4M3) return double{to_float(to_float8_e4m3(value / k_scale()))} * k_scale();
    return as(kind_.kv, value);
  }
  std::vector<double> key(int32_t position) const {
    const LatentShape& s = kind_.shape;
    const std::vector<float> x = row(position);
    double squares = 0;
    for (int32_t i = 0; i < s.width; ++i) squares += double{x[i]} * x[i];
    const double inverse = 1 / std::sqrt(squares / s.width + kNormEps);
    std::vector<double> y;
    for (int32_t i = 0; i < s.width; ++i) y.push_back(kept(x[i] * inverse * norm_[i]));
    for (const double v : rotated(x.data() + s.width, position)) y.push_back(kept(v));
    return y;
  }

  // The largest |out - oracle| / tolerance of the row at `position`, whose output is `out`. Tolerance: as
  // attention_world_for_test.h derives it; and a key that rounds to the neighbouring value of its type, which the
  // oracle's fp64 norm may choose otherwise, moves an output by up to one unit of a few keys.
  double worst_error(const std::byte* out, int32_t position) const {
    const LatentShape& s = kind_.shape;
    const DType dtype = attention_dtype(kind_.kv);
    std::vector<std::vector<double>> keys;
    for (int32_t p = 0; p <= position; ++p) keys.push_back(key(p));
    const std::vector<float> wide = absorbed(position), narrow = q(position);
    double worst = 0;
    for (int32_t h = 0; h < s.heads; ++h) {
      std::vector<double> query;
      for (int32_t i = 0; i < s.width; ++i) query.push_back(as(dtype, wide[h * s.width + i]));
      std::vector<float> turned(narrow.begin() + (h + 1) * s.query() - s.rope, narrow.begin() + (h + 1) * s.query());
      for (float& v : turned) v = as(kind_.activation, v);
      for (const double v : rotated(turned.data(), position)) query.push_back(as(dtype, static_cast<float>(v)));
      std::vector<double> weights;
      double sum = 0;
      for (const auto& k : keys) {
        double score = 0;
        for (int32_t i = 0; i < s.key(); ++i) score += query[i] * k[i];
        sum += weights.emplace_back(std::exp(score * scale()));
      }
      for (int32_t i = 0; i < s.width; ++i) {
        double mean = 0, magnitude = 0, spread = 0;
        for (size_t p = 0; p < keys.size(); ++p) mean += weights[p] / sum * keys[p][i];
        for (size_t p = 0; p < keys.size(); ++p) {
          magnitude += weights[p] / sum * std::abs(keys[p][i]);
          spread += weights[p] / sum * std::abs(keys[p][i] - mean);
        }
        double tolerance = 4e-6 * magnitude;
        if (dtype == DType::kBF16) tolerance += std::ldexp(spread + std::abs(mean), -8) + 1e-3 * magnitude;
        const int64_t at = int64_t{h} * s.width + i;
        const float got = dtype == DType::kF32 ? reinterpret_cast<const float*>(out)[at]
                                               : to_float(reinterpret_cast<const BFloat16*>(out)[at]);
        const double difference = std::abs(got - mean);
        const double error = difference == 0 ? 0 : difference / tolerance;  // a V of zero has no tolerance
        worst = std::isnan(error) ? 1e30 : std::max(worst, error);
      }
    }
    return worst;
  }

 private:
  const Kind kind_;
  const std::shared_ptr<Device> device_;
  const int32_t positions_;
  int64_t pages_ = 0;
  std::unique_ptr<DeviceTensor> table_, memory_, cos_there_, sin_there_;
  KvLayer kv_;
  std::vector<float> norm_, cos_, sin_;
  std::unique_ptr<Arena> scratch_;
  int32_t spoiled_ = -1;
};

class LatentAttention : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { GPU_OR_SKIP(); }
  static std::vector<Kind> kinds() {
    const DType other = GetParam() == DType::kF32 ? DType::kF32 : DType::kBF16;
    std::vector<Kind> all = {{GetParam(), {3, 32, 16, 24, 16}, DType::kF32}, {GetParam(), {13, 48, 32, 8, 40}, other}};
    if (kOnGpu && GetParam() == DType::kBF16) {  // the matrix unit's
      all.push_back({GetParam(), {5, 512, 64, 16, 16}, DType::kBF16});
      all.push_back({GetParam(), {20, 256, 64, 16, 16}, DType::kF32});
    }
    return all;
  }
};

TEST_P(LatentAttention, MatchesTheOracle) {
  std::vector<Kind> all = kinds();
  if (!kOnGpu || GetParam() != DType::kBF16) all.push_back({GetParam(), {2, 512, 64, 16, 16}, DType::kF32});
  for (const Kind& kind : all) {
    LatentWorld world(kind, 32, 2);
    const auto out = world.pass(0, kPositions);
    const size_t stride = out.size() / kPositions;
    for (const int32_t position : {0, 1, 15, 16, 40, 511, 512, kPositions - 1}) {
      EXPECT_LE(world.worst_error(out.data() + position * stride, position), 1.0)
          << kind.shape.width << " at " << position;
    }
  }
}

// Passes of any size, pages and threads.
TEST_P(LatentAttention, RowsDoNotDependOnTheirCompany) {
  for (const Kind& kind : kinds()) {
    LatentWorld whole(kind, 16, 1);
    const auto expected = whole.pass(0, kPositions);
    for (const auto& [piece, page_size, threads] : {std::tuple{1, 64, 1}, {7, 48, 3}, {16, 32, 2}, {333, 16, 3}}) {
      LatentWorld world(kind, page_size, threads);
      std::vector<std::byte> all;
      for (int32_t p = 0; p < kPositions; p += piece) {
        const auto part = world.pass(p, std::min(kPositions, p + piece));
        all.insert(all.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(all == expected) << piece;
    }
  }
}

// Chunks of several lengths, and tiles that several blocks share: one row and sixteen.
TEST_P(LatentAttention, OneRowHasTheBitsOfSixteen) {
  if (!kOnGpu || GetParam() != DType::kBF16) GTEST_SKIP() << "is for the matrix unit of a GPU";
  const Kind kind = {DType::kBF16, {5, 512, 64, 16, 16}, DType::kBF16};
  LatentWorld world(kind, 64, 1, kManyPositions);
  const auto whole = world.pass(0, kManyPositions);
  const size_t stride = whole.size() / kManyPositions;
  for (const int32_t first : {0, 120, 1016, 2033, 4090, kManyPositions - 16}) {
    const auto together = world.pass(first, first + 16);
    EXPECT_EQ(std::memcmp(together.data(), whole.data() + first * stride, together.size()), 0) << first;
    for (int32_t i = 0; i < 16; i += 5) {
      const auto alone = world.pass(first + i, first + i + 1);
      EXPECT_EQ(std::memcmp(alone.data(), together.data() + i * stride, stride), 0) << first + i;
    }
  }
  EXPECT_LE(world.worst_error(whole.data() + 4100 * stride, 4100), 1.0);
}

// As in verification: positions after an accepted one are written again.
TEST_P(LatentAttention, HiddenInfinitiesStayHidden) {
  for (const Kind& kind : kinds()) {
    LatentWorld clean(kind, 32, 2), spoiled(kind, 32, 2);
    const auto expected = clean.pass(0, 600);
    spoiled.spoil(599);
    const auto got = spoiled.pass(0, 600);
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), expected.size() / 600 * 599), 0);
    spoiled.spoil(-1);
    const auto again = spoiled.pass(599, 600);
    EXPECT_EQ(std::memcmp(again.data(), expected.data() + expected.size() / 600 * 599, again.size()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LatentAttention, ::testing::Values(DType::kF32, DType::kBF16, DType::kF8E4M3),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST(CheckLatent, NamesWhatIsNotBuilt) {
  const LatentShape shape = {16, 512, 64, 128, 128};
  EXPECT_TRUE(check_latent(shape).ok());
  LatentShape odd = shape, wide = shape, many = shape;
  odd.rope = 24;
  wide.width = 528;
  many.heads = 513;
  EXPECT_NE(check_latent(odd).error().message.find("24"), std::string::npos);
  EXPECT_NE(check_latent(wide).error().message.find("528"), std::string::npos);
  EXPECT_NE(check_latent(many).error().message.find("513"), std::string::npos);
  const auto resolve = [](int compute_capability, AttentionBackend asked, DType kv, int32_t width) {
    return resolve_attention_backend(DeviceKind::kCuda, GpuInfo{compute_capability, 132, 227 << 10}, asked, kv,
                                     width + 64, width);
  };
  if (kOnGpu) {
    EXPECT_EQ(resolve(90, AttentionBackend::kAuto, DType::kF8E4M3, 512).value(), AttentionBackend::kPlain);
    EXPECT_EQ(resolve(80, AttentionBackend::kAuto, DType::kBF16, 512).value(), AttentionBackend::kPlain);
    EXPECT_FALSE(resolve(90, AttentionBackend::kPortable, DType::kBF16, 512).ok());
    EXPECT_FALSE(resolve(90, AttentionBackend::kWgmma, DType::kBF16, 128).ok());
  }
}

}  // namespace
}  // namespace volley::ops

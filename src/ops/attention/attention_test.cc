#include "ops/attention/attention.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/attention/attention_cpu.h"
#include "ops/attention/attention_plan.h"

namespace volley::ops {
namespace {

struct Shape {
  DType dtype = DType::kBF16;
  int head_dim = 64;
  int heads = 6;
  int kv_heads = 2;
  int page_size = 16;
};

struct Row {
  int slot = 0;
  int begin = 0, end = 1;  // visible cache positions
  int id = 0;              // what its q is made from
};

float rounded(float x, DType dtype) {
  return dtype == DType::kBF16 ? to_float(to_bfloat16(x)) : x;
}

void put(std::vector<std::byte>& to, size_t i, float x, DType dtype) {
  const BFloat16 half = to_bfloat16(x);
  std::memcpy(to.data() + i * dtype_size(dtype), dtype == DType::kF32 ? static_cast<void*>(&x) : (void*)&half,
              dtype_size(dtype));
}

// Sequences with known K and V in pages of random order, and the same in plain arrays for the oracle.
class World {
 public:
  World(const Shape& shape, const std::vector<int>& lengths, int threads = 2, bool write_all = true)
      : shape_(shape), lengths_(lengths), device_(*make_cpu_device(threads)) {
    pages_per_slot_ = (*std::max_element(lengths.begin(), lengths.end()) + shape.page_size - 1) / shape.page_size;
    const int pages = pages_per_slot_ * static_cast<int>(lengths.size());
    page_table_.resize(pages);
    for (int i = 0; i < pages; ++i) page_table_[i] = i;
    std::shuffle(page_table_.begin(), page_table_.end(), std::mt19937(7));
    const int64_t bytes = kv_layer_bytes(shape.page_size, shape.kv_heads, shape.head_dim, shape.dtype);
    memory_ = std::move(device_->allocate(static_cast<size_t>(pages * bytes))).value();
    // What a former owner left: NaN in every element.
    std::memset(memory_.data(), 0xff, memory_.bytes());
    kv_ = {
        static_cast<std::byte*>(memory_.data()), bytes, shape.page_size, shape.kv_heads, shape.head_dim, shape.dtype};
    cos_.assign(pages_per_slot_ * shape.page_size * shape.head_dim / 2, 1.0f);
    sin_.assign(cos_.size(), 0.0f);
    const int64_t scratch = attention_scratch_bytes(1024, shape.heads, shape.head_dim, longest());
    arena_ = std::make_unique<Arena>(std::move(device_->allocate(static_cast<size_t>(scratch))).value());
    for (size_t slot = 0; write_all && slot < lengths.size(); ++slot) write(static_cast<int>(slot), 0, lengths[slot]);
  }

  int longest() const { return *std::max_element(lengths_.begin(), lengths_.end()); }
  const Shape& shape() const { return shape_; }

  // K and V of a position: [kv_heads][head_dim] each, K first; a function of (slot, position) alone.
  std::vector<float> values(int slot, int position) const {
    std::mt19937 random(1000003u * slot + position + 1);
    std::normal_distribution<float> normal;
    std::vector<float> x(2 * shape_.kv_heads * shape_.head_dim);
    for (float& v : x) v = normal(random);
    return x;
  }

  // Writes positions [from, to) of a slot in one call; `spoil` replaces V of the position by what it holds.
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

  void write_values(int slot, std::vector<int32_t> positions, std::vector<float> qkv) {
    const RowSegment segment{0, static_cast<int32_t>(positions.size()), slot};
    const int64_t n = segment.rows;
    QkvWrite args;
    args.qkv = TensorView(qkv.data(), DType::kF32, {n, 2 * shape_.kv_heads * shape_.head_dim});
    args.rope = {TensorView(cos_.data(), DType::kF32, {longest(), shape_.head_dim / 2}),
                 TensorView(sin_.data(), DType::kF32, {longest(), shape_.head_dim / 2})};
    args.rope_positions = args.cache_positions = TensorView(positions.data(), DType::kI32, {n});
    args.page_table = page_table();
    args.segments = &segment;
    args.n_segments = 1;
    args.kv = kv_;
    write_qkv(device_->stream(), args);
  }

  std::vector<float> q_of(const Row& row, int head) const {
    std::mt19937 random(7919u * row.id + head + 17);
    std::normal_distribution<float> normal;
    std::vector<float> q(shape_.head_dim);
    for (float& v : q) v = rounded(normal(random), shape_.dtype);
    return q;
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

  // Rows of the same slot must be neighbours. Returns out's bytes, row after row.
  std::vector<std::byte> run(const std::vector<Row>& rows) {
    const auto n = static_cast<int64_t>(rows.size());
    const int64_t width = shape_.heads * shape_.head_dim;
    std::vector<std::byte> q(n * width * dtype_size(shape_.dtype)), out(q.size());
    std::vector<int32_t> begin, end;
    std::vector<RowSegment> segments;
    for (int64_t i = 0; i < n; ++i) {
      for (int h = 0; h < shape_.heads; ++h) {
        const auto x = q_of(rows[i], h);
        for (int d = 0; d < shape_.head_dim; ++d) put(q, i * width + h * shape_.head_dim + d, x[d], shape_.dtype);
      }
      begin.push_back(rows[i].begin);
      end.push_back(rows[i].end);
      if (segments.empty() || segments.back().slot != rows[i].slot) {
        segments.push_back({static_cast<int32_t>(i), 0, rows[i].slot});
      }
      ++segments.back().rows;
    }
    Attention args;
    args.q = TensorView(q.data(), shape_.dtype, {n, shape_.heads, shape_.head_dim});
    args.heads = shape_.heads;
    args.scale = scale();
    args.visible_begin = TensorView(begin.data(), DType::kI32, {n});
    args.visible_end = TensorView(end.data(), DType::kI32, {n});
    args.page_table = page_table();
    args.segments = segments.data();
    args.n_segments = static_cast<int32_t>(segments.size());
    args.kv = kv_;
    args.out = TensorView(out.data(), shape_.dtype, {n, width});
    attention(device_->stream(), args, *arena_);
    return out;
  }

 private:
  TensorView page_table() {
    return TensorView(page_table_.data(), DType::kI32, {static_cast<int64_t>(lengths_.size()), pages_per_slot_});
  }

  Shape shape_;
  std::vector<int> lengths_;
  std::unique_ptr<Device> device_;
  int pages_per_slot_ = 0;
  std::vector<int32_t> page_table_;
  Buffer memory_;
  KvLayer kv_;
  std::vector<float> cos_, sin_;
  std::unique_ptr<Arena> arena_;
};

float element(const std::vector<std::byte>& bytes, size_t i, DType dtype) {
  if (dtype == DType::kF32) {
    float x;
    std::memcpy(&x, bytes.data() + i * 4, 4);
    return x;
  }
  BFloat16 x;
  std::memcpy(&x, bytes.data() + i * 2, 2);
  return to_float(x);
}

// The largest |out - oracle| / tolerance over all rows.
//
// Tolerance, bf16 (8 significant bits): probabilities and the output are rounded, relative error at most 2^-8 each. The
// sum is of the rounded probabilities, so that the first kind acts only on what distinguishes a V from the mean:
// 2^-8 (sum w|v - out| + |out|).
// Plus fp32 rounding of scores (about 5 in size) and sums, as in fp32: 2e-6 sum w|v|.
double worst_error(World& world, const std::vector<Row>& rows) {
  const Shape& shape = world.shape();
  const auto out = world.run(rows);
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
      double sum = 0;
      for (size_t p = 0; p < kv.size(); ++p) {
        double s = 0;
        for (int d = 0; d < shape.head_dim; ++d) s += double{q[d]} * rounded(kv[p][k_at + d], shape.dtype);
        sum += w[p] = std::exp(s * world.scale());
      }
      for (int d = 0; d < shape.head_dim; ++d) {
        double mean = 0, magnitude = 0, spread = 0;
        for (size_t p = 0; p < kv.size(); ++p) mean += w[p] / sum * rounded(kv[p][v_at + d], shape.dtype);
        for (size_t p = 0; p < kv.size(); ++p) {
          const double v = rounded(kv[p][v_at + d], shape.dtype);
          magnitude += w[p] / sum * std::abs(v);
          spread += w[p] / sum * std::abs(v - mean);
        }
        double tolerance = 2e-6 * magnitude;
        if (shape.dtype == DType::kBF16) tolerance += std::ldexp(spread + std::abs(mean), -8);
        const size_t at = (r * shape.heads + h) * shape.head_dim + d;
        const double error = std::abs(element(out, at, shape.dtype) - mean) / tolerance;
        worst = std::isnan(error) ? 1e30 : std::max(worst, error);
      }
    }
  }
  return worst;
}

std::vector<Row> causal(int slot, int first, int n) {
  std::vector<Row> rows;
  for (int i = 0; i < n; ++i) rows.push_back({slot, 0, first + i + 1, 100 * slot + i});
  return rows;
}

// A decoding row, a causal block across a tile's end, a bidirectional block, sliding windows of both kinds.
std::vector<Row> mixed_rows() {
  std::vector<Row> rows = {{0, 0, 38, 1}};
  for (const Row& row : causal(1, 25, 9)) rows.push_back(row);
  for (int i = 0; i < 16; ++i) rows.push_back({2, 0, 77, 300 + i});
  for (int i = 0; i < 20; ++i) rows.push_back({3, 40 + i, 61 + i, 400 + i});
  for (int i = 0; i < 5; ++i) rows.push_back({4, 30 + i, 90, 500 + i});
  rows.push_back({5, 0, 1, 600});
  rows.push_back({6, 47, 48, 601});
  return rows;
}
const std::vector<int> kMixedLengths = {40, 40, 80, 90, 90, 1, 48};

std::string name_of(const Shape& s) {
  return std::string(dtype_name(s.dtype)) + " head_dim " + std::to_string(s.head_dim) + " heads " +
         std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " page " + std::to_string(s.page_size);
}

class AttentionShapes : public testing::TestWithParam<DType> {};

TEST_P(AttentionShapes, MatchesTheOracle) {
  for (int head_dim : {32, 64, 80, 128, 256}) {
    for (int group : {1, 3, 4, 8}) {
      const int kv_heads = group == 8 ? 1 : 2;
      const Shape shape{GetParam(), head_dim, group * kv_heads, kv_heads, group % 2 == 0 ? 64 : 16};
      World world(shape, kMixedLengths);
      EXPECT_LE(worst_error(world, mixed_rows()), 1.0) << name_of(shape);
    }
  }
}

TEST_P(AttentionShapes, MatchesTheOracleOverSeveralChunks) {
  const Shape shape{GetParam(), 64, 6, 2, 32};
  World world(shape, {2100, 1500});
  std::vector<Row> rows = causal(0, 2090, 10);
  rows.push_back({1, 0, 512, 1});     // ends with a chunk
  rows.push_back({1, 500, 1025, 2});  // three chunks, of two only the edge
  rows.push_back({1, 1024, 1500, 3});
  EXPECT_LE(worst_error(world, rows), 1.0);
}

// Every instruction set that this machine has, one by one; the tolerance is the same.
TEST_P(AttentionShapes, MatchesTheOracleOnEveryInstructionSet) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    World world({GetParam(), 80, 6, 2, 16}, kMixedLengths);
    EXPECT_LE(worst_error(world, mixed_rows()), 1.0) << hwy::TargetName(target);
    const auto together = world.run(mixed_rows());
    const size_t stride = together.size() / mixed_rows().size();
    for (size_t i = 0; i < mixed_rows().size(); ++i) {
      const auto alone = world.run({mixed_rows()[i]});
      EXPECT_EQ(std::memcmp(alone.data(), together.data() + i * stride, stride), 0) << hwy::TargetName(target);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Scores far apart: the smallest probabilities vanish, and nothing overflows.
TEST_P(AttentionShapes, SurvivesLargeScores) {
  World world({GetParam(), 64, 6, 2, 16}, {600});
  for (int p : {3, 250, 599}) {
    auto x = world.values(0, p);
    for (float& v : x) v *= 300.0f;
    world.write_values(0, {p}, x);
  }
  for (const auto& row : {Row{0, 0, 600, 1}, Row{0, 0, 200, 2}, Row{0, 251, 599, 3}}) {
    const auto out = world.run({row});
    for (int i = 0; i < 6 * 64; ++i) {
      const float x = element(out, i, GetParam());
      EXPECT_TRUE(std::isfinite(x)) << i;
    }
  }
}

// Invariant 1 of the engine: a row's bits do not depend on the rows beside it, the threads or the page size.
TEST_P(AttentionShapes, RowsDoNotDependOnTheirCompany) {
  for (const auto& [heads, kv_heads] : {std::pair{6, 2}, {4, 4}, {8, 1}}) {
    std::vector<std::vector<std::byte>> results;
    std::vector<Row> rows = mixed_rows();
    for (const Row& row : causal(7, 1480, 20)) rows.push_back(row);
    rows.push_back({8, 0, 1400, 9});
    std::vector<int> lengths = kMixedLengths;
    lengths.insert(lengths.end(), {1500, 1400});
    for (int page_size : {16, 48, 64}) {
      for (int threads : {1, 2, 3}) {
        World world({GetParam(), 64, heads, kv_heads, page_size}, lengths, threads);
        results.push_back(world.run(rows));
        EXPECT_EQ(results.back(), results.front()) << page_size << " " << threads;
      }
    }
    World world({GetParam(), 64, heads, kv_heads, 32}, lengths, 2);
    const size_t stride = results[0].size() / rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto alone = world.run({rows[i]});
      EXPECT_EQ(std::memcmp(alone.data(), results[0].data() + i * stride, stride), 0) << "row " << i;
    }
    const auto some = world.run({rows.begin() + 3, rows.begin() + 22});
    EXPECT_EQ(std::memcmp(some.data(), results[0].data() + 3 * stride, some.size()), 0);
  }
}

// A prefix has the same bits whether it was written at once, in chunks or one by one, into pages full of NaN.
TEST_P(AttentionShapes, WritingInPiecesChangesNothing) {
  const Shape shape{GetParam(), 64, 6, 2, 32};
  std::vector<Row> rows = causal(0, 600, 7);
  std::vector<std::vector<std::byte>> results;
  for (int piece : {607, 1, 7, 16, 50}) {
    World world(shape, {607}, 2, false);
    for (int p = 0; p < 607; p += piece) world.write(0, p, std::min(607, p + piece));
    results.push_back(world.run(rows));
    EXPECT_EQ(results.back(), results.front()) << piece;
  }
  World world(shape, {607});
  EXPECT_LE(worst_error(world, rows), 1.0);
}

// What lies past a row's range, an overflow of a rejected token included, reaches neither it nor its neighbours' bits.
TEST_P(AttentionShapes, HiddenInfinitiesStayHidden) {
  const Shape shape{GetParam(), 64, 6, 2, 16};
  World clean(shape, {1000});
  World spoiled(shape, {1000});
  const std::vector<Row> rows = {{0, 0, 991, 1}, {0, 0, 993, 2}, {0, 0, 994, 3}, {0, 600, 990, 4}, {0, 992, 994, 5}};
  std::vector<float> bad(2 * 2 * 64, std::numeric_limits<float>::infinity());
  bad[5] = std::numeric_limits<float>::quiet_NaN();
  spoiled.write_values(0, {994}, bad);
  EXPECT_EQ(spoiled.run(rows), clean.run(rows));
  spoiled.write_values(0, {991}, bad);
  const auto expected = clean.run(rows);
  const auto got = spoiled.run(rows);
  const size_t stride = got.size() / rows.size();
  for (size_t i : {size_t{0}, size_t{3}, size_t{4}}) {
    EXPECT_EQ(std::memcmp(got.data() + i * stride, expected.data() + i * stride, stride), 0) << "row " << i;
  }
  EXPECT_TRUE(std::isnan(element(got, stride / dtype_size(shape.dtype), shape.dtype)));
}

INSTANTIATE_TEST_SUITE_P(Attention, AttentionShapes, testing::Values(DType::kBF16, DType::kF32),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

// The bound that sizes the arena holds for any batch within it: whatever the plan takes, and on any number of threads.
TEST(AttentionPlan, ScratchStaysWithinItsBound) {
  auto device = *make_cpu_device(1);
  std::mt19937 random(5);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int splits = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const int kv_heads = pick(1, 4), group = pick(1, 9), rows = pick(1, 60), positions = pick(600, 5000);
    std::vector<RowSegment> segments;
    std::vector<int32_t> begin, end;
    for (int row = 0; row < rows;) {
      const int n = std::min(rows - row, pick(1, 17));
      segments.push_back({row, n, 0});
      for (int i = 0; i < n; ++i, ++row) {
        end.push_back(pick(1, positions));
        begin.push_back(pick(0, end.back() - 1) * pick(0, 1));
      }
    }
    Attention args;
    args.heads = group * kv_heads;
    args.kv.kv_heads = kv_heads;
    args.kv.head_dim = 64;
    args.visible_begin = TensorView(begin.data(), DType::kI32, {rows});
    args.visible_end = TensorView(end.data(), DType::kI32, {rows});
    args.segments = segments.data();
    args.n_segments = static_cast<int32_t>(segments.size());
    const int64_t bound = attention_scratch_bytes(rows, args.heads, args.kv.head_dim, positions);
    Arena arena(std::move(device->allocate(static_cast<size_t>(bound))).value());
    const AttentionPlan plan = plan_attention(args, pick(1, 40), arena);
    if (plan.split) arena.take(DType::kF32, {plan.partials, partial_floats(args.kv.head_dim)});
    EXPECT_LE(arena.peak(), static_cast<size_t>(bound));
    splits += plan.split;
    for (const RowSegment& segment : segments) {  // every query row once
      int64_t covered = 0;
      for (const AttentionBlock& block : plan.blocks) {
        if (&segments[block.segment] == &segment) covered += block.end - block.begin;
        EXPECT_LE(block.end - block.begin, kMaxBlockRows);
      }
      EXPECT_EQ(covered, int64_t{segment.rows} * group);
    }
  }
  EXPECT_GT(splits, 50);
}

// An arena of exactly the stated size serves call after call.
TEST(AttentionPlan, ScratchIsReturned) {
  const Shape shape{DType::kBF16, 64, 6, 2, 64};
  World world(shape, {2000}, 3);
  const auto first = world.run(causal(0, 1984, 16));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(world.run(causal(0, 1984, 16)), first);
}

}  // namespace
}  // namespace volley::ops

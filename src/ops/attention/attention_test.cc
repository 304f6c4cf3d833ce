#include <hwy/highway.h>

#include "base/sanitized.h"
#include "ops/attention/attention_cpu.h"
#include "ops/attention/attention_plan.h"
#include "ops/attention/attention_world_for_test.h"

namespace volley::ops {
namespace {

using Shape = AttentionShape;
using Row = AttentionRow;

// A world on a CPU of its own.
class World {
 public:
  World(const Shape& shape, const std::vector<int>& lengths, int threads = 2, bool write_all = true)
      : device_(*make_cpu_device(threads)), world_(*device_, shape, lengths, write_all) {}
  AttentionWorld& operator*() { return world_; }
  std::vector<std::byte> run(const std::vector<Row>& rows) { return world_.run(rows); }
  std::vector<float> values(int slot, int position) const { return world_.values(slot, position); }
  void write(int slot, int from, int to) { world_.write(slot, from, to); }
  void write_values(int slot, const std::vector<int32_t>& positions, const std::vector<float>& qkv) {
    world_.write_values(slot, positions, qkv);
  }

 private:
  std::unique_ptr<Device> device_;
  AttentionWorld world_;
};

// By the type of K and V, and whether heads have sinks.
class AttentionShapes : public testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  static DType dtype() { return std::get<DType>(GetParam()); }
  static Shape shape(int head_dim, int heads, int kv_heads, int page_size) {
    return {dtype(), head_dim, heads, kv_heads, page_size, std::get<bool>(GetParam())};
  }
};

TEST_P(AttentionShapes, MatchesTheOracle) {
  for (int head_dim : {32, 64, 80, 128, 256}) {
    for (int group : {1, 3, 4, 8}) {
      const int kv_heads = group == 8 ? 1 : 2;
      const Shape own = shape(head_dim, group * kv_heads, kv_heads, group % 2 == 0 ? 64 : 16);
      World world(own, kMixedLengths);
      EXPECT_LE(worst_error(*world, mixed_rows()), 1.0) << name_of(own);
    }
  }
}

TEST_P(AttentionShapes, MatchesTheOracleOverSeveralChunks) {
  World world(shape(64, 6, 2, 32), {2100, 1500});
  std::vector<Row> rows = causal(0, 2090, 10);
  rows.push_back({1, 0, 512, 1});     // ends with a chunk
  rows.push_back({1, 500, 1025, 2});  // three chunks, of two only the edge
  rows.push_back({1, 1024, 1500, 3});
  EXPECT_LE(worst_error(*world, rows), 1.0);
}

// Every instruction set that this machine has, one by one; the tolerance is the same.
TEST_P(AttentionShapes, MatchesTheOracleOnEveryInstructionSet) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    World world(shape(80, 6, 2, 16), kMixedLengths);
    EXPECT_LE(worst_error(*world, mixed_rows()), 1.0) << hwy::TargetName(target);
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
  World world(shape(64, 6, 2, 16), {600});
  for (int p : {3, 250, 599}) {
    auto x = world.values(0, p);
    for (float& v : x) v *= 300.0f;
    world.write_values(0, {p}, x);
  }
  for (const auto& row : {Row{0, 0, 600, 1}, Row{0, 0, 200, 2}, Row{0, 251, 599, 3}}) {
    const auto out = world.run({row});
    for (int i = 0; i < 6 * 64; ++i) {
      const float x = element(out, i, dtype());
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
        if (kSanitized && threads != page_size / 16) continue;  // two of them
        World world(shape(64, heads, kv_heads, page_size), lengths, threads);
        results.push_back(world.run(rows));
        EXPECT_EQ(results.back(), results.front()) << page_size << " " << threads;
      }
    }
    World world(shape(64, heads, kv_heads, 32), lengths, 2);
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
  const Shape own = shape(64, 6, 2, 32);
  std::vector<Row> rows = causal(0, 600, 7);
  std::vector<std::vector<std::byte>> results;
  for (int piece : {607, 1, 7, 16, 50}) {
    World world(own, {607}, 2, false);
    for (int p = 0; p < 607; p += piece) world.write(0, p, std::min(607, p + piece));
    results.push_back(world.run(rows));
    EXPECT_EQ(results.back(), results.front()) << piece;
  }
  World world(own, {607});
  EXPECT_LE(worst_error(*world, rows), 1.0);
}

// What lies past a row's range, an overflow of a rejected token included, reaches neither it nor its neighbours' bits.
TEST_P(AttentionShapes, HiddenInfinitiesStayHidden) {
  const Shape own = shape(64, 6, 2, 16);
  World clean(own, {1000});
  World spoiled(own, {1000});
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
  EXPECT_TRUE(std::isnan(element(got, stride / dtype_size(attention_dtype(dtype())), dtype())));
}

INSTANTIATE_TEST_SUITE_P(Attention, AttentionShapes,
                         testing::Combine(testing::Values(DType::kBF16, DType::kF32, DType::kF8E4M3), testing::Bool()),
                         [](const auto& info) {
                           return std::string(dtype_name(std::get<DType>(info.param))) +
                                  (std::get<bool>(info.param) ? "_sinks" : "");
                         });

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
    Rows batch;
    batch.rows = rows;
    batch.segments = segments.data();
    batch.n_segments = static_cast<int32_t>(segments.size());
    const RowView view = {
        TensorView(begin.data(), DType::kI32, {rows}), TensorView(end.data(), DType::kI32, {rows}), {}};
    const int threads = pick(1, 40);
    const int64_t bound = attention_scratch_bytes(rows, args.heads, args.kv.head_dim, positions, threads);
    Arena arena(std::move(device->allocate(static_cast<size_t>(bound))).value());
    const AttentionPlan plan = plan_attention({batch, view, args}, threads, arena);
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

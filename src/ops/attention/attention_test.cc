// Protects, on the CPU and on a GPU: values against the fp64 oracle; that a row's bits depend on its q, its range and
// the K and V in it; that a position a row does not see cannot reach it. On the CPU: its plan and its memory.
#include "base/sanitized.h"
#include "ops/attention/attention_world_for_test.h"

#ifndef VOLLEY_OPS_TEST_CUDA
#include "ops/attention/attention_cpu.h"
#include "ops/attention/attention_plan.h"
#include "ops/instruction_sets_for_test.h"
#endif

namespace volley::ops {
namespace {

using Shape = AttentionShape;
using Row = AttentionRow;

class AttentionShapes : public AttentionByType {};

TEST_P(AttentionShapes, MatchesTheOracle) {
  DEVICE_UNDER_TEST;
  for (int head_dim : {32, 64, 80, 128, 256, 512}) {
    for (int group : {1, 3, 4, 8}) {
      if (head_dim == 512 && group != 8) continue;  // it would take long
      const int kv_heads = group == 8 ? 1 : 2;
      const Shape own = shape(head_dim, group * kv_heads, kv_heads, group % 2 == 0 ? 64 : 16);
      AttentionWorld world(device, own, kMixedLengths);
      EXPECT_LE(worst_error(world, mixed_rows()), 1.0) << name_of(own);
    }
  }
}

TEST_P(AttentionShapes, MatchesTheOracleOverSeveralChunks) {
  DEVICE_UNDER_TEST;
  // The CPU has one path for all sizes.
  const bool gpu = device.kind() != DeviceKind::kCpu;
  for (int head_dim : gpu ? std::vector{64, 128, 256, 512} : std::vector{64, 256}) {
    AttentionWorld world(device, shape(head_dim, 4, 1, 32), {2600, 1500});
    std::vector<Row> rows = causal(0, 2590, 10);
    rows.push_back({1, 0, 512, 1});     // ends with a chunk
    rows.push_back({1, 500, 1025, 2});  // some chunks have only their edge in it
    rows.push_back({1, 1024, 1500, 3});
    EXPECT_LE(worst_error(world, rows), 1.0) << head_dim;
  }
}

// Invariant 1 of the engine. A row alone, which a GPU cuts into as many items as there are chunks, against the same row
// in a batch, over page sizes, orders of pages and a GPU's bounds.
TEST_P(AttentionShapes, RowsDoNotDependOnTheirCompany) {
  DEVICE_UNDER_TEST;
  std::vector<Row> rows = mixed_rows();
  for (const Row& row : causal(7, 1480, 20)) rows.push_back(row);
  rows.push_back({8, 0, 1400, 9});
  rows.push_back({8, 130, 1399, 10});
  std::vector<int> lengths = kMixedLengths;
  lengths.insert(lengths.end(), {1500, 1400});
  for (const auto& [head_dim, heads, kv_heads] :
       {std::tuple{128, 8, 2}, {64, 6, 2}, {256, 4, 1}, {512, 2, 1}, {80, 4, 2}}) {
    std::vector<std::vector<std::byte>> results;
    for (int page_size : {16, 48, 64}) {
      AttentionWorld world(device, shape(head_dim, heads, kv_heads, page_size), lengths, true, page_size);
      results.push_back(world.run(rows, device.kind() == DeviceKind::kCuda && page_size == 48));
      EXPECT_EQ(results.back(), results.front()) << page_size;
    }
    AttentionWorld world(device, shape(head_dim, heads, kv_heads, 32), lengths);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(world.run({rows[i]}), part(results[0], rows.size(), i, 1)) << head_dim << " row " << i;
    }
    EXPECT_EQ(world.run({rows.begin() + 3, rows.begin() + 22}), part(results[0], rows.size(), 3, 19));
  }
}

// So many sequences that none is split, compared with one at a time; and the rows of a prompt's chunk compared with
// single ones.
TEST_P(AttentionShapes, CuttingChangesNothing) {
  DEVICE_UNDER_TEST;
  const int slots = 60;
  AttentionWorld world(device, shape(64, 16, 8, 64), std::vector<int>(slots, 700));
  std::vector<Row> rows;
  for (int slot = 0; slot < slots; ++slot) rows.push_back({slot, 0, 690 + slot % 10, slot});
  const auto together = world.run(rows);
  for (size_t i = 0; i < rows.size(); i += 7) {
    EXPECT_EQ(world.run({rows[i]}), part(together, rows.size(), i, 1)) << "row " << i;
  }
  const auto chunk = causal(3, 300, 400);
  const auto whole = world.run(chunk);
  for (int first : {0, 1, 63, 170, 399}) {
    EXPECT_EQ(world.run({chunk[first]}), part(whole, chunk.size(), first, 1)) << "row " << first;
  }
  EXPECT_EQ(world.run({chunk.begin() + 100, chunk.begin() + 250}), part(whole, chunk.size(), 100, 150));
}

// A prefix has the same bits whether it was written at once or in pieces, into pages full of NaN.
TEST_P(AttentionShapes, WritingInPiecesChangesNothing) {
  DEVICE_UNDER_TEST;
  const Shape own = shape(64, 6, 2, 32);
  const std::vector<Row> rows = causal(0, 600, 7);
  AttentionWorld whole(device, own, {607});
  EXPECT_LE(worst_error(whole, rows), 1.0);
  const auto want = whole.run(rows);
  for (int piece : {1, 7, 16, 50}) {
    AttentionWorld world(device, own, {607}, false);
    for (int p = 0; p < 607; p += piece) world.write(0, p, std::min(607, p + piece));
    EXPECT_EQ(world.run(rows), want) << piece;
  }
}

TEST_P(AttentionShapes, SurvivesLargeScores) {
  DEVICE_UNDER_TEST;
  AttentionWorld world(device, shape(64, 6, 2, 16), {600});
  expect_finite(world);
}

// A position outside a row's range changes neither the row nor its neighbours' bits, whether or not another row of its
// tile sees it.
TEST_P(AttentionShapes, HiddenInfinitiesStayHidden) {
  DEVICE_UNDER_TEST;
  for (int head_dim : {64, 80, 128, 256, 512}) {
    const Shape own = shape(head_dim, 6, 2, 16);
    AttentionWorld clean(device, own, {1000}), spoiled(device, own, {1000});
    const std::vector<Row> rows = {{0, 0, 991, 1}, {0, 0, 993, 2}, {0, 0, 994, 3}, {0, 600, 990, 4}, {0, 992, 994, 5}};
    std::vector<float> bad(2 * 2 * head_dim, std::numeric_limits<float>::infinity());
    // One in K and one in V: as a code, infinity is the largest value.
    bad[5] = bad[2 * head_dim + 5] = std::numeric_limits<float>::quiet_NaN();
    spoiled.write_values(0, {994}, bad);
    const auto expected = clean.run(rows);
    EXPECT_EQ(spoiled.run(rows), expected) << head_dim;
    spoiled.write_values(0, {991}, bad);
    const auto got = spoiled.run(rows);
    for (size_t i : {size_t{0}, size_t{3}, size_t{4}}) {
      EXPECT_EQ(part(got, 5, i, 1), part(expected, 5, i, 1)) << head_dim << " row " << i;
    }
    EXPECT_TRUE(std::isnan(element(part(got, 5, 1, 1), 0, dtype())));
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, AttentionShapes, kAttentionTypes, name_of_types);

#ifndef VOLLEY_OPS_TEST_CUDA

// Every instruction set that this machine has, one by one; the tolerance is the same.
TEST_P(AttentionShapes, MatchesTheOracleOnEveryInstructionSet) {
  for_each_instruction_set([] {
    const auto device = *make_cpu_device(2);
    AttentionWorld world(*device, shape(80, 6, 2, 16), kMixedLengths);
    EXPECT_LE(worst_error(world, mixed_rows()), 1.0);
    const auto together = world.run(mixed_rows());
    for (size_t i = 0; i < mixed_rows().size(); ++i) {
      EXPECT_EQ(world.run({mixed_rows()[i]}), part(together, mixed_rows().size(), i, 1));
    }
  });
}

// Results do not depend on the number of threads either.
TEST_P(AttentionShapes, ThreadsChangeNothing) {
  std::vector<Row> rows = mixed_rows();
  for (const Row& row : causal(7, 1480, 20)) rows.push_back(row);
  std::vector<int> lengths = kMixedLengths;
  lengths.push_back(1500);
  for (const auto& [heads, kv_heads] : {std::pair{6, 2}, {4, 4}, {8, 1}}) {
    std::vector<std::vector<std::byte>> results;
    for (int threads : {1, 2, 3}) {
      if (kSanitized && threads == 2) continue;
      const auto device = *make_cpu_device(threads);
      AttentionWorld world(*device, shape(64, heads, kv_heads, 16 * threads), lengths);
      results.push_back(world.run(rows));
      EXPECT_EQ(results.back(), results.front()) << threads;
    }
  }
}

// The bound that sizes the arena holds for any batch within it, whatever the plan, and for any number of threads.
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
  const auto device = *make_cpu_device(3);
  AttentionWorld world(*device, {DType::kBF16, 64, 6, 2, 64}, {2000});
  const auto first = world.run(causal(0, 1984, 16));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(world.run(causal(0, 1984, 16)), first);
}

#endif

}  // namespace
}  // namespace volley::ops

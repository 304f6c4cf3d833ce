// Protects, on the CPU and on a GPU: the verify budget goes to the drafted tokens most likely to survive, ties are
// resolved as specified, and rows and choices are packed.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "ops/device_for_test.h"
#include "ops/step/step.h"

namespace volley::ops {
namespace {

constexpr int32_t kStride = 15;

// A table that maps a confidence to itself: log-odds in, the same log-odds out.
SurvivalTable honest_table() {
  SurvivalTable table;
  for (auto& row : table.log_odds) {
    for (int32_t b = 0; b < SurvivalTable::kBands; ++b) row[b] = SurvivalTable::kLowest + SurvivalTable::kWidth * b;
  }
  return table;
}

struct Block {
  std::vector<float> confidence;
  float shift = 0;
  bool done = false;
};

class ShareRows : public OnEachDevice {
 protected:
  // Segments after `rows` rows were shared out, each with a slot of its own.
  std::vector<StepSegment> share(const std::vector<Block>& blocks, int32_t rows) {
    std::vector<StepSegment> segments;
    std::vector<SlotRow> slots(blocks.size());
    std::vector<float> confidence;
    for (size_t i = 0; i < blocks.size(); ++i) {
      StepSegment s{.slot = static_cast<int32_t>(i), .chooses = 1};
      s.draft = s.drafts_reserved = static_cast<int32_t>(blocks[i].confidence.size());
      s.draft_begin = static_cast<int32_t>(confidence.size());
      s.shift = blocks[i].shift;
      slots[i].done = blocks[i].done ? 1 : 0;
      slots[i].length = 5;
      confidence.insert(confidence.end(), blocks[i].confidence.begin(), blocks[i].confidence.end());
      segments.push_back(s);
    }
    confidence.push_back(0);
    const DeviceTensor device_segments(*device_, segments), device_slots(*device_, slots);
    const DeviceTensor device_confidence(*device_, confidence), table(*device_, std::vector{honest_table()});
    const DeviceTensor reported(*device_, std::vector<float>(blocks.size() * kStride, -1.0f));
    const auto data = [](const DeviceTensor& t) { return t.view(DType::kU8, {1}).data; };
    Step step;
    step.segments = static_cast<StepSegment*>(data(device_segments));
    step.slots = static_cast<SlotRow*>(data(device_slots));
    step.n = static_cast<int32_t>(segments.size());
    SharePlan plan;
    plan.decoding = step.n;
    plan.rows = rows;
    plan.confidence = static_cast<float*>(data(device_confidence));
    plan.table = static_cast<SurvivalTable*>(data(table));
    plan.reported = static_cast<float*>(data(reported));
    plan.stride = kStride;
    share_verify_rows(device_->stream(), step, static_cast<StepSegment*>(data(device_segments)), plan);
    reported_ = reported.read<float>();
    return device_segments.read<StepSegment>();
  }

  static std::vector<int32_t> verified(const std::vector<StepSegment>& segments) {
    std::vector<int32_t> counts;
    for (const StepSegment& s : segments) counts.push_back(s.draft);
    return counts;
  }

  std::vector<float> reported_;
};

using Counts = std::vector<int32_t>;

TEST_P(ShareRows, GoToTheLikeliestPairs) {
  // Survival: 0.9, 0.81, 0.73 and 0.5, 0.25 and 0.8, 0.08.
  const std::vector<Block> blocks = {{{0.9f, 0.9f, 0.9f}}, {{0.5f, 0.5f}}, {{0.8f, 0.1f}}};
  EXPECT_EQ(verified(share(blocks, 3)), (Counts{0, 0, 0}));
  EXPECT_EQ(verified(share(blocks, 4)), (Counts{1, 0, 0}));
  EXPECT_EQ(verified(share(blocks, 5)), (Counts{2, 0, 0}));
  EXPECT_EQ(verified(share(blocks, 6)), (Counts{2, 0, 1}));
  EXPECT_EQ(verified(share(blocks, 7)), (Counts{3, 0, 1}));
  EXPECT_EQ(verified(share(blocks, 9)), (Counts{3, 2, 1}));
  EXPECT_EQ(verified(share(blocks, 20)), (Counts{3, 2, 2}));
}

TEST_P(ShareRows, TiesGoToTheLowerPositionThenTheLowerSegment) {
  const std::vector<Block> blocks(5, {std::vector<float>(4, 0.7f)});
  EXPECT_EQ(verified(share(blocks, 5 + 2)), (Counts{1, 1, 0, 0, 0}));
  EXPECT_EQ(verified(share(blocks, 5 + 8)), (Counts{2, 2, 2, 1, 1}));
  EXPECT_EQ(verified(share(blocks, 5 + 20)), (Counts{4, 4, 4, 4, 4}));
}

TEST_P(ShareRows, ARequestsShiftCounts) {
  const std::vector<Block> blocks = {{{0.6f, 0.6f}}, {{0.6f, 0.6f}, 2.0f}};
  EXPECT_EQ(verified(share(blocks, 4)), (Counts{0, 2}));
}

TEST_P(ShareRows, SlotsThatAreDoneGetNothing) {
  const std::vector<Block> blocks = {{{0.99f, 0.99f}, 0, true}, {{0.2f, 0.2f}}};
  EXPECT_EQ(verified(share(blocks, 4)), (Counts{0, 2}));
}

TEST_P(ShareRows, RowsAndChoicesArePackedAndTheRestIsReserve) {
  const auto segments = share({{{0.9f, 0.9f}}, {{}}, {{0.8f}}}, 12);
  EXPECT_EQ(verified(segments), (Counts{2, 0, 1}));
  const Counts begins = {0, 3, 4}, reserved = {3, 1, 8};
  for (size_t i = 0; i < segments.size(); ++i) {
    EXPECT_EQ(segments[i].row_begin, begins[i]);
    EXPECT_EQ(segments[i].choice_begin, begins[i]);
    EXPECT_EQ(segments[i].rows_reserved, reserved[i]);
    EXPECT_EQ(segments[i].choices_reserved, reserved[i]);
  }
}

TEST_P(ShareRows, ConfidenceIsReportedAsItCame) {
  const auto segments = share({{{0.25f, 0.5f}}, {{}}, {{0.75f}}}, SharePlan::kAll);
  EXPECT_EQ(verified(segments), (Counts{2, 0, 1})) << "nothing is shared out: segments stay";
  EXPECT_EQ(reported_[0], 0.25f);
  EXPECT_EQ(reported_[1], 0.5f);
  EXPECT_EQ(reported_[2], -1.0f);
  EXPECT_EQ(reported_[2 * kStride], 0.75f);
}

// Against a plain sort, over random blocks with many equal values.
TEST_P(ShareRows, AgreesWithASort) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const int n = 1 + static_cast<int>(random() % 140);
    std::vector<Block> blocks(n);
    int32_t all = n;
    for (Block& block : blocks) {
      block.done = random() % 8 == 0;
      block.confidence.resize(random() % (kStride + 1));
      for (float& c : block.confidence) c = static_cast<float>(1 + random() % 9) / 10;
      all += static_cast<int32_t>(block.confidence.size());
    }
    const int32_t rows = n + static_cast<int32_t>(random() % static_cast<unsigned>(all - n + 3));
    struct Pair {
      float survival;
      size_t position, segment;
    };
    std::vector<Pair> pairs;
    const SurvivalTable table = honest_table();
    for (size_t s = 0; s < blocks.size(); ++s) {
      float survival = 1;
      for (size_t j = 0; j < blocks[s].confidence.size() && !blocks[s].done; ++j) {
        survival *= acceptance_chance(table, static_cast<int32_t>(j), blocks[s].confidence[j], 0);
        pairs.push_back({survival, j, s});
      }
    }
    // The two devices' exponentials differ in the last bits, so nearly equal values may swap; the test therefore
    // compares the total worth of the chosen tokens.
    std::ranges::sort(pairs, std::greater<>(), &Pair::survival);
    pairs.resize(std::min(pairs.size(), static_cast<size_t>(rows - n)));
    const auto segments = share(blocks, rows);
    double best = 0, got = 0;
    for (const Pair& pair : pairs) best += pair.survival;
    size_t given = 0;
    int32_t row = 0;
    for (size_t s = 0; s < segments.size(); ++s) {
      EXPECT_EQ(segments[s].row_begin, row);
      row += segments[s].rows_reserved;
      given += static_cast<size_t>(segments[s].draft);
      double survival = 1;
      for (int32_t j = 0; j < segments[s].draft; ++j) {
        got += survival *= acceptance_chance(table, j, blocks[s].confidence[static_cast<size_t>(j)], 0);
      }
    }
    EXPECT_EQ(row, rows);
    EXPECT_EQ(given, pairs.size());
    EXPECT_NEAR(got, best, 1e-4 * (1 + best));
  }
}

VOLLEY_ON_EACH_DEVICE(ShareRows);

}  // namespace
}  // namespace volley::ops

// Protects: the hidden state before a row is the one at the position before it, from the same pass or from an earlier
// one, never a rejected one's or another sequence's; and rows of a chain stand where their tokens do.
#include "ops/chain/chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace volley::ops {
namespace {

using testing::ElementsAre;

constexpr int32_t kDepth = 3, kSlots = 2;

class ChainTest : public testing::Test {
 protected:
  ChainTest() : device_(*make_cpu_device(1)), hidden_(kSlots * kDepth), positions_(kSlots * kDepth, -1) {
    carry_ = {view(hidden_.data(), DType::kF32, kSlots * kDepth, 1),
              TensorView(positions_.data(), DType::kI32, {kSlots * kDepth}), kDepth};
  }

  static TensorView view(void* data, DType dtype, int64_t rows, int64_t width) {
    return TensorView(data, dtype, {rows, width});
  }

  // The hidden states before rows (slot, position), where each row's own is 100 * slot + position + `more`.
  std::vector<float> pass(const std::vector<std::pair<int32_t, int32_t>>& places, float more = 0, bool known = true) {
    std::vector<int32_t> slots, positions;
    std::vector<float> own, before(places.size(), -1);
    for (const auto& [slot, position] : places) {
      slots.push_back(slot);
      positions.push_back(position);
      own.push_back(static_cast<float>(100 * slot + position) + more);
    }
    const auto n = static_cast<int64_t>(places.size());
    Rows rows;
    rows.rows = static_cast<int32_t>(n);
    rows.slots = TensorView(slots.data(), DType::kI32, {n});
    rows.cache_positions = TensorView(positions.data(), DType::kI32, {n});
    const TensorView hidden = known ? view(own.data(), DType::kF32, n, 1) : TensorView();
    take_previous(device_->stream(), rows, hidden, carry_, view(before.data(), DType::kF32, n, 1));
    if (known) carry_last(device_->stream(), rows, hidden, carry_);
    return before;
  }

  std::unique_ptr<Device> device_;
  std::vector<float> hidden_;
  std::vector<int32_t> positions_;
  HiddenCarry carry_;
};

TEST_F(ChainTest, TheHiddenStateBeforeARowIsFoundAcrossPasses) {
  EXPECT_THAT(pass({{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 7}, {1, 8}}), ElementsAre(0, 0, 1, 2, 0, 107));
  EXPECT_THAT(pass({{1, 9}, {0, 4}, {0, 5}}), ElementsAre(108, 3, 4));
  EXPECT_THAT(pass({{0, 6}, {1, 10}, {1, 12}}, 0, false), ElementsAre(5, 109, 0));
}

TEST_F(ChainTest, RejectedRowsAreOverwritten) {
  pass({{0, 0}, {0, 1}});
  pass({{0, 2}, {0, 3}, {0, 4}}, 50);  // of which only the first is kept
  EXPECT_THAT(pass({{0, 3}}), ElementsAre(52));
  EXPECT_THAT(pass({{0, 4}}, 0, false), ElementsAre(3));
}

TEST_F(ChainTest, RowsStandWhereTheirTokensDo) {
  SlotRow slot;
  slot.length = 5, slot.last_token = 8;
  StepSegment segment;
  segment.block_index = 0, segment.draft = 2, segment.draft_begin = 1;
  Step step;
  step.segments = &segment, step.n = 1, step.blocks = 1, step.slots = &slot;
  int32_t token = -1, of_slot = -1, rope = -1, place = -1, begin = -1, end = -1, logit_row = -1;
  const auto one = [](int32_t& value) { return TensorView(&value, DType::kI32, {1}); };
  RowSegment run;
  ChoiceSegment choice;
  Rows rows;
  rows.rows = 1;
  rows.token_ids = one(token), rows.slots = one(of_slot), rows.rope_positions = one(rope);
  rows.cache_positions = one(place), rows.segments = &run;
  rows.views[kWholeView].begin = one(begin), rows.views[kWholeView].end = one(end);
  PassChoices choices;
  choices.segments = &choice, choices.logit_rows = one(logit_row);
  const TokenId chosen = 3;
  const float sure = 0.5f;
  for (const int32_t j : {0, 1}) {
    fill_chain_rows(device_->stream(), step, j, &chosen, rows, choices);
    EXPECT_EQ(token, j == 0 ? 8 : 3);
    EXPECT_THAT((std::vector{rope, place, begin, end, choice.first_index}), ElementsAre(4 + j, 4 + j, 1, 5 + j, 5 + j));
    EXPECT_EQ(choice.rows, 1);
  }
  fill_chain_rows(device_->stream(), step, 2, &chosen, rows, choices);
  EXPECT_EQ(choice.rows, 0) << "two tokens are wanted; padding, which wants none, has no slot that could choose";
  std::vector<TokenId> drafts(4, -1);
  std::vector<float> confidence(4, -1);
  for (const int32_t j : {0, 1, 2}) {
    put_chain_drafts(device_->stream(), step, j, &chosen, &sure, drafts.data(), confidence.data());
  }
  EXPECT_THAT(drafts, ElementsAre(-1, 3, 3, -1)) << "no more than are wanted";
  slot.length = 1;
  fill_chain_rows(device_->stream(), step, 0, nullptr, rows, choices);
  EXPECT_THAT((std::vector{begin, end}), ElementsAre(0, 1)) << "a row sees itself";
}

}  // namespace
}  // namespace volley::ops

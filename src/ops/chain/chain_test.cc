// Protects, on the CPU and on a GPU: the hidden state before a row is the one at the position before it, from the same
// pass or from an earlier one, never a rejected one's or another sequence's; and rows of a chain stand where their
// tokens do.
#include "ops/chain/chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "ops/device_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

using testing::ElementsAre;

constexpr int32_t kDepth = 3, kSlots = 2, kWidth = 131;

// Hidden states whose elements are one number and those that follow it, and what passes carry of them.
class Chain {
 public:
  Chain(Device& device, DType dtype)
      : device_(device),
        dtype_(dtype),
        hidden_(device, size_t{kSlots} * kDepth * kWidth * dtype_size(dtype)),
        positions_(device, std::vector<int32_t>(kSlots * kDepth, -1)) {
    carry_ = {hidden_.view(dtype, {kSlots * kDepth, kWidth}), positions_.view(DType::kI32, {kSlots * kDepth}), kDepth};
  }

  // The first elements of the hidden states before rows (slot, position), where each row's own is 100 * slot + position
  // + `more`.
  std::vector<float> pass(const std::vector<std::pair<int32_t, int32_t>>& places, float more = 0, bool known = true) {
    std::vector<int32_t> slots, positions;
    std::vector<float> own;
    for (const auto& [slot, position] : places) {
      slots.push_back(slot);
      positions.push_back(position);
      for (int32_t i = 0; i < kWidth; ++i) own.push_back(static_cast<float>(100 * slot + position + i) + more);
    }
    const auto n = std::ssize(places);
    std::vector<BFloat16> rounded;
    for (const float value : own) rounded.push_back(to_bfloat16(value));
    const DeviceTensor slots_there(device_, slots), positions_there(device_, positions);
    const DeviceTensor own_there = dtype_ == DType::kF32 ? DeviceTensor(device_, own) : DeviceTensor(device_, rounded);
    const DeviceTensor before(device_, static_cast<size_t>(n * kWidth) * 4);
    Rows rows;
    rows.rows = static_cast<int32_t>(n);
    rows.slots = slots_there.view(DType::kI32, {n});
    rows.cache_positions = positions_there.view(DType::kI32, {n});
    const TensorView hidden = known ? own_there.view(dtype_, {n, kWidth}) : TensorView();
    take_previous(device_.stream(), rows, hidden, carry_, before.view(DType::kF32, {n, kWidth}));
    if (known) carry_last(device_.stream(), rows, hidden, carry_);
    const std::vector<float> got = before.read<float>();
    std::vector<float> firsts;
    for (int64_t r = 0; r < n; ++r) {
      const float first = firsts.emplace_back(got[r * kWidth]);
      const bool none = got[r * kWidth + 1] == 0;  // made of zeros
      for (int32_t i = 0; i < kWidth; ++i) {
        const float want = none ? 0 : first + static_cast<float>(i);
        EXPECT_EQ(got[r * kWidth + i], dtype_ == DType::kF32 ? want : to_float(to_bfloat16(want))) << "row " << r;
      }
    }
    return firsts;
  }

 private:
  Device& device_;
  const DType dtype_;
  const DeviceTensor hidden_, positions_;
  HiddenCarry carry_;
};

DEVICE_TEST(Chain, TheHiddenStateBeforeARowIsFoundAcrossPasses) {
  DEVICE_UNDER_TEST;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Chain chain(device, dtype);
    EXPECT_THAT(chain.pass({{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 7}, {1, 8}}), ElementsAre(0, 0, 1, 2, 0, 107));
    EXPECT_THAT(chain.pass({{1, 9}, {0, 4}, {0, 5}}), ElementsAre(108, 3, 4));
    EXPECT_THAT(chain.pass({{0, 6}, {1, 10}, {1, 12}}, 0, false), ElementsAre(5, 109, 0));
  }
}

DEVICE_TEST(Chain, RejectedRowsAreOverwritten) {
  DEVICE_UNDER_TEST;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Chain chain(device, dtype);
    chain.pass({{0, 0}, {0, 1}});
    chain.pass({{0, 2}, {0, 3}, {0, 4}}, 50);  // of which only the first is kept
    EXPECT_THAT(chain.pass({{0, 3}}), ElementsAre(52));
    EXPECT_THAT(chain.pass({{0, 4}}, 0, false), ElementsAre(3));
  }
}

// A step of one block, and the row that it gets.
struct OneBlock {
  explicit OneBlock(Device& device) : device(device) {}

  struct Row {
    int32_t token, rope_position, cache_position, begin, end, first_index, rows;
  };
  Row fill(const SlotRow& slot, int32_t j, const DeviceTensor& chosen) const {
    const DeviceTensor slots(device, std::vector{slot}), segments(device, std::vector{segment});
    const DeviceTensor places(device, 7 * 4), run(device, sizeof(RowSegment)), choice(device, sizeof(ChoiceSegment));
    Step step;
    step.segments = pointer<StepSegment>(segments), step.n = 1, step.blocks = 1, step.slots = pointer<SlotRow>(slots);
    const auto place = [&](int64_t i) {
      return TensorView(places.view(DType::kI32, {7}).as<int32_t>() + i, DType::kI32, {1});
    };
    Rows rows;
    rows.rows = 1;
    rows.token_ids = place(0), rows.rope_positions = place(1), rows.cache_positions = place(2);
    rows.views[kWholeView].begin = place(3), rows.views[kWholeView].end = place(4), rows.slots = place(5);
    rows.segments = pointer<RowSegment>(run);
    PassChoices choices;
    choices.segments = pointer<ChoiceSegment>(choice), choices.logit_rows = place(6);
    fill_chain_rows(device.stream(), step, j, pointer<TokenId>(chosen), rows, choices);
    const std::vector<int32_t> got = places.read<int32_t>();
    const ChoiceSegment made = choice.read<ChoiceSegment>()[0];
    return {got[0], got[1], got[2], got[3], got[4], made.first_index, made.rows};
  }
  template <typename T>
  static T* pointer(const DeviceTensor& tensor) {
    return static_cast<T*>(tensor.view(DType::kU8, {1}).data);
  }

  Device& device;
  StepSegment segment;
};

DEVICE_TEST(Chain, RowsStandWhereTheirTokensDo) {
  DEVICE_UNDER_TEST;
  OneBlock block(device);
  block.segment.block_index = 0, block.segment.draft = 2, block.segment.draft_begin = 1;
  SlotRow slot;
  slot.length = 5, slot.last_token = 8;
  const DeviceTensor chosen(device, std::vector<TokenId>{3});
  for (const int32_t j : {0, 1}) {
    const OneBlock::Row row = block.fill(slot, j, chosen);
    EXPECT_EQ(row.token, j == 0 ? 8 : 3);
    EXPECT_THAT((std::vector{row.rope_position, row.cache_position, row.begin, row.end, row.first_index}),
                ElementsAre(4 + j, 4 + j, 1, 5 + j, 5 + j));
    EXPECT_EQ(row.rows, 1);
  }
  EXPECT_EQ(block.fill(slot, 2, chosen).rows, 0)
      << "two tokens are wanted; padding, which wants none, has no slot that could choose";
  slot.length = 1;
  const OneBlock::Row first = block.fill(slot, 0, chosen);
  EXPECT_THAT((std::vector{first.begin, first.end}), ElementsAre(0, 1)) << "a row sees itself";
}

DEVICE_TEST(Chain, OnlyWantedTokensBecomeDrafts) {
  DEVICE_UNDER_TEST;
  OneBlock block(device);
  block.segment.block_index = 0, block.segment.draft = 2, block.segment.draft_begin = 1;
  const DeviceTensor segments(device, std::vector{block.segment}), chosen(device, std::vector<TokenId>{3}),
      probability(device, std::vector{0.5f}), drafts(device, std::vector<TokenId>(4, -1)),
      confidence(device, std::vector<float>(4, -1));
  Step step;
  step.segments = OneBlock::pointer<StepSegment>(segments), step.n = 1, step.blocks = 1;
  for (const int32_t j : {0, 1, 2}) {
    put_chain_drafts(device.stream(), step, j, OneBlock::pointer<TokenId>(chosen),
                     OneBlock::pointer<float>(probability), OneBlock::pointer<TokenId>(drafts),
                     OneBlock::pointer<float>(confidence));
  }
  EXPECT_THAT(drafts.read<TokenId>(), ElementsAre(-1, 3, 3, -1));
  EXPECT_THAT(confidence.read<float>(), ElementsAre(-1, 0.5f, 0.5f, -1));
}

}  // namespace
}  // namespace volley::ops

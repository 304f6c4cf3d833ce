// Protects: a replayed draft is the recorded answer's next tokens, wrong as often as asked, at places that depend on
// nothing but the request; so tests that count on partial acceptance get it.
#include "ops/replay/replay.h"

#include <gtest/gtest.h>

#include <vector>

namespace volley::ops {
namespace {

class ReplayTest : public ::testing::Test {
 protected:
  ReplayTest() : device_(*make_cpu_device(1)) {
    slots_[0].seed = 9, slots_[0].prompt_length = 10, slots_[0].length = 13;  // three outputs so far
    slots_[1].seed = 4, slots_[1].prompt_length = 2, slots_[1].length = 3;
    for (int i = 0; i < 2000; ++i) tokens_.push_back(i % 50);
    table_.seeds = seeds_.data();
    table_.begins = begins_.data();
    table_.tokens = tokens_.data();
    table_.answers = 2;
    table_.vocab = 50;
  }

  std::vector<TokenId> draft(int32_t slot, int32_t n) {
    StepSegment segment;
    segment.slot = slot;
    segment.block_index = 0;
    segment.draft = n;
    Step step;
    step.segments = &segment;
    step.n = 1;
    step.slots = slots_;
    std::vector<TokenId> out(static_cast<size_t>(n), -1);
    confidence_.assign(static_cast<size_t>(n), -1);
    replay_drafts(device_->stream(), step, table_, out.data(), confidence_.data());
    return out;
  }

  std::unique_ptr<Device> device_;
  SlotRow slots_[2];
  std::vector<uint64_t> seeds_ = {4, 9};
  std::vector<int32_t> begins_ = {0, 5, 2000};  // answer of seed 9: from token 5 on
  std::vector<TokenId> tokens_;
  std::vector<float> confidence_;
  ReplayTable table_;
};

TEST_F(ReplayTest, ProposesWhatComesNext) {
  EXPECT_EQ(draft(0, 4), (std::vector<TokenId>{8, 9, 10, 11}));
  EXPECT_EQ(draft(1, 3), (std::vector<TokenId>{1, 2, 3}));
}

TEST_F(ReplayTest, IsRightAsOftenAsAskedAndSaysWhere) {
  table_.accuracy = 0.75f;
  const auto tokens = draft(0, 1900);
  int right = 0;
  double confidence_right = 0, confidence_wrong = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    ASSERT_TRUE(tokens[i] >= 0 && tokens[i] < 50);
    const bool same = tokens[i] == tokens_[8 + i];
    right += same;
    (same ? confidence_right : confidence_wrong) += confidence_[i];
  }
  EXPECT_NEAR(right / 1900.0, 0.75, 0.04);
  EXPECT_GT(confidence_right / right, confidence_wrong / (1900 - right));
}

// The same place gives the same proposal whatever step it is drafted in.
TEST_F(ReplayTest, DependsOnThePlaceAlone) {
  table_.accuracy = 0.5f;
  const auto whole = draft(0, 20);
  slots_[0].length += 7;
  const auto later = draft(0, 13);
  EXPECT_EQ(std::vector<TokenId>(whole.begin() + 7, whole.end()), later);
  table_.salt = 1;
  EXPECT_NE(draft(0, 13), later);
}

TEST_F(ReplayTest, PastTheEndAndWithoutAnAnswerTokensAreStillTokens) {
  slots_[1].seed = 5;
  for (const TokenId token : draft(1, 8)) EXPECT_TRUE(token >= 0 && token < 50);
  slots_[0].length = 5000;
  for (const TokenId token : draft(0, 8)) EXPECT_TRUE(token >= 0 && token < 50);
}

}  // namespace
}  // namespace volley::ops

#include "ops/acceptance/acceptance.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace volley::ops {
namespace {

struct Case {
  std::string name;
  std::vector<int32_t> draft, choice;
  std::vector<int32_t> end_ids = {};
  int32_t budget = 100;
  int32_t min_tokens_left = 0;
  int32_t forced_accept = -1;
  std::vector<int32_t> tokens;  // committed
  int32_t accepted = 0;
  bool ended = false, exhausted = false;
};

const std::vector<Case> kCases = {
    {.name = "an empty block is plain decoding", .draft = {}, .choice = {7}, .tokens = {7}},
    {.name = "an empty block ends", .draft = {}, .choice = {2}, .end_ids = {2}, .tokens = {2}, .ended = true},
    {.name = "an empty block uses the budget up",
     .draft = {},
     .choice = {7},
     .budget = 1,
     .tokens = {7},
     .exhausted = true},
    {.name = "all agree", .draft = {5, 6, 7}, .choice = {5, 6, 7, 8}, .tokens = {5, 6, 7, 8}, .accepted = 3},
    {.name = "the first differs", .draft = {5, 6, 7}, .choice = {9, 6, 7, 8}, .tokens = {9}},
    {.name = "a later agreement does not count",
     .draft = {5, 6, 7},
     .choice = {5, 9, 7, 8},
     .tokens = {5, 9},
     .accepted = 1},
    {.name = "an end id inside the drafted run",
     .draft = {5, 2, 7},
     .choice = {5, 2, 7, 8},
     .end_ids = {3, 2},
     .tokens = {5, 2},
     .accepted = 2,
     .ended = true},
    {.name = "an end id as the bonus",
     .draft = {5, 6},
     .choice = {5, 2, 8},
     .end_ids = {2},
     .tokens = {5, 2},
     .accepted = 1,
     .ended = true},
    {.name = "a drafted end id that the target does not want",
     .draft = {5, 2},
     .choice = {5, 9, 8},
     .end_ids = {2},
     .tokens = {5, 9},
     .accepted = 1},
    {.name = "the budget cuts the drafted run",
     .draft = {5, 6, 7},
     .choice = {5, 6, 7, 8},
     .budget = 2,
     .tokens = {5, 6},
     .accepted = 2,
     .exhausted = true},
    {.name = "the budget cuts the bonus",
     .draft = {5, 6, 7},
     .choice = {5, 6, 7, 8},
     .budget = 3,
     .tokens = {5, 6, 7},
     .accepted = 3,
     .exhausted = true},
    {.name = "the budget is just enough",
     .draft = {5, 6, 7},
     .choice = {5, 6, 7, 8},
     .budget = 4,
     .tokens = {5, 6, 7, 8},
     .accepted = 3,
     .exhausted = true},
    {.name = "ended wins over exhausted",
     .draft = {5, 2},
     .choice = {5, 2, 8},
     .end_ids = {2},
     .budget = 2,
     .tokens = {5, 2},
     .accepted = 2,
     .ended = true},
    {.name = "the budget comes before the end id",
     .draft = {5, 2},
     .choice = {5, 2, 8},
     .end_ids = {2},
     .budget = 1,
     .tokens = {5},
     .accepted = 1,
     .exhausted = true},
    {.name = "an end id while outputs are owed is a token",
     .draft = {5, 2, 7},
     .choice = {5, 2, 7, 8},
     .end_ids = {2},
     .min_tokens_left = 2,
     .tokens = {5, 2, 7, 8},
     .accepted = 3},
    {.name = "an end id once enough are committed",
     .draft = {5, 2, 7},
     .choice = {5, 2, 7, 8},
     .end_ids = {2},
     .min_tokens_left = 1,
     .tokens = {5, 2},
     .accepted = 2,
     .ended = true},
    {.name = "the second end id counts",
     .draft = {2, 2, 7},
     .choice = {2, 2, 7, 8},
     .end_ids = {2},
     .min_tokens_left = 1,
     .tokens = {2, 2},
     .accepted = 2,
     .ended = true},
    {.name = "forced acceptance ignores the choices",
     .draft = {5, 6, 7},
     .choice = {1, 1, 9, 1},
     .forced_accept = 2,
     .tokens = {5, 6, 9},
     .accepted = 2},
    {.name = "forced to nothing", .draft = {5, 6}, .choice = {5, 6, 8}, .forced_accept = 0, .tokens = {5}},
    {.name = "forced beyond the block",
     .draft = {5, 6},
     .choice = {1, 1, 8},
     .forced_accept = 9,
     .tokens = {5, 6, 8},
     .accepted = 2},
    {.name = "forced acceptance still ends",
     .draft = {5, 2, 7},
     .choice = {1, 1, 1, 1},
     .end_ids = {2},
     .forced_accept = 3,
     .tokens = {5, 2},
     .accepted = 2,
     .ended = true},
};

AcceptBlock block_of(const Case& c) {
  AcceptBlock block;
  block.drafted = static_cast<int32_t>(c.draft.size());
  block.draft = c.draft.data();
  block.choice = c.choice.data();
  block.forced_accept = c.forced_accept;
  block.min_tokens_left = c.min_tokens_left;
  block.budget = c.budget;
  block.end_ids = c.end_ids.data();
  block.end_count = static_cast<int32_t>(c.end_ids.size());
  return block;
}

// Nothing is written past the committed tokens.
TEST(Acceptance, FollowsTheTable) {
  constexpr int32_t kUntouched = -77;
  for (const Case& c : kCases) {
    std::vector<int32_t> tokens(5, kUntouched);
    const AcceptResult result = accept_block(block_of(c), tokens.data());
    std::vector<int32_t> expected = c.tokens;
    expected.resize(tokens.size(), kUntouched);
    EXPECT_EQ(tokens, expected) << c.name;
    EXPECT_EQ(result.committed, static_cast<int32_t>(c.tokens.size())) << c.name;
    EXPECT_EQ(result.accepted, c.accepted) << c.name;
    EXPECT_EQ(result.ended, c.ended) << c.name;
    EXPECT_EQ(result.exhausted, c.exhausted) << c.name;
  }
}

// The purpose of the rule: whatever is drafted, rounds commit the same tokens as one-by-one decoding.
TEST(Acceptance, CommitsWhatPlainDecodingWould) {
  const auto target = [](int32_t position) { return (position * 7 + 3) % 11; };
  for (int wrong_every : {1, 2, 3, 5, 100}) {
    std::vector<int32_t> text;
    while (text.size() < 60) {
      const auto n = static_cast<int32_t>(text.size());
      std::vector<int32_t> draft, choice;
      for (int32_t i = 0; i < 7; ++i) draft.push_back((n + i) % wrong_every == 0 ? -1 : target(n + i));
      for (int32_t i = 0; i < 8; ++i) choice.push_back(target(n + i));
      AcceptBlock block;
      block.drafted = 7;
      block.draft = draft.data();
      block.choice = choice.data();
      block.budget = 60 - n;
      std::vector<int32_t> tokens(8);
      const AcceptResult result = accept_block(block, tokens.data());
      text.insert(text.end(), tokens.begin(), tokens.begin() + result.committed);
      EXPECT_EQ(result.exhausted, text.size() == 60);
    }
    ASSERT_EQ(text.size(), 60u);
    for (int32_t i = 0; i < 60; ++i) ASSERT_EQ(text[i], target(i));
  }
}

}  // namespace
}  // namespace volley::ops

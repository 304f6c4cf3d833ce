// Protects a request's own rules: the tokens allowed at each position of a drafted block, the end of a request that
// contradicts itself, and the detection of repetitions.
#include "engine/run/token_rules.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/run/grammar_masks.h"

namespace volley::engine {
namespace {

constexpr int32_t kVocab = 70;
constexpr int32_t kWords = 3;
using Tokens = std::vector<TokenId>;

// Lists the tokens that each row of a block allows.
std::vector<Tokens> rows_of(GrammarMasks& masks, const Tokens& drafted) {
  std::vector<uint32_t> words((drafted.size() + 1) * kWords, 0xabababab);
  masks.fill(drafted, words.data(), kWords);
  std::vector<Tokens> rows(drafted.size() + 1);
  for (size_t row = 0; row < rows.size(); ++row) {
    for (TokenId token = 0; token < kVocab; ++token) {
      if (words[row * kWords + token / 32] >> (token % 32) & 1) rows[row].push_back(token);
    }
  }
  return rows;
}

Tokens all_but(const Tokens& left_out) {
  Tokens tokens;
  for (TokenId token = 0; token < kVocab; ++token) {
    if (std::ranges::count(left_out, token) == 0) tokens.push_back(token);
  }
  return tokens;
}

GrammarMasks masks_of(const GenerateRequest& request, Tokens end_ids = {}) {
  return GrammarMasks(nullptr, TokenRules(request, kVocab), {std::move(end_ids), request.min_tokens, kVocab});
}

decode::RoundResult result_of(Tokens tokens, bool finite = true) {
  decode::RoundResult result;
  result.tokens = std::move(tokens);
  result.accepted = static_cast<int32_t>(result.tokens.size());
  result.finite = finite;
  return result;
}

TEST(TokenRules, OnlyAllowedTokensAreLeft) {
  GenerateRequest request;
  request.allowed_tokens = {3, 64, 69};
  auto masks = masks_of(request, {5});
  EXPECT_EQ(rows_of(masks, {3, 64}), (std::vector<Tokens>(3, request.allowed_tokens)))
      << "an end id is one of them or not";
}

// A word of several tokens is forbidden only after its beginning, committed or drafted.
TEST(TokenRules, BadWordsAreNotCompleted) {
  GenerateRequest request;
  request.bad_words = {{7}, {1, 2, 3}, {2, 40}};
  auto masks = masks_of(request);
  EXPECT_EQ(rows_of(masks, {1, 2, 9}),
            (std::vector<Tokens>{all_but({7}), all_but({7}), all_but({7, 3, 40}), all_but({7})}));
  auto committed = result_of({4, 1, 2});
  ASSERT_TRUE(masks.commit(committed).ok());
  EXPECT_EQ(rows_of(masks, {2}), (std::vector<Tokens>{all_but({7, 3, 40}), all_but({7, 40})}));
}

TEST(TokenRules, ThinkingEndsWithItsBudget) {
  GenerateRequest request;
  request.thinking = ThinkingBudget{.tokens = 2, .begin = 10, .end = 11};
  auto masks = masks_of(request);
  const Tokens any = all_but({});
  EXPECT_EQ(rows_of(masks, {10, 1, 2, 11, 3}), (std::vector<Tokens>{any, any, any, {11}, any, any}));
  auto committed = result_of({10, 1, 2});
  ASSERT_TRUE(masks.commit(committed).ok());
  EXPECT_EQ(rows_of(masks, {11, 10}), (std::vector<Tokens>{{11}, any, {11}})) << "what is used up stays used up";

  request.thinking->begun = true;
  request.thinking->tokens = 0;
  auto at_once = masks_of(request);
  EXPECT_EQ(rows_of(at_once, {}), std::vector<Tokens>{{11}});
}

// Where the lists leave no token, the request fails with the tokens before that place. Later rows are not looked at.
TEST(TokenRules, AContradictionFailsItsRequest) {
  GenerateRequest request;
  request.allowed_tokens = {1, 2};
  request.bad_words = {{1, 2}, {1, 1}};
  auto masks = masks_of(request);
  EXPECT_EQ(rows_of(masks, {1, 2}), (std::vector<Tokens>{{1, 2}, {}, all_but({})}));
  auto stuck = result_of({1}, false);
  const auto complete = masks.commit(stuck);
  ASSERT_FALSE(complete.ok());
  EXPECT_EQ(complete.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(complete.error().message.find("contradict"), std::string::npos);
  EXPECT_EQ(stuck.tokens, (Tokens{1}));

  // Logits that are no numbers before that are not the request's fault.
  auto other = masks_of(request);
  rows_of(other, {1, 2});
  auto broken = result_of({}, false);
  ASSERT_TRUE(other.commit(broken).ok());
  EXPECT_FALSE(broken.finite);
}

// Before min_tokens outputs the choice leaves out end ids, so a row that allows only these has no choice.
TEST(TokenRules, EndIdsBeforeMinTokensAreNoWayOut) {
  GenerateRequest request;
  request.allowed_tokens = {5};
  request.min_tokens = 1;
  auto masks = masks_of(request, {5});
  rows_of(masks, {});
  auto stuck = result_of({}, false);
  EXPECT_FALSE(masks.commit(stuck).ok());

  request.min_tokens = 0;
  auto ends = masks_of(request, {5});
  EXPECT_EQ(rows_of(ends, {}), std::vector<Tokens>{{5}});
}

// Compares every size at every length, to check the counters.
bool repeats(const Tokens& tokens, const RepetitionDetection& rule) {
  for (int32_t size = rule.min_size; size <= rule.max_size; ++size) {
    const int64_t needed = int64_t{size} * rule.min_count;
    if (needed > std::ssize(tokens)) continue;
    const auto last = tokens.end() - needed;
    bool equal = true;
    for (int64_t i = size; i < needed; ++i) equal = equal && last[i] == last[i - size];
    if (equal) return true;
  }
  return false;
}

TEST(Repetition, IsFoundAtTheTokenThatCompletesIt) {
  uint32_t state = 1;
  int found = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const RepetitionDetection rule{1 + trial % 3, 3 + trial % 5, 2 + trial % 4};
    RepetitionDetector detector(rule);
    Tokens tokens;
    for (int i = 0; i < 60; ++i) {
      state = state * 1664525u + 1013904223u;
      // Mostly repeats tokens from some places before.
      const size_t back = 1 + trial % 6;
      const bool copies = tokens.size() >= back && (state >> 24) < 230;
      tokens.push_back(copies ? tokens[tokens.size() - back] : static_cast<TokenId>(state >> 30));
      const bool expected = repeats(tokens, rule);
      ASSERT_EQ(detector.push(tokens.back()), expected) << "trial " << trial << ", token " << i;
      found += expected;
    }
  }
  EXPECT_GT(found, 1000);
  EXPECT_LT(found, 17'000);
}

}  // namespace
}  // namespace volley::engine

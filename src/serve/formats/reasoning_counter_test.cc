// Protects reasoning_tokens: which tokens count, at any position of the markers.
#include "serve/formats/reasoning_counter.h"

#include <gtest/gtest.h>

namespace volley::serve {
namespace {

int64_t count(ReasoningStart start, const std::vector<std::string>& tokens) {
  ReasoningCounter counter(start);
  for (const std::string& token : tokens) counter.push(token);
  return counter.tokens();
}

TEST(ReasoningCounter, CountsWhatStandsBetweenTheMarkers) {
  const std::vector<std::string> thoughts = {"<think>", "\n", "Hm", " so", "\n", "</think>", "\n\n", "Yes", "</think>"};
  EXPECT_EQ(count(ReasoningStart::kClosed, thoughts), 4);
  EXPECT_EQ(count(ReasoningStart::kOpen, thoughts), 4) << "a marker that the prompt has already";
  EXPECT_EQ(count(ReasoningStart::kOpen, {"Hm", " so", "</think>", "Yes"}), 2);
  EXPECT_EQ(count(ReasoningStart::kOpen, {"Hm", " so"}), 2) << "cut off in the middle";
  EXPECT_EQ(count(ReasoningStart::kOpen, {"</think>", "Yes"}), 0);
  EXPECT_EQ(count(ReasoningStart::kClosed, {"Yes", "<think>", "Hm", "</think>"}), 0) << "thoughts come first";
  EXPECT_EQ(count(ReasoningStart::kOff, thoughts), 0);
}

// In vocabularies without the markers, their letters share tokens with the text around.
TEST(ReasoningCounter, MarkersOfSeveralTokens) {
  EXPECT_EQ(count(ReasoningStart::kClosed, {" ", "<th", "ink", ">Hm", " so", ".</", "think", ">\nY", "es"}), 3)
      << ">Hm, so, and .</ begin before the end";
  EXPECT_EQ(count(ReasoningStart::kClosed, {"<th", "at"}), 0);
  EXPECT_EQ(count(ReasoningStart::kOpen, {"a", "<", "/", "t", "h", "ink>", "b"}), 1);
  EXPECT_EQ(count(ReasoningStart::kOpen, {"a", "</thin", "g", "</", "think>"}), 3) << "one that is none";
}

TEST(ReasoningCounter, LongThoughtsAreCountedToTheLast) {
  std::vector<std::string> tokens(5000, "x");
  tokens.insert(tokens.end(), {"</", "think", ">", "y"});
  EXPECT_EQ(count(ReasoningStart::kOpen, tokens), 5000);
}

}  // namespace
}  // namespace volley::serve

// Protects: whatever the chunks of a prompt are, each token gets its own vectors and its own rotary positions, and the
// tokens after a picture go on behind its greatest position.
#include "engine/run/prompt_rows.h"

#include <gtest/gtest.h>

#include <numeric>

#include "engine/run/pictures.h"

namespace volley::engine {
namespace {

constexpr int32_t kHidden = 2, kVectors = 3;

std::shared_ptr<const std::vector<float>> vectors_of(int32_t tokens, float first) {
  std::vector<float> values(static_cast<size_t>(tokens) * kHidden * kVectors);
  std::iota(values.begin(), values.end(), first);
  return std::make_shared<const std::vector<float>>(std::move(values));
}

// Eleven tokens: two of text, a picture of 2 x 3 in tokens 2 to 7, a token of text, a span without positions.
PromptRows picture() {
  PromptSpan seen{.begin = 2, .end = 8, .vectors = vectors_of(6, 100)};
  for (int32_t row = 0; row < 2; ++row) {
    for (int32_t column = 0; column < 3; ++column) seen.positions.push_back({2, 2 + row, 2 + column});
  }
  return PromptRows({seen, {.begin = 9, .end = 10, .vectors = vectors_of(1, 500)}}, 11, kVectors);
}

decode::RoundSegment chunk(const std::vector<TokenId>& tokens, int32_t start, int32_t n) {
  decode::RoundSegment segment;
  segment.start = start;
  segment.known = std::span(tokens).subspan(start, n);
  return segment;
}

// Text between pictures, which begin where the one before ends, by M-RoPE's rule.
TEST(Pictures, ArePlacedAndKeyed) {
  PictureRules rules;
  rules.patch_size = 4;  // tokens of 8 x 8 pixels
  PictureHashes hashes;
  const auto placed = [&](uint8_t last) {
    GenerateRequest request;
    request.prompt.resize(30, 7);
    std::vector<uint8_t> pixels(3 * 40 * 16);
    pixels.back() = last;
    request.pictures = {{2, 24, 8, std::make_shared<std::vector<uint8_t>>(3 * 24 * 8)},
                        {8, 40, 16, std::make_shared<std::vector<uint8_t>>(std::move(pixels))}};
    place_pictures(request, rules, hashes.of(request, rules), true);
    return request;
  };
  GenerateRequest choice = placed(0);
  const auto first = hashes.of(choice, rules);
  EXPECT_EQ(hashes.of(choice, rules), first);
  std::swap(choice.pictures[1].width, choice.pictures[1].height);
  EXPECT_EQ(hashes.of(choice, rules)[0], first[0]);
  EXPECT_NE(hashes.of(choice, rules)[1], first[1]);
  choice.cache_namespace = "another";
  EXPECT_NE(hashes.of(choice, rules)[0], first[0]);
  const GenerateRequest one = placed(0), same = placed(0), other = placed(1);
  ASSERT_EQ(one.prompt_spans.size(), 2u);
  EXPECT_EQ(one.prompt_spans[1].begin, 8);
  EXPECT_EQ(one.prompt_spans[1].end, 18);
  EXPECT_EQ(one.prompt_spans[0].positions[2], (std::array<int32_t, 3>{2, 2, 4}));
  EXPECT_EQ(one.prompt_spans[1].positions[6], (std::array<int32_t, 3>{8, 9, 9}));
  for (size_t i = 0; i < one.prompt.size(); ++i) {
    const bool small = i >= 2 && i < 5, large = i >= 8 && i < 18;
    EXPECT_EQ(one.prompt_keys[i] < 0, small || large) << i;
    EXPECT_EQ(one.prompt_keys[i] == same.prompt_keys[i], !small) << i << ": a small picture is shared by nobody";
    EXPECT_EQ(one.prompt_keys[i] == other.prompt_keys[i], !small && !large) << i;
  }
}

TEST(PromptRows, EachTokenHasItsPositions) {
  const std::vector<TokenId> tokens(14);
  const std::vector<decode::RopeAxes> all = {{0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {2, 2, 3},   {2, 2, 4},
                                             {2, 3, 2}, {2, 3, 3}, {2, 3, 4}, {5, 5, 5},   {6, 6, 6},
                                             {7, 7, 7}, {8, 8, 8}, {9, 9, 9}, {10, 10, 10}};
  for (const int32_t size : {1, 4, 14}) {
    PromptRows rows = picture();
    EXPECT_EQ(rows.rope_offset(), -3);
    std::vector<decode::RopeAxes> got;
    for (int32_t start = 0; start < 14; start += size) {  // three outputs of a preempted request among them
      decode::RoundSegment segment = chunk(tokens, start, std::min(size, 14 - start));
      rows.add_to(segment);
      got.insert(got.end(), segment.axes.begin(), segment.axes.end());
    }
    EXPECT_EQ(got, all) << size;
  }
}

TEST(PromptRows, EachTokenHasItsVectors) {
  const std::vector<TokenId> tokens(11);
  for (const int32_t size : {1, 3, 11}) {
    PromptRows rows = picture();
    std::vector<std::vector<float>> got(kVectors);
    std::vector<int32_t> where;
    for (int32_t start = 0; start < 11; start += size) {
      decode::RoundSegment segment = chunk(tokens, start, std::min(size, 11 - start));
      rows.add_to(segment);
      for (const decode::GivenRows& given : segment.given) {
        ASSERT_EQ(std::ssize(given.vectors), kVectors);
        for (int32_t i = 0; i < std::ssize(given.vectors[0]) / kHidden; ++i) where.push_back(start + given.begin + i);
        for (int32_t i = 0; i < kVectors; ++i) {
          got[i].insert(got[i].end(), given.vectors[i].begin(), given.vectors[i].end());
        }
      }
    }
    EXPECT_EQ(where, (std::vector<int32_t>{2, 3, 4, 5, 6, 7, 9}));
    for (int32_t i = 0; i < kVectors; ++i) {
      std::vector<float> want(6 * kHidden);
      std::iota(want.begin(), want.end(), 100.0f + static_cast<float>(12 * i));
      want.insert(want.end(), {500.0f + static_cast<float>(2 * i), 501.0f + static_cast<float>(2 * i)});
      EXPECT_EQ(got[i], want) << "chunks of " << size << ", vectors " << i;
    }
  }
}

TEST(PromptRows, TextBringsNothing) {
  PromptRows rows({{.begin = 0, .end = 1, .vectors = vectors_of(1, 0)}}, 2, kVectors);
  EXPECT_EQ(rows.rope_offset(), 0);
  const std::vector<TokenId> tokens(2);
  decode::RoundSegment segment = chunk(tokens, 1, 1);
  rows.add_to(segment);
  EXPECT_TRUE(segment.axes.empty() && segment.given.empty());
}

}  // namespace
}  // namespace volley::engine

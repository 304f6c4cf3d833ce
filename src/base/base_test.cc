#include <gtest/gtest.h>
#include <volley/result.h>

#include <cmath>
#include <type_traits>

#include "base/check.h"
#include "base/ids.h"
#include "base/math.h"
#include "base/mix.h"
#include "base/sha256.h"
#include "base/text.h"

namespace volley {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return invalid_argument("odd");
  return x / 2;
}

Result<int> quarter(int x) {
  VOLLEY_ASSIGN(const int h, half(x));
  return half(h);
}

TEST(Sha256, IsThatOfTheStandard) {
  const auto hex = [](std::string_view text) {
    const Sha256 hash = sha256(std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
    std::string digits;
    for (const uint8_t byte : hash) {
      digits += "0123456789abcdef"[byte / 16];
      digits += "0123456789abcdef"[byte % 16];
    }
    return digits;
  };
  EXPECT_EQ(hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

// Any change shows, a byte, a length or the head, also beyond whole blocks.
TEST(Sha256, OfContents) {
  std::vector<uint8_t> content(4000);  // three blocks of 1,024 bytes, and a part of one
  const Sha256 hash = content_hash({}, content);
  EXPECT_EQ(content_hash({}, content), hash);
  for (const size_t at : {0u, 63u, 64u, 1023u, 1024u, 2048u, 3999u}) {
    content[at] = 1;
    EXPECT_NE(content_hash({}, content), hash) << at;
    content[at] = 0;
  }
  EXPECT_NE(content_hash({}, std::span(content).first(3999)), hash);
  EXPECT_NE(content_hash(std::span(content).first(1), content), hash);
}

TEST(Result, CarriesValueOrError) {
  EXPECT_EQ(*quarter(12), 3);
  ASSERT_FALSE(quarter(6).ok());
  EXPECT_EQ(quarter(6).error().code, ErrorCode::kInvalidArgument);
  EXPECT_STREQ(error_code_name(quarter(7).error().code), "INVALID_ARGUMENT");
}

TEST(Result, ValueOfAnErrorAborts) {
  EXPECT_DEATH((void)half(3).value(), "");
}

TEST(Check, NamesConditionAndValues) {
  EXPECT_DEATH(VOLLEY_CHECK_EQ(2 + 2, 5), "2 \\+ 2 == 5: 4 vs 5");
}

TEST(Ids, AreInt32WideAndOrdered) {
  static_assert(sizeof(SlotId) == 4 && std::is_trivially_copyable_v<SlotId>);
  EXPECT_LT(PageId(1), PageId(2));
}

TEST(Math, RoundsUpAndOnlyUp) {
  EXPECT_EQ(divide_up(0, 4), 0);
  EXPECT_EQ(divide_up(4, 4), 1);
  EXPECT_EQ(divide_up(5, 4), 2);
  EXPECT_EQ(round_up(0, 64), 0);
  EXPECT_EQ(round_up(64, 64), 64);
  EXPECT_EQ(round_up(65, 64), 128);
}

// Past decisions of the verify budget are replayed in float, its fits are made in double.
TEST(Math, SigmoidKeepsItsType) {
  static_assert(std::is_same_v<decltype(sigmoid(0.0f)), float> && std::is_same_v<decltype(sigmoid(0.0)), double>);
  EXPECT_EQ(sigmoid(0.0), 0.5);
  EXPECT_NEAR(sigmoid(std::log(0.8 / 0.2)), 0.8, 1e-15);
}

// The first numbers of the published generator from the seed 1234567.
TEST(Mix, GivesTheNumbersOfSplitMix64) {
  EXPECT_EQ(mix_bits(1234567 + kSplitMixStep), 6457827717110365317u);
  EXPECT_EQ(mix_bits(1234567 + 2 * kSplitMixStep), 3203168211198807973u);
  EXPECT_EQ(mix_bits(1234567 + 3 * kSplitMixStep), 9817491932198370423u);
}

TEST(Text, TrimTakesWhiteSpaceFromBothEnds) {
  EXPECT_EQ(trim(" \ta key\r\n"), "a key");
  EXPECT_EQ(trim("key"), "key");
  EXPECT_EQ(trim(" \r\n"), "");
  EXPECT_EQ(trim(""), "");
}

}  // namespace
}  // namespace volley

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <random>

#include "text/test_model.h"
#include "text/text.h"

namespace volley::text {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

// Counts the ids that the wrapped tokenizer decodes.
class CountingTokenizer final : public Tokenizer {
 public:
  explicit CountingTokenizer(std::shared_ptr<const Tokenizer> inner) : inner_(std::move(inner)) {}
  Result<std::vector<TokenId>> encode_within(std::string_view text, bool add,
                                             const EncodeLimits& limits) const override {
    return inner_->encode_within(text, add, limits);
  }
  std::string decode(std::span<const TokenId> ids, bool skip) const override {
    decoded += ids.size();
    return inner_->decode(ids, skip);
  }
  int32_t vocab_size() const override { return inner_->vocab_size(); }
  std::optional<TokenId> token_id(std::string_view token) const override { return inner_->token_id(token); }

  mutable size_t decoded = 0;

 private:
  std::shared_ptr<const Tokenizer> inner_;
};

// Byte-level tokens that begin and end in the middle of characters, and some that are never part of one. 0 is special.
std::shared_ptr<const Tokenizer> broken_bytes() {
  std::vector<std::string> tokens = {"<|end|>"};
  for (const char* bytes : {"a", " b", "\xE2", "\x82", "\xAC", "\xF0", "\x9F\x98", "\x80",
                            "\x82\xAC"
                            "c\xE2",
                            "\x82\xE2", "\xFF", "\xAC\xE2\x82", "\xEF\xBF\xBD", "\xC3", "d\xF0\x9F", "\xA9\xC3"}) {
    tokens.push_back(byte_level(bytes));
  }
  return load_tokenizer(tokenizer_json(
      tokens, 1, {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}));
}

std::shared_ptr<const Tokenizer> metaspace() {
  return load_tokenizer(
      tokenizer_json({"<s>", "▁", "▁▁", "▁Hello", "lo", "▁wor", "ld", "é"}, 1,
                     {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}}));
}

std::shared_ptr<const Tokenizer> word_piece() {
  return load_tokenizer(tokenizer_json({"[SEP]", "un", "##aff", "##able", "it", "##'", "s", ".", ","}, 1,
                                       {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}));
}

// The decoder of SentencePiece vocabularies: ▁ for spaces, bytes as <0xNN>, the first space stripped.
std::shared_ptr<const Tokenizer> byte_fallback() {
  std::vector<std::string> tokens = {"</s>", "▁Hello", "▁", "lo", "▁▁", "é"};
  for (int byte = 0; byte < 256; ++byte) {
    std::array<char, 8> name;
    std::snprintf(name.data(), name.size(), "<0x%02X>", byte);
    tokens.push_back(name.data());
  }
  return load_tokenizer(tokenizer_json(tokens, 1,
                                       {{"type", "Sequence"},
                                        {"decoders",
                                         {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                                          {{"type", "ByteFallback"}},
                                          {{"type", "Fuse"}},
                                          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}));
}

class Property : public testing::Test {
 protected:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // Pushes ids in random portions and compares with decoding them at once.
  void check(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& ids, bool skip, int longest_push) {
    Detokenizer detokenizer(tokenizer, skip);
    std::string text;
    for (size_t at = 0; at < ids.size();) {
      const size_t count = std::min<size_t>(draw(0, longest_push), ids.size() - at);
      const std::string piece = detokenizer.push(std::span(ids).subspan(at, count));
      at += count;
      ASSERT_TRUE(is_utf8(piece));
      text += piece;
    }
    text += detokenizer.finish();
    ASSERT_EQ(text, tokenizer->decode(ids, skip)) << json(ids).dump();
  }

  // Random lists over the tokenizer's vocabulary and a few ids beyond it.
  void check_random(const std::shared_ptr<const Tokenizer>& tokenizer, int lists, int longest) {
    for (int list = 0; list < lists; ++list) {
      Ids ids(draw(0, longest));
      for (TokenId& id : ids) id = draw(0, tokenizer->vocab_size());
      check(tokenizer, ids, draw(0, 1) == 1, draw(1, 20));
      if (HasFatalFailure()) return;
    }
  }

  std::mt19937 random_{11};
};

using DetokenizerProperty = Property;

TEST_F(DetokenizerProperty, RandomIdsOfPocket) {
  check_random(*Tokenizer::load(kPocket), 600, 120);
}
TEST_F(DetokenizerProperty, RandomPiecesOfCharacters) {
  check_random(broken_bytes(), 4000, 60);
}
TEST_F(DetokenizerProperty, RandomMetaspace) {
  check_random(metaspace(), 2000, 40);
}
TEST_F(DetokenizerProperty, RandomWordPiece) {
  check_random(word_piece(), 2000, 40);
}

// Rows of ids that print nothing, between unfinished characters.
TEST_F(DetokenizerProperty, MostlySkippedIds) {
  const auto tokenizer = broken_bytes();
  for (int list = 0; list < 2000; ++list) {
    Ids ids(draw(0, 100));
    for (TokenId& id : ids)
      id = draw(0, 5) > 0 ? draw(0, 1) * tokenizer->vocab_size() : draw(1, tokenizer->vocab_size());
    check(tokenizer, ids, draw(0, 3) > 0, draw(1, 30));
    if (HasFatalFailure()) return;
  }
}

// Any one token again and again is the worst case of finding a place to cut.
TEST_F(DetokenizerProperty, RepeatedTokens) {
  const auto tokenizer = broken_bytes();
  for (TokenId first = 0; first <= tokenizer->vocab_size(); ++first) {
    for (TokenId second = 0; second <= tokenizer->vocab_size(); ++second) {
      Ids ids(61, first);
      for (size_t i = 1; i < ids.size(); i += 2) ids[i] = second;
      for (const int longest_push : {1, 3, 17}) check(tokenizer, ids, true, longest_push);
    }
  }
}

TEST_F(DetokenizerProperty, ByteFallbackOfValidText) {
  const auto tokenizer = byte_fallback();
  const std::vector<std::string> characters = {"€", "é", "😀", "a", "日", "\n"};
  for (int list = 0; list < 2000; ++list) {
    Ids ids;
    while (ids.size() < 40) {
      if (draw(0, 2) == 0) {
        ids.push_back(draw(0, 5));
        continue;
      }
      for (const char c : characters[draw(0, 5)]) ids.push_back(6 + static_cast<unsigned char>(c));
    }
    check(tokenizer, ids, true, draw(1, 20));
    if (HasFatalFailure()) return;
  }
}

// Invalid runs differ from decoding at once, as text.h says. The output is still text, does not depend on how the ids
// are split, and contains all later characters.
TEST_F(DetokenizerProperty, ByteFallbackOfInvalidTextStaysText) {
  const auto tokenizer = byte_fallback();
  for (int list = 0; list < 500; ++list) {
    Ids ids(draw(0, 60));
    for (TokenId& id : ids) id = draw(0, tokenizer->vocab_size());
    Detokenizer detokenizer(tokenizer, true), alone(tokenizer, true);
    std::string text, one_by_one;
    for (size_t at = 0; at < ids.size();) {
      const size_t count = std::min<size_t>(draw(1, 9), ids.size() - at);
      text += detokenizer.push(std::span(ids).subspan(at, count));
      ASSERT_TRUE(is_utf8(text));
      at += count;
    }
    for (const TokenId& id : ids) one_by_one += alone.push({&id, 1});
    text += detokenizer.finish();
    ASSERT_TRUE(is_utf8(text));
    ASSERT_EQ(text, one_by_one + alone.finish());
    const Ids after = {3, 3};
    ASSERT_EQ(detokenizer.push(after), "lolo");
  }
}

TEST(Detokenizer, HoldsAnUnfinishedCharacterAndNothingElse) {
  const auto tokenizer = broken_bytes();
  Detokenizer detokenizer(tokenizer, true);
  const auto push = [&](Ids ids) { return detokenizer.push(ids); };
  EXPECT_EQ(push({1, 3}), "a");
  EXPECT_EQ(push({4}), "");
  EXPECT_EQ(push({5, 1}), "€a");
  EXPECT_EQ(push({3, 9}), "€c");  // the last byte of token 9 begins the next character
  EXPECT_EQ(push({9}), "€c");
  EXPECT_EQ(push({0, 2}), "\uFFFD b");
  EXPECT_EQ(push({}), "");
  EXPECT_EQ(push({6, 7}), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(push({2}), " b");  // as new
}

// Bytes that never become a character are given out while they stream, not at the end.
TEST(Detokenizer, DoesNotHoldForever) {
  const auto tokenizer = broken_bytes();
  for (const TokenId id : {TokenId{11}, TokenId{10}, TokenId{13}, TokenId{3}, TokenId{4}}) {
    Detokenizer detokenizer(tokenizer, true);
    const Ids one = {id};
    Ids all;
    std::string text;
    for (int i = 0; i < 100; ++i) {
      text += detokenizer.push(one);
      all.push_back(id);
      const size_t held = tokenizer->decode(all, true).size() - text.size();
      // Four ids of two bad bytes each.
      ASSERT_LE(held, 4 * 2 * std::string_view("\uFFFD").size()) << id << " " << i;
    }
  }
}

// The work of a push does not grow with the text before it, for any text. Words cost about two decoded ids an id; the
// worst pair of tokens here, bytes that never become a character, costs 99 at any length.
TEST(Detokenizer, WorkPerIdIsBounded) {
  const auto tokenizer = std::make_shared<CountingTokenizer>(broken_bytes());
  constexpr size_t kIds = 500;
  for (TokenId first = 0; first <= tokenizer->vocab_size(); ++first) {
    for (TokenId second = 0; second <= tokenizer->vocab_size(); ++second) {
      Detokenizer detokenizer(tokenizer, true);
      tokenizer->decoded = 0;
      for (size_t i = 0; i < kIds; ++i) detokenizer.push(Ids{i % 2 == 0 ? first : second});
      ASSERT_LE(tokenizer->decoded, 100 * kIds) << first << " " << second;
    }
  }
}

// Text that continues a context keeps the space that a decoder strips from the start of a text.
TEST(Detokenizer, AContextIsTextBeforeTheFirstId) {
  const auto sentence_piece = byte_fallback(), piece = word_piece(), bytes = broken_bytes();
  const auto text = [](const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& context, const Ids& ids,
                       bool skip = true) {
    Detokenizer detokenizer(tokenizer, skip, context);
    std::string out;
    for (const TokenId id : ids) out += detokenizer.push({&id, 1});
    return out + detokenizer.finish();
  };
  const TokenId hello = 1, space = 2, lo = 3, byte = 6;
  EXPECT_EQ(text(sentence_piece, {}, {hello, lo}), "Hellolo");
  EXPECT_EQ(text(sentence_piece, {hello}, {hello, lo}), " Hellolo");
  EXPECT_EQ(text(sentence_piece, {hello, space}, {lo, hello}), "lo Hello");
  EXPECT_EQ(text(sentence_piece, {0}, {hello}), "Hello") << "a special token is no text";
  EXPECT_EQ(text(sentence_piece, {0}, {hello}, /*skip=*/false), " Hello");
  EXPECT_EQ(text(sentence_piece, {hello, 0}, {hello}), " Hello");
  EXPECT_EQ(text(sentence_piece, {hello, byte + 0xE2}, {byte + 0x82, byte + 0xAC}), "\uFFFD\uFFFD")
      << "half a character is no context";
  EXPECT_EQ(text(sentence_piece, {hello}, {byte + 0xE2, byte + 0x82, byte + 0xAC, hello}), "€ Hello");
  EXPECT_EQ(text(piece, {4}, {2, 4}), "aff it");
  EXPECT_EQ(text(bytes, {1}, {2, 3, 4, 5}), text(bytes, {}, {2, 3, 4, 5}));
}

}  // namespace
}  // namespace volley::text

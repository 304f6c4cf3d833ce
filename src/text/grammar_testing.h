// Helpers for this folder's tests: checks of texts against grammars of the pocket tokenizer.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "text/grammar.h"
#include "text/test_model.h"

namespace volley::text {

inline constexpr int32_t kMaskWords = 64;  // the pocket models' vocabulary of 2048
inline constexpr uint32_t kPoison = 0xA5A5A5A5;

// The raw bytes of a token that a byte-level vocabulary spells.
inline std::string raw_bytes(const std::string& spelled) {
  static const auto map = [] {
    std::map<std::string, char> map;
    for (int byte = 0; byte < 256; ++byte)
      map[byte_level(std::string(1, static_cast<char>(byte)))] = static_cast<char>(byte);
    return map;
  }();
  std::string bytes;
  for (size_t i = 0; i < spelled.size();) {
    const size_t size = static_cast<unsigned char>(spelled[i]) < 0x80 ? 1 : 2;
    bytes += map.at(spelled.substr(i, size));
    i += size;
  }
  return bytes;
}

class GrammarTest : public testing::Test {
 protected:
  using Kind = GrammarSpec::Kind;

  // One row of a mask.
  struct Row {
    std::vector<uint32_t> words;
    TextEnd end = TextEnd::kNo;

    bool allows(TokenId token) const { return (words[token / 32] >> (token % 32) & 1) != 0; }
    std::vector<TokenId> tokens() const {
      std::vector<TokenId> allowed;
      for (TokenId token = 0; token < kMaskWords * 32; ++token) {
        if (allows(token)) allowed.push_back(token);
      }
      return allowed;
    }
    bool operator==(const Row&) const = default;
  };

  static void SetUpTestSuite() {
    auto tokenizer = Tokenizer::load(kPocket);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    tokenizer_ = *tokenizer;
    const auto json = nlohmann::json::parse(std::ifstream(std::string(kPocket) + "/tokenizer.json"));
    bytes_.resize(kMaskWords * 32);
    for (const auto& [token, id] : json["model"]["vocab"].items()) {
      const bool special = token.size() > 2 && token.starts_with("<|");
      if (!special) bytes_[id.get<size_t>()] = raw_bytes(token);
    }
  }
  static void TearDownTestSuite() { tokenizer_ = nullptr; }

  static Result<std::unique_ptr<Matcher>> compile(const GrammarSpec& grammar) {
    return tokenizer_->grammars()->compile(grammar);
  }
  // Throws if the grammar cannot be used, which ends only that test.
  static std::unique_ptr<Matcher> matcher(const GrammarSpec& grammar) {
    auto made = compile(grammar);
    if (!made.ok()) throw std::runtime_error(made.error().message + "\n" + grammar.text);
    return std::move(*made);
  }
  static std::string error_of(const GrammarSpec& grammar) {
    const auto made = compile(grammar);
    if (made.ok()) return "";
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    return made.error().message;
  }

  // The rows that masks_along fills; memory after them must stay untouched.
  static std::vector<Row> rows_along(Matcher& matcher, std::span<const TokenId> drafted) {
    std::vector<uint32_t> words((drafted.size() + 1) * kMaskWords, kPoison);
    std::vector<TextEnd> ends(drafted.size() + 1);
    const auto filled = matcher.masks_along(drafted, words.data(), kMaskWords, ends.data());
    EXPECT_TRUE(filled.status.ok()) << filled.status.error().message;
    std::vector<Row> rows;
    for (int32_t i = 0; i < filled.rows; ++i) {
      const auto* first = words.data() + i * kMaskWords;
      rows.push_back({{first, first + kMaskWords}, ends[i]});
    }
    return rows;
  }
  static Row row(Matcher& matcher) { return rows_along(matcher, {}).at(0); }

  // Feeds the matcher allowed tokens that spell `text`; returns the end state after it, or no value if it is refused.
  static std::optional<TextEnd> walk(Matcher& matcher, std::string_view text) {
    while (true) {
      const Row here = row(matcher);
      if (text.empty()) return here.end;
      TokenId longest = -1;
      for (const TokenId token : here.tokens()) {
        const std::string& bytes = bytes_[token];
        if (!bytes.empty() && text.starts_with(bytes) && (longest < 0 || bytes.size() > bytes_[longest].size())) {
          longest = token;
        }
      }
      if (longest < 0) return std::nullopt;
      EXPECT_TRUE(matcher.commit({{longest}}).ok());
      text.remove_prefix(bytes_[longest].size());
    }
  }

  // Whether exactly this text satisfies the grammar.
  static bool accepts(const GrammarSpec& grammar, std::string_view text) {
    const auto made = matcher(grammar);
    return walk(*made, text).value_or(TextEnd::kNo) != TextEnd::kNo;
  }

  // A text of allowed tokens chosen at random, ended where it must or, three times in four, where it may.
  static std::string random_text(Matcher& matcher, std::mt19937& random, int max_tokens) {
    std::string text;
    for (int i = 0; i < max_tokens; ++i) {
      const Row here = row(matcher);
      if (here.end == TextEnd::kMust || (here.end == TextEnd::kMay && random() % 4 != 0)) return text;
      const auto allowed = here.tokens();
      if (allowed.empty()) break;
      const TokenId token = allowed[random() % allowed.size()];
      text += bytes_[token];
      EXPECT_TRUE(matcher.commit({{token}}).ok());
    }
    return text + "(unfinished)";
  }

  static GrammarSpec schema(const nlohmann::ordered_json& json) { return {Kind::kJsonSchema, json.dump(), {}}; }
  static GrammarSpec regex(std::string text) { return {Kind::kRegex, std::move(text), {}}; }
  static GrammarSpec ebnf(std::string text) { return {Kind::kEbnf, std::move(text), {}}; }
  static GrammarSpec lark(std::string text) { return {Kind::kLark, std::move(text), {}}; }
  static GrammarSpec choice(std::vector<std::string> choices) { return {Kind::kChoice, "", std::move(choices)}; }

  inline static std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<TokenId> committed_;
  inline static std::vector<std::string> bytes_;  // bytes of each token; empty: special or unused
};

}  // namespace volley::text

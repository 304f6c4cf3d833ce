// Protects: tokenizer and chat template of a GGUF file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temp_folder_for_test.h"
#include "gguf/bytes_for_test.h"
#include "text/text.h"

namespace volley::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6;

class GgufText : public testing::Test {
 protected:
  std::shared_ptr<const Tokenizer> load(const gguf::Bytes& bytes) {
    folder_.write("m.gguf", bytes.str());
    auto tokenizer = Tokenizer::load(folder_.path() + "/m.gguf");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    return tokenizer.ok() ? *tokenizer : nullptr;
  }
  std::string refusal(const gguf::Bytes& bytes) {
    folder_.write("m.gguf", bytes.str());
    const auto tokenizer = Tokenizer::load(folder_.path() + "/m.gguf");
    return tokenizer.ok() ? "" : tokenizer.error().message;
  }

  TempFolder folder_;
};

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode_within(text, true, {}).value();
}

// Bytes as byte-level tokenizers write them; "Ġ" is a space.
gguf::Bytes byte_level_file(const std::string& pre) {
  gguf::Bytes bytes = gguf::tiny_model("llama");
  bytes.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre).number("tokenizer.ggml.bos_token_id", 0);
  bytes.texts("tokenizer.ggml.tokens", {"<s>", "a", "b", "1", "2", "Ġ", "ab", "12", "Ġa", "<tool>"});
  bytes.texts("tokenizer.ggml.merges", {"a b", "1 2", "Ġ a"});
  return bytes.numbers<int32_t>(
      "tokenizer.ggml.token_type", 5,
      {kControl, kNormal, kNormal, kNormal, kNormal, kNormal, kNormal, kNormal, kNormal, kUserDefined});
}

TEST_F(GgufText, ThePreTokenizerSaysHowATextIsCut) {
  const auto smollm = load(byte_level_file("smollm"));
  EXPECT_THAT(encode(*smollm, "ab12 ab"), ElementsAre(6, 3, 4, 5, 6));
  EXPECT_THAT(encode(*smollm, "<s>a<tool>b"), ElementsAre(0, 1, 9, 2));
  EXPECT_EQ(smollm->decode(std::vector<TokenId>{6, 8, 9}, true), "ab a<tool>");
  EXPECT_EQ(smollm->decode(std::vector<TokenId>{0, 1}, true), "a");
  EXPECT_THAT(encode(*load(byte_level_file("qwen2")), "12"), ElementsAre(3, 4));
  EXPECT_THAT(encode(*load(byte_level_file("gpt-2")), "12"), ElementsAre(7));
  EXPECT_THAT(encode(*load(byte_level_file("deepseek-v3")), "ab12 a"), ElementsAre(6, 7, 8));
  EXPECT_THAT(encode(*load(byte_level_file("glm4")), "ab12 a"), ElementsAre(6, 7, 8));
  EXPECT_THAT(encode(*load(byte_level_file("kimi-k2")), "ab12 a"), ElementsAre(6, 7, 8));
  EXPECT_THAT(encode(*load(byte_level_file("tekken")), "ab12 a"), ElementsAre(0, 6, 3, 4, 8));
  EXPECT_THAT(encode(*load(byte_level_file("llama-bpe")), "12"), ElementsAre(0, 7));
  EXPECT_THAT(encode(*load(byte_level_file("llama-bpe").boolean("tokenizer.ggml.add_bos_token", false)), "12"),
              ElementsAre(7));
}

TEST_F(GgufText, PiecesAreMergedByTheirScores) {
  gguf::Bytes bytes = gguf::tiny_model("llama").number("tokenizer.ggml.bos_token_id", 1);
  bytes.number("tokenizer.ggml.unknown_token_id", 0).boolean("tokenizer.ggml.add_space_prefix", false);
  bytes.texts("tokenizer.ggml.tokens", {"<unk>", "<bos>", "a", "b", "c", "ab", "bc", "\u2581", "<0xC3>", "<0xA4>"});
  bytes.numbers<float>("tokenizer.ggml.scores", 6, {0, 0, -9, -9, -9, -2, -1, -9, 0, 0});
  bytes.numbers<int32_t>("tokenizer.ggml.token_type", 5,
                         {kUnknown, kControl, kNormal, kNormal, kNormal, kNormal, kNormal, kNormal, kByte, kByte});
  gguf::Bytes gemma4 = bytes;  // whose files hold the merges
  gemma4.text("tokenizer.ggml.model", "gemma4").texts("tokenizer.ggml.merges", {"a b", "b c"});
  EXPECT_THAT(encode(*load(gemma4), "abc ab"), ElementsAre(1, 5, 4, 7, 5));
  gemma4.boolean("tokenizer.ggml.add_bos_token", false);
  EXPECT_THAT(encode(*load(gemma4), "ab"), ElementsAre(1, 5)) << "whatever the file says";
  EXPECT_THAT(refusal(gguf::Bytes(bytes).text("tokenizer.ggml.model", "gemma4")), HasSubstr("has no merges"));
  const auto tokenizer = load(bytes.text("tokenizer.ggml.model", "llama"));
  EXPECT_THAT(encode(*tokenizer, "abc ab"), ElementsAre(1, 2, 6, 7, 5));
  EXPECT_THAT(encode(*tokenizer, "\u00e4"), ElementsAre(1, 8, 9));
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{1, 6, 7, 5, 8, 9}, true), "bc ab\u00e4");
}

TEST_F(GgufText, GemmasRunsOfSpacesAreMerged) {
  gguf::Bytes bytes = gguf::tiny_model("gemma3").number("tokenizer.ggml.bos_token_id", 1);
  bytes.text("tokenizer.ggml.model", "llama").boolean("tokenizer.ggml.add_space_prefix", false);
  bytes.texts("tokenizer.ggml.tokens", {"<unk>", "<bos>", "  ", "   ", "    ", "\u2581", "a", "\u2581a"});
  bytes.numbers<float>("tokenizer.ggml.scores", 6, {0, 0, -1000, -1000, -1000, -9, -9, -1});
  bytes.numbers<int32_t>("tokenizer.ggml.token_type", 5,
                         {kUnknown, kControl, kUserDefined, kUserDefined, kUserDefined, kNormal, kNormal, kNormal});
  const auto tokenizer = load(bytes);
  EXPECT_THAT(encode(*tokenizer, "  a a"), ElementsAre(1, 2, 6, 7));
  EXPECT_THAT(encode(*tokenizer, "     a"), ElementsAre(1, 2, 3, 6));
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{2, 3, 7}, true), "      a");
}

// A file of megabytes would otherwise have merges of gigabytes.
TEST_F(GgufText, ManyLongRunsAreRefused) {
  std::vector<std::string> tokens = {"\u2581"};
  for (size_t n = 2; n < 600; ++n) tokens.emplace_back(n, ' ');
  gguf::Bytes bytes = gguf::tiny_model("gemma3").text("tokenizer.ggml.model", "llama");
  bytes.texts("tokenizer.ggml.tokens", tokens);
  bytes.numbers<float>("tokenizer.ggml.scores", 6, std::vector<float>(tokens.size()));
  bytes.numbers<int32_t>("tokenizer.ggml.token_type", 5, std::vector<int32_t>(tokens.size(), kUserDefined));
  EXPECT_THAT(refusal(bytes), HasSubstr("too many long tokens"));
}

TEST_F(GgufText, WhatIsNotBuiltIsNamed) {
  EXPECT_THAT(refusal(byte_level_file("runes")),
              HasSubstr("the pre-tokenizer \"runes\", which is not built: fetch the tokenizer.json"));
  EXPECT_THAT(refusal(gguf::tiny_model("llama")), HasSubstr("name it with --tokenizer FILE"));
  EXPECT_THAT(
      refusal(gguf::tiny_model("llama").text("tokenizer.ggml.model", "t5").texts("tokenizer.ggml.tokens", {"a"})),
      HasSubstr("of the kind \"t5\""));
  EXPECT_THAT(refusal(gguf::tiny_model("llama")
                          .text("tokenizer.ggml.model", "gpt2")
                          .text("tokenizer.ggml.pre", "gpt-2")
                          .texts("tokenizer.ggml.tokens", {"a", "a"})),
              HasSubstr("two tokens"));
}

TEST_F(GgufText, TheTemplateIsTheFiles) {
  folder_.write(
      "m.gguf",
      byte_level_file("smollm").text("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}").str());
  const auto chat = ChatTemplate::load(folder_.path() + "/m.gguf");
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  const auto text = (*chat)->render({.messages_json = R"([{"role": "user", "content": "hi"}])"});
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(*text, "<s>hi");
}

}  // namespace
}  // namespace volley::text

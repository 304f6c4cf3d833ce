// Protects against texts and chats that are costly only by their size: pieces give the ids of the whole, no more text
// is read than needed, and a call ends when its caller no longer wants the result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <textkit.h>

#include <fstream>
#include <random>

#include "base/sanitized.h"
#include "text/test_model.h"
#include "text/text.h"

namespace volley::text {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr size_t kMebibyte = size_t{1} << 20;

const std::string kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const std::string kTail = R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kQwen = kContractions + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" + kTail;
const std::string kLlama = kContractions + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" + kTail;
const std::string kGptOss = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" +
                            kContractions +
                            R"(?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" +
                            kContractions + R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" + kTail;
const std::string kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::vector<std::string> kDeepSeek = {
    R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+",
    R"raw([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)raw" +
        kTail};

json split(const std::string& pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

json byte_level_step(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json pocket_json(const std::vector<json>& steps) {
  std::ifstream file(std::string(kPocket) + "/tokenizer.json");
  json tokenizer = json::parse(file);
  tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  return tokenizer;
}

struct Pair {
  std::shared_ptr<const Tokenizer> pieces, whole;
};

// The same twice. The patterns of the second mean the same, but are not among those that are known to allow a cut.
Pair pair_of(const std::vector<std::string>& patterns, const std::function<void(json&)>& change = {}) {
  std::vector<json> known, unknown;
  for (const std::string& pattern : patterns) {
    if (pattern != kGpt2) known.push_back(split(pattern));
    unknown.push_back(split("(?:" + pattern + ")"));
  }
  known.push_back(byte_level_step(patterns.front() == kGpt2));
  unknown.push_back(byte_level_step(false));
  json first = pocket_json(known), second = pocket_json(unknown);
  if (change) change(first), change(second);
  return {load_tokenizer(first), load_tokenizer(second)};
}

std::string random_text(std::mt19937& random, size_t bytes) {
  static const std::vector<std::string> kBits = {"a",      "the",
                                                 "Word",   "don't",
                                                 "I'LL",   "'s",
                                                 " ",      "  ",
                                                 "\n",     "\n\n",
                                                 "\r",     " \n ",
                                                 "\t",     "7",
                                                 "1234",   ".",
                                                 ",",      "...",
                                                 "!?",     "/\n",
                                                 "é",      "e\u0301",
                                                 "日本",   "語、",
                                                 "カナ。", "привет",
                                                 "\u0301", "<|im_end|>",
                                                 "<|",     "|>",
                                                 "'",      "\"",
                                                 "(",      ")",
                                                 "_",      "\u00a0",
                                                 "\u3000", "👩‍👩‍👧",
                                                 "עב",     "한국"};
  std::string text;
  while (text.size() < bytes) {
    const std::string& bit = kBits[random() % kBits.size()];
    for (unsigned n = random() % 16 ? 1 : random() % 9; n > 0; --n) text += bit;
  }
  return text;
}

void add_special_tokens(json& tokenizer) {
  const auto special = [](int id, const char* text) {
    return json{{text, {{"id", text}, {"ids", {id}}, {"tokens", {text}}}}};
  };
  json tokens = special(1, "<|im_start|>");
  tokens.update(special(2, "<|im_end|>"));
  const auto token = [](const char* text) { return json{{"SpecialToken", {{"id", text}, {"type_id", 0}}}}; };
  const json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  tokenizer["post_processor"] = {{"type", "TemplateProcessing"},
                                 {"single", {token("<|im_start|>"), sequence, token("<|im_end|>")}},
                                 {"pair", {sequence, sequence}},
                                 {"special_tokens", tokens}};
}

void expect_same(const Pair& pair, const std::string& name) {
  ASSERT_TRUE(pair.pieces && pair.whole);
  std::mt19937 random(7);
  const std::string text = random_text(random, kSanitized ? 70'000 : 200'000);
  const auto whole = pair.whole->encode(text, true);
  const auto pieces = pair.pieces->encode(text, true);
  ASSERT_TRUE(whole.ok() && pieces.ok());
  EXPECT_TRUE(*whole == *pieces) << name;
  for (const size_t last :
       {size_t{1}, size_t{2}, size_t{999}, whole->size() / 2, whole->size() - 1, whole->size() + 5}) {
    const auto end = pair.pieces->encode_within(text, true, {.last_tokens = last});
    ASSERT_TRUE(end.ok());
    const std::vector<TokenId> expected(whole->end() - static_cast<std::ptrdiff_t>(std::min(last, whole->size())),
                                        whole->end());
    EXPECT_TRUE(*end == expected) << name << ", the last " << last;
  }
}

TEST(LongText, PiecesGiveTheIdsOfTheWhole) {
  const auto composed = [](json& tokenizer) { tokenizer["normalizer"] = {{"type", "NFC"}}; };
  expect_same(pair_of({kQwen}), "Qwen");
  expect_same(pair_of({kQwen}, composed), "Qwen, composed");
  expect_same(pair_of({kLlama}, add_special_tokens), "Llama");
  expect_same(pair_of({kGptOss}), "gpt-oss");
  expect_same(pair_of({kGpt2}), "GPT-2");
  expect_same(pair_of(kDeepSeek), "DeepSeek");
}

// Otherwise the test above would compare a tokenizer with itself.
TEST(LongText, OnlyKnownFormsAreCut) {
  std::string text;
  while (text.size() < 5 * kMebibyte) text += "a word, and ";
  const EncodeLimits last{.last_tokens = 5};
  for (const auto& patterns : {std::vector{kQwen}, {kLlama}, {kGptOss}, {kGpt2}, kDeepSeek}) {
    const Pair pair = pair_of(patterns);
    EXPECT_EQ(pair.pieces->encode_within(text, false, last)->size(), 5u);
    EXPECT_THAT(pair.whole->encode_within(text, false, last).error().message, HasSubstr("shorten it"));
  }
  const auto cut = [&](const std::function<void(json&)>& change) {
    return pair_of({kQwen}, change).pieces->encode_within(text, false, last).ok();
  };
  EXPECT_FALSE(cut([](json& json) { json["normalizer"] = {{"type", "Lowercase"}}; }));
  EXPECT_FALSE(cut([](json& json) { json["added_tokens"][0]["rstrip"] = true; }));
  EXPECT_FALSE(cut([](json& json) { json["added_tokens"][0]["single_word"] = true; }));
  EXPECT_FALSE(cut([](json& json) { json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }));
  EXPECT_FALSE(cut([](json& json) { json["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }));
}

TEST(LongText, NoMoreIsLookedAtThanShowsThatItIsTooLong) {
  std::string words, unbroken(8 * kMebibyte, 'a');
  while (words.size() < unbroken.size()) words += "a word, and ";
  for (const auto& tokenizer : {pair_of({kQwen}).pieces, pair_of({kQwen}).whole}) {
    for (const std::string& text : {words, unbroken}) {
      const auto ids = tokenizer->encode_within(text, false, {.max_tokens = 1000});
      ASSERT_TRUE(ids.ok()) << ids.error().message;
      EXPECT_GT(ids->size(), 1000u);
      EXPECT_LT(ids->size(), 100'000u);
    }
    EXPECT_EQ(tokenizer->encode_within("a b", false, {.max_tokens = 1})->size(), 2u);
    EXPECT_EQ(tokenizer->encode_within(unbroken, false, {}).error().code, ErrorCode::kInvalidArgument);
  }
}

// Counts the questions whether to go on, and declines the third.
struct Patience {
  mutable int asked = 0;
  textkit_cancel cancel() const {
    return {[](const void* context) { return ++static_cast<const Patience*>(context)->asked == 3; }, this};
  }
};

TEST(LongText, TokenisingCanBeCancelled) {
  std::ifstream file(std::string(kPocket) + "/tokenizer.json");
  const std::string source((std::istreambuf_iterator<char>(file)), {});
  textkit_tokenizer* tokenizer = nullptr;
  textkit_bytes error{nullptr, 0};
  ASSERT_EQ(textkit_tokenizer_new({source.data(), source.size()}, {}, &tokenizer, &error), TEXTKIT_OK);
  std::string text;
  while (text.size() < kMebibyte) text += "a word, and ";
  for (const size_t last : {size_t{0}, size_t{1} << 30}) {
    const Patience patience;
    const textkit_encode_options options{false, SIZE_MAX, last, false, patience.cancel()};
    textkit_ids ids{nullptr, 0};
    EXPECT_EQ(textkit_tokenizer_encode(tokenizer, {text.data(), text.size()}, &options, &ids, &error),
              TEXTKIT_CANCELLED);
    EXPECT_EQ(patience.asked, 3);
    textkit_bytes_free(error);
  }
  textkit_tokenizer_free(tokenizer);
  const std::atomic<bool> cancelled{true};
  const auto ids = pair_of({kQwen}).pieces->encode_within("a", false, {.cancelled = &cancelled});
  EXPECT_EQ(ids.error().code, ErrorCode::kCancelled);
}

Result<std::string> render(const std::string& source, const ChatMessages& input) {
  const ModelDir dir({{"chat_template.jinja", source}});
  const auto chat = ChatTemplate::load(dir.path());
  if (!chat.ok()) return chat.error();
  return (*chat)->render(input);
}

TEST(LongText, ATemplateMayPrintSoMuch) {
  const json messages = {{{"role", "user"}, {"content", std::string(100'000, 'x')}}};
  const auto text =
      render("{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}", {.messages_json = messages.dump()});
  EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(text.error().message, HasSubstr("prints more than"));
}

TEST(LongText, RenderingCanBeCancelled) {
  const std::atomic<bool> cancelled{true};
  EXPECT_EQ(render("{{ 1 }}", {.messages_json = "[]", .cancelled = &cancelled}).error().code, ErrorCode::kCancelled);
}

// Whatever a message contains, the text ends where the message does.
TEST(LongText, AContinuedMessageMayHoldTheWordsThatMarkItsEnd) {
  std::string content;
  for (int i = 0; i < 20'000; ++i) {
    const std::string number = std::to_string(i);
    content += "FinalMessageEndsHere" + std::string(8 - number.size(), '0') + number + " ";
  }
  content += "end";
  const json messages = {{{"role", "assistant"}, {"content", content}}};
  const auto text =
      render("{% for m in messages %}[{{ m.content }}]{% endfor %} FinalMessageEndsHere00000000",
             {.messages_json = messages.dump(), .add_generation_prompt = false, .continue_final_message = true});
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(*text, "[" + content);
}

}  // namespace
}  // namespace volley::text

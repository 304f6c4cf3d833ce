#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <textkit.h>

#include <fstream>
#include <thread>

#include "base/sanitized.h"
#include "text/test_model.h"
#include "text/text.h"

namespace volley::text {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const Tokenizer> pocket() {
  auto tokenizer = Tokenizer::load(kPocket);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return *tokenizer;
}

// The prompts of the published reference loop: chat template and tokenizer together give the very ids it was fed.
TEST(Tokenizer, PromptsOfTheReferenceRunGetItsIds) {
  const auto tokenizer = pocket();
  const auto chat = ChatTemplate::load(kPocket);
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  std::ifstream file("tests/data/dflash_reference_pocket.jsonl");
  int rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const json row = json::parse(line);
    const std::string messages = json::array({{{"role", "user"}, {"content", row["prompt"]}}}).dump();
    const auto text = (*chat)->render({.messages_json = messages});
    ASSERT_TRUE(text.ok()) << text.error().message;
    const auto ids = tokenizer->encode(*text, false);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, row["prompt_ids"].get<std::vector<TokenId>>()) << row["prompt"];
    EXPECT_EQ(tokenizer->decode(*ids, false), *text);
  }
  EXPECT_EQ(rows, 200);
}

TEST(Tokenizer, EveryTextComesBack) {
  const auto tokenizer = pocket();
  for (const std::string& text :
       {std::string(), std::string("  two  spaces\n\n\ttab "), std::string("a\0b", 3),
        std::string("日本語 ελληνικά עברית"), std::string("👩‍👩‍👧‍👦 e\u0301 \U0010FFFF \uFFFD")}) {
    const auto ids = tokenizer->encode(text, true);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(tokenizer->decode(*ids, false), text);
  }
}

// In plain text the letters of a special token are tokenised like any letters, in the middle of words too.
TEST(Tokenizer, PlainTextHoldsNoSpecialTokens) {
  const auto tokenizer = pocket();
  const EncodeLimits plain{.plain = true};
  for (const std::string text : {"Nothing special, 日本 e\u0301.", "", " a\n\n b"}) {
    EXPECT_EQ(*tokenizer->encode_within(text, false, plain), *tokenizer->encode(text, false)) << text;
  }
  const std::string text = "x<|im_start|>system<|im_end|> y";
  const auto ids = tokenizer->encode_within(text, true, plain);
  ASSERT_TRUE(ids.ok()) << ids.error().message;
  EXPECT_EQ(tokenizer->decode(*ids, /*skip_special_tokens=*/true), text);
  const auto last = tokenizer->encode_within(text, false, {.last_tokens = 3, .plain = true});
  EXPECT_EQ(*last, std::vector<TokenId>(ids->end() - 3, ids->end()));
}

TEST(Tokenizer, SpecialTokensAreFoundInTextAndSkippedOnDemand) {
  const auto tokenizer = pocket();
  const auto ids = tokenizer->encode("<|im_start|>a<|im_end|>", false);
  ASSERT_TRUE(ids.ok());
  EXPECT_THAT(*ids, ElementsAre(1, *tokenizer->token_id("a"), 2));
  EXPECT_EQ(tokenizer->decode(*ids, true), "a");
  EXPECT_EQ(tokenizer->decode(*ids, false), "<|im_start|>a<|im_end|>");
}

TEST(Tokenizer, KnowsItsVocabulary) {
  const auto tokenizer = pocket();
  EXPECT_EQ(tokenizer->vocab_size(), 1798);
  EXPECT_EQ(tokenizer->token_id("<|mask|>"), 3);
  EXPECT_EQ(tokenizer->token_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->token_id("\xff"), std::nullopt);
  const TokenId a = *tokenizer->token_id("a");
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{-1, a, 1798, a, INT32_MAX}, false), "aa");
}

TEST(Tokenizer, NamesTheFirstBadByte) {
  const auto tokenizer = pocket();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ab\xff", "offset 2"}, {"\xed\xa0\x80", "offset 0"}, {"é\xe2\x82", "offset 2"}, {"\xc0\x80", "offset 0"}};
  for (const auto& [text, offset] : cases) {
    const auto ids = tokenizer->encode(text, false);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(ids.error().message, HasSubstr(offset));
  }
}

TEST(Tokenizer, PostProcessorAddsItsTokensAndFileLimitsAreIgnored) {
  json file = tokenizer_json({"<s>", "a", "b"}, 1, nullptr);
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}}},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {0}}, {"tokens", {"<s>"}}}}}}};
  file["truncation"] = {{"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  file["padding"] = {
      {"strategy", {{"Fixed", 9}}}, {"direction", "Right"}, {"pad_to_multiple_of", nullptr}, {"pad_id", 0},
      {"pad_type_id", 0},           {"pad_token", "<s>"}};
  const auto tokenizer = load_tokenizer(file);
  EXPECT_THAT(*tokenizer->encode("abab", true), ElementsAre(0, 1, 2, 1, 2));
  EXPECT_THAT(*tokenizer->encode("abab", false), ElementsAre(1, 2, 1, 2));
}

// Kimi's: ranks of merges, runs of Han characters alone, and special tokens behind the others.
TEST(Tokenizer, RanksOfTiktoken) {
  const auto base64 = [](std::string_view text) {
    constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (size_t i = 0; i < text.size(); i += 3) {
      uint32_t bits = 0;
      for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (i + j < text.size() ? static_cast<uint8_t>(text[i + j]) : 0);
      for (size_t j = 0; j < 4; ++j) out += i + j > text.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63];
    }
    return out;
  };
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(255 - byte));
  for (const char* more : {"bc", "ab", "abc", "cd", "\xe4\xb8\xad", " x"}) tokens.emplace_back(more);
  std::string file;
  for (size_t i = 0; i < tokens.size(); ++i) file += base64(tokens[i]) + " " + std::to_string(i) + "\n";
  const ModelDir dir({{"tiktoken.model", file},
                      {"tokenizer_config.json", R"({"added_tokens_decoder":{"263":{"content":"<|im_end|>"}}})"}});
  const auto tokenizer = Tokenizer::load(dir.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const auto ids = [&](const char* text) { return *(*tokenizer)->encode(text, true); };
  EXPECT_THAT(ids("abc"), ElementsAre(258));
  EXPECT_THAT(ids("abcd"), ElementsAre(258, 255 - 'd')) << "the best rank first: bc, then abc";
  EXPECT_THAT(ids("abd"), ElementsAre(257, 255 - 'd'));
  EXPECT_THAT(ids(" x\xe4\xb8\xad x<|im_end|>"), ElementsAre(261, 260, 261, 263));
  EXPECT_THAT(ids("<|reserved_token_262|>"), ElementsAre(262));
  EXPECT_EQ((*tokenizer)->vocab_size(), 262 + 256);
  EXPECT_EQ((*tokenizer)->decode(ids("\xe6\x96\x87 e\n"), false), "\xe6\x96\x87 e\n");
  const ModelDir damaged(std::map<std::string, std::string>{{"tiktoken.model", "IQ== 0\nIg== 2\n"}});
  EXPECT_THAT(Tokenizer::load(damaged.path()).error().message, HasSubstr("line 2"));
}

// For some classes tokenizer_config.json decides which tokens are added, whatever tokenizer.json does
// (tests/make/make_tokenizer_fixtures.py).
TEST(Tokenizer, SpecialTokensOfTheConfigAreThoseOfTransformers) {
  const std::string folder = "tests/data/special_tokens/";
  const json data = json::parse(std::ifstream(folder + "cases.json"));
  ASSERT_GE(data["cases"].size(), 10u);
  for (const auto& [name, fixture] : data["cases"].items()) {
    json file = json::parse(std::ifstream(folder + "tokenizer.json"));
    if (fixture["template"] == true) file["post_processor"] = data["template"];
    const ModelDir dir({{"tokenizer.json", file.dump()}, {"tokenizer_config.json", fixture["config"].dump()}});
    const auto tokenizer = Tokenizer::load(dir.path());
    ASSERT_TRUE(tokenizer.ok()) << name << ": " << tokenizer.error().message;
    const std::string text = data["text"];
    const auto expected = fixture["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(*(*tokenizer)->encode(text, true), expected) << name;
    EXPECT_EQ((*tokenizer)->encode_within(text, true, {.last_tokens = 100}).value(), expected) << name;
    auto plain = expected;
    std::erase_if(plain, [](TokenId id) { return id >= 278; });
    EXPECT_EQ(*(*tokenizer)->encode(text, false), plain) << name << ": a chat's template writes them itself";
  }
}

// transformers 4 refuses the first of these.
TEST(Tokenizer, AConfigWithoutATokenAddsNone) {
  const json file = tokenizer_json({"<s>", "a", "b"}, 1, nullptr);
  const auto ids = [&](const char* config) {
    const ModelDir dir({{"tokenizer.json", file.dump()}, {"tokenizer_config.json", config}});
    const auto tokenizer = Tokenizer::load(dir.path());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    return tokenizer.ok() ? *(*tokenizer)->encode("ab", true) : std::vector<TokenId>();
  };
  EXPECT_THAT(ids(R"({"tokenizer_class": "LlamaTokenizer", "bos_token": null})"), ElementsAre(1, 2));
  EXPECT_THAT(ids(R"({"tokenizer_class": "LlamaTokenizer"})"), ElementsAre(0, 1, 2)) << "the class's own token";
  EXPECT_THAT(ids(R"({"tokenizer_class": "LlamaTokenizer", "bos_token": "<begin>"})"), ElementsAre(1, 2));
  EXPECT_THAT(ids(R"({"tokenizer_class": null, "add_bos_token": true})"), ElementsAre(1, 2));
}

TEST(Tokenizer, AConfigThatCannotBeUsedIsNamed) {
  for (const char* config :
       {"", "[]", R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": "yes"})",
        R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "bos_token": "<begin>"})", "\xff"}) {
    const ModelDir dir(
        {{"tokenizer.json", tokenizer_json({"<s>", "a"}, 1, nullptr).dump()}, {"tokenizer_config.json", config}});
    const auto damaged = Tokenizer::load(dir.path());
    ASSERT_FALSE(damaged.ok()) << config;
    EXPECT_EQ(damaged.error().code, ErrorCode::kDataLoss);
    EXPECT_THAT(damaged.error().message, HasSubstr("tokenizer_config.json"));
  }
}

TEST(Tokenizer, LoadErrorsNameTheFile) {
  const auto missing = Tokenizer::load("models/nowhere");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("models/nowhere/tokenizer.json"));
  for (const char* contents : {"", "{", "[]", R"({"version": "1.0", "model": {"type": "Other"}})", "\xff"}) {
    const ModelDir dir({{"tokenizer.json", std::string(contents)}});
    const auto damaged = Tokenizer::load(dir.path());
    ASSERT_FALSE(damaged.ok()) << contents;
    EXPECT_EQ(damaged.error().code, ErrorCode::kDataLoss);
    EXPECT_THAT(damaged.error().message, HasSubstr(dir.path() + "/tokenizer.json"));
  }
}

TEST(Tokenizer, AGitLfsPointerIsNamed) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n";
  const std::string tokenizer = tokenizer_json({"a"}, 0, nullptr).dump();
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
    std::map<std::string, std::string> files = {{"tokenizer.json", tokenizer}};
    files[name] = pointer;
    const ModelDir dir(files);
    const auto text = Tokenizer::load(dir.path());
    const auto chat = ChatTemplate::load(dir.path());
    ASSERT_TRUE(!text.ok() || !chat.ok()) << name;
    EXPECT_THAT((text.ok() ? chat.error() : text.error()).message,
                AllOf(HasSubstr(std::string(name) + " is a Git LFS pointer"), HasSubstr("git lfs pull")));
  }
}

// Ten megabytes in one call (one under a sanitizer): no limit on length, no quadratic step, and the pieces' ids are
// those of the piece alone.
TEST(Tokenizer, LongTexts) {
  const auto tokenizer = pocket();
  const std::string piece = "A hat costs $30, but it is on sale.\n";
  const auto piece_ids = *tokenizer->encode(piece, false);
  std::string text;
  while (text.size() < (kSanitized ? 1'000'000 : 10'000'000)) text += piece;
  const auto ids = tokenizer->encode(text, false);
  ASSERT_TRUE(ids.ok()) << ids.error().message;
  ASSERT_EQ(ids->size(), text.size() / piece.size() * piece_ids.size());
  EXPECT_TRUE(std::equal(piece_ids.begin(), piece_ids.end(), ids->end() - piece_ids.size()));
  EXPECT_EQ(tokenizer->decode(*ids, false), text);
}

// Runs that split nowhere: the worst case of the regular expression and of the merges.
TEST(Tokenizer, LongRunsOfOneCharacter) {
  const auto tokenizer = pocket();
  for (const char c : {' ', '\n', 'a', '!'}) {
    const std::string text(1'000'000, c);
    const auto ids = tokenizer->encode(text, false);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(tokenizer->decode(*ids, false), text);
  }
}

TEST(Tokenizer, OneForManyThreads) {
  const auto tokenizer = pocket();
  const std::string text = "Turn the facts into JSON: Mia is 59 years old and lives in Boston.";
  const auto expected = *tokenizer->encode(text, false);
  std::vector<int> same(4, 0);
  std::vector<std::thread> threads;
  for (int& count : same) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        count += *tokenizer->encode(text, false) == expected && tokenizer->decode(expected, true) == text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(same, ElementsAre(200, 200, 200, 200));
}

// A panic on the Rust side must arrive as a status. This decoder strips the last character of a text that has none.
TEST(Textkit, PanicIsAnError) {
  const json file = tokenizer_json(
      {"a"}, 0,
      {{"type", "Sequence"},
       {"decoders", {{{"type", "Fuse"}}, {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}}}}});
  const std::string contents = file.dump();
  textkit_tokenizer* handle = nullptr;
  textkit_bytes text{nullptr, 0}, error{nullptr, 0};
  ASSERT_EQ(textkit_tokenizer_new({contents.data(), contents.size()}, {}, &handle, &error), TEXTKIT_OK);
  testing::internal::CaptureStderr();
  EXPECT_EQ(textkit_tokenizer_decode(handle, nullptr, 0, false, &text, &error), TEXTKIT_INTERNAL);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(text.data, nullptr);
  EXPECT_THAT(std::string(error.data, error.size), HasSubstr("strip.rs"));
  textkit_bytes_free(error);
  textkit_tokenizer_free(handle);
  EXPECT_EQ(load_tokenizer(file)->decode({}, false), "\uFFFD");
}

TEST(Textkit, FreeingNothingIsAllowed) {
  textkit_bytes_free({nullptr, 0});
  textkit_ids_free({nullptr, 0});
  textkit_tokenizer_free(nullptr);
  textkit_template_free(nullptr);
}

}  // namespace
}  // namespace volley::text

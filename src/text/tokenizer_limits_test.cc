// Protects against a tokenizer.json that takes all memory or time: parts that multiply a text are refused at load, and
// any work ends with its caller and its budget.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "text/test_model.h"

namespace volley::text {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const json& file) {
  const ModelDir dir({{"tokenizer.json", file.dump()}});
  const auto tokenizer = Tokenizer::load(dir.path());
  EXPECT_FALSE(tokenizer.ok());
  return tokenizer.ok() ? "" : tokenizer.error().message;
}

// A file of a few megabytes could otherwise keep the start busy for an hour.
TEST(TokenizerLimits, AddedTokens) {
  json file = tokenizer_json({"a"}, 0, nullptr);
  const auto add = [&](int count) {
    for (int i = 0; i < count; ++i) {
      file["added_tokens"].push_back({{"id", 1 + i},
                                      {"content", "<" + std::to_string(i) + ">"},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", false}});
    }
  };
  add(5'000);
  EXPECT_EQ(load_tokenizer(file)->vocab_size(), 5'001);
  add(76'000);
  EXPECT_THAT(refusal(file), AllOf(HasSubstr("tokenizer.json"), HasSubstr("has 81000 added_tokens")));
  file["added_tokens"] = json::array({{{"id", 1},
                                       {"content", std::string(5'000'000, 'x')},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}}});
  EXPECT_THAT(refusal(file), HasSubstr("have 5000000 bytes of text"));
}

TEST(TokenizerFields, OfTheModelThatAreUnknownAreSkipped) {
  json file = tokenizer_json({"a"}, 0, nullptr);
  file["model"] = {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", json::array()}, {"cache_size", 10}};
  EXPECT_EQ(load_tokenizer(file)->vocab_size(), 1);
}

// A normaliser that multiplies the text takes all memory with the first prompt.
TEST(TokenizerLimits, GrowthOfATextByTheNormalizer) {
  const auto replace = [](const json& pattern, const std::string& content) {
    return json{{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
  };
  const auto with = [](json normalizers) {
    json file = tokenizer_json({"a"}, 0, nullptr);
    file["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
    return file;
  };
  const json tenfold = replace({{"String", "a"}}, "aaaaaaaaaa");
  EXPECT_THAT(refusal(with({tenfold, tenfold, tenfold})), HasSubstr("normalizer can make a text 1000 times as long"));
  EXPECT_THAT(refusal(with({replace({{"Regex", "x*"}}, std::string(400, 'b'))})), HasSubstr("401 times"));
  EXPECT_THAT(refusal(with({{{"type", "Prepend"}, {"prepend", std::string(400, 'b')}}})), HasSubstr("401 times"));
  // A charsmap that says its trie is longer than it is.
  for (const char* cut : {"/////w==", "AQAAAA==", "BAAAAGJi"}) {
    EXPECT_THAT(refusal(with({{{"type", "Precompiled"}, {"precompiled_charsmap", cut}}})),
                HasSubstr("precompiled_charsmap of its normalizer ends before its trie"));
  }
  // A charsmap of an empty trie and one text of 400 bytes.
  EXPECT_THAT(refusal(with({{{"type", "Precompiled"},
                             {"precompiled_charsmap", "AAAAAGJi" +
                                                          [] {
                                                            std::string text;
                                                            for (int i = 0; i < 133; ++i) text += "YmJi";
                                                            return text;
                                                          }()}}})),
              HasSubstr("401 times"));
  // As Llama and XLM-RoBERTa have them.
  load_tokenizer(with({{{"type", "Prepend"}, {"prepend", "▁"}}, replace({{"String", " "}}, "▁")}));
  load_tokenizer(with({{{"type", "NFKC"}}, {{"type", "Lowercase"}}, replace({{"Regex", " {2,}"}}, "▁")}));
}

// Both patterns would take practically for ever.
TEST(TokenizerLimits, PatternsThatBacktrack) {
  const auto error = [](const std::string& pattern, const std::string& text) {
    json file = tokenizer_json({"a"}, 0, nullptr);
    file["pre_tokenizer"] = {
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
    const auto ids = load_tokenizer(file)->encode(text, false);
    EXPECT_FALSE(ids.ok());
    EXPECT_TRUE(ids.ok() || ids.error().code == ErrorCode::kInvalidArgument);
    return ids.ok() ? "" : ids.error().message;
  };
  EXPECT_THAT(error("(a|aa|b|bb)+x", std::string(60, 'a')), HasSubstr("tokenizer.json backtracks"));
  EXPECT_THAT(error("a{1,500}a{1,500}(?!a)", std::string(200'000, 'a')), HasSubstr("tokenizer.json backtracks"));
}

// A file with a part that is a sequence of so many equal steps.
json with_steps(const char* part, const char* list, const json& step, size_t count) {
  json file = tokenizer_json({"a"}, 0, nullptr);
  file[part] = {{"type", "Sequence"}, {list, std::vector<json>(count, step)}};
  return file;
}

const json kByteLevel = {
    {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
const json kTemplate = {
    {"type", "TemplateProcessing"},
    {"single", {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
    {"pair", json::array()},
    {"special_tokens", json::object()}};

TEST(TokenizerSteps, ThatMultiplyATextAreRefused) {
  const std::string times = "1099511627776 times as long";
  EXPECT_THAT(refusal(with_steps("normalizer", "normalizers", {{"type", "ByteLevel"}}, 40)),
              AllOf(HasSubstr("normalizer can"), HasSubstr(times)));
  EXPECT_THAT(refusal(with_steps("pre_tokenizer", "pretokenizers", kByteLevel, 40)),
              AllOf(HasSubstr("pre_tokenizer can"), HasSubstr(times)));
  EXPECT_THAT(refusal(with_steps("decoder", "decoders", {{"type", "BPEDecoder"}, {"suffix", ""}}, 40)),
              AllOf(HasSubstr("decoder can"), HasSubstr(times)));
  const json ctc = {{"type", "CTC"}, {"pad_token", "p"}, {"word_delimiter_token", ""}, {"cleanup", true}};
  EXPECT_THAT(refusal(with_steps("decoder", "decoders", ctc, 40)), HasSubstr(times));
  const json doubled = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "  "}};
  EXPECT_THAT(refusal(with_steps("decoder", "decoders", doubled, 40)), HasSubstr(times));
  EXPECT_THAT(refusal(with_steps("post_processor", "processors", kTemplate, 40)), HasSubstr(times));
  const json inner = {{"type", "Sequence"}, {"normalizers", std::vector<json>(5, {{"type", "ByteLevel"}})}};
  EXPECT_THAT(refusal(with_steps("normalizer", "normalizers", inner, 8)), HasSubstr(times));
  load_tokenizer(with_steps("decoder", "decoders", {{"type", "BPEDecoder"}, {"suffix", "</w>"}}, 40));
  load_tokenizer(with_steps("decoder", "decoders", kByteLevel, 20));
}

TEST(TokenizerSteps, ThatAreTooManyAreRefused) {
  const json strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  EXPECT_THAT(refusal(with_steps("normalizer", "normalizers", strip, 300)), HasSubstr("normalizer has 300 steps"));
  EXPECT_THAT(refusal(with_steps("pre_tokenizer", "pretokenizers", {{"type", "WhitespaceSplit"}}, 300)),
              HasSubstr("pre_tokenizer has 300 steps"));
  EXPECT_THAT(refusal(with_steps("decoder", "decoders", {{"type", "Fuse"}}, 300)), HasSubstr("decoder has 300 steps"));
  load_tokenizer(with_steps("normalizer", "normalizers", strip, 200));
}

json word_piece(int64_t most_letters) {
  json file = tokenizer_json({}, 0, nullptr);
  file["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  file["model"] = {{"type", "WordPiece"},
                   {"unk_token", "[UNK]"},
                   {"continuing_subword_prefix", "##"},
                   {"max_input_chars_per_word", most_letters},
                   {"vocab", {{"[UNK]", 0}, {"a", 1}, {"##a", 2}}}};
  return file;
}

TEST(TokenizerModels, ThatCannotBeBoundedAreRefused) {
  EXPECT_THAT(refusal(word_piece(1'000'000'000)), HasSubstr("max_input_chars_per_word is 1000000000"));
  EXPECT_EQ(load_tokenizer(word_piece(100))->encode("aaa " + std::string(101, 'a'), false).value(),
            (std::vector<TokenId>{1, 2, 2, 0}));
  EXPECT_THAT(refusal(tokenizer_json({std::string(5'000, 'x')}, 0, nullptr)), HasSubstr("has 5000 bytes"));
  json unigram = tokenizer_json({}, 0, nullptr);
  json pieces = json::array({json::array({"<unk>", 0.0})});
  unigram["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", pieces}};
  load_tokenizer(unigram);
  unigram["model"]["vocab"].push_back(json::array({std::string(5'000, 'x'), -1.0}));
  EXPECT_THAT(refusal(unigram), HasSubstr("has 5000 bytes"));
  unigram["model"]["vocab"] = pieces;
  for (int i = 0; i < 9'000; ++i) {
    unigram["model"]["vocab"].push_back(json::array({std::string(4'000, 'x') + std::to_string(i), -1.0}));
  }
  EXPECT_THAT(refusal(unigram), AllOf(HasSubstr("vocabulary has 36"), HasSubstr("bytes of text")));
}

// Two million steps for each of its words, far below the limit for one match.
const json kSlow = {{"Regex", "(?:x+x+)+y|."}};
const std::string kSlowWord = std::string(20, 'x');
json slow_split() {
  json file = tokenizer_json({"x", kSlowWord}, 0, nullptr);
  file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", kSlow}, {"behavior", "Isolated"}, {"invert", false}};
  return file;
}
json slow_replace() {
  json file = tokenizer_json({"x", kSlowWord}, 0, nullptr);
  file["normalizer"] = {{"type", "Replace"}, {"pattern", kSlow}, {"content", "x"}};
  return file;
}

std::string repeated(const std::string& word, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += word + " ";
  return text;
}

// Without looking at its caller each of these would take many minutes.
TEST(TokenizerWork, EndsWithItsCaller) {
  json explosive = word_piece(1'000);
  struct Case {
    json file;
    std::string text;
  };
  for (const auto& [file, text] :
       {Case{slow_split(), repeated(kSlowWord, 1 << 20)}, Case{slow_replace(), repeated(kSlowWord, 1 << 20)},
        Case{explosive, repeated(std::string(1'000, 'a'), 3 << 20)}}) {
    const auto tokenizer = load_tokenizer(file);
    std::atomic<bool> cancelled = false;
    EncodeLimits limits;
    limits.cancelled = &cancelled;
    std::jthread caller([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      cancelled = true;
    });
    const auto ids = tokenizer->encode_within(text, false, limits);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.error().code, ErrorCode::kCancelled) << ids.error().message;
  }
}

TEST(TokenizerWork, EndsWithItsBudget) {
  const auto ids = load_tokenizer(slow_split())->encode(repeated(kSlowWord, 16 << 10), false);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(ids.error().message, AllOf(HasSubstr("tokenizer takes more than 2."), HasSubstr("shorten it")));
  // Eight steps are allowed, and would make 64 MiB of this text, and 16 times that of the places of its letters.
  const std::string text(256 << 10, '\x01');
  const auto long_ids =
      load_tokenizer(with_steps("normalizer", "normalizers", {{"type", "ByteLevel"}}, 8))->encode(text, false);
  ASSERT_FALSE(long_ids.ok());
  EXPECT_THAT(long_ids.error().message, HasSubstr("MiB of memory for this text"));
}

TEST(TokenizerWork, OfIdsEndsWithItsBudget) {
  json file = tokenizer_json({"x", kSlowWord}, 0, {{"type", "Replace"}, {"pattern", kSlow}, {"content", "x"}});
  const auto tokenizer = load_tokenizer(file);
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{0, 1}, false), "x" + kSlowWord);
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>(10'000, 1), false), "\uFFFD");
}

// The library's own steps and these give the same.
TEST(TokenizerWork, StepsAreTheLibrarys) {
  json file = tokenizer_json({"[", "]", "b", "-", "a"}, 1,
                             {{"type", "Sequence"},
                              {"decoders",
                               {{{"type", "Replace"}, {"pattern", {{"String", "b"}}}, {"content", "(b)"}},
                                {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}}}}}}});
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "Replace"}, {"pattern", {{"String", "."}}}, {"content", "-"}},
                          {{"type", "Replace"}, {"pattern", {{"Regex", "a+"}}}, {"content", "b"}},
                          {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}}}}};
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "b+"}}}, {"behavior", "Removed"}, {"invert", true}};
  const auto tokenizer = load_tokenizer(file);
  EXPECT_EQ(tokenizer->encode("Baa.a", false).value(), (std::vector<TokenId>{2, 2, 2})) << "bb and b of bb-b";
  EXPECT_EQ(tokenizer->encode("", false).value(), std::vector<TokenId>{});
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{2, 0, 2}, true), "(b)(b)");
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{2, 0, 2}, false), "(b)[(b)");
}

}  // namespace
}  // namespace volley::text

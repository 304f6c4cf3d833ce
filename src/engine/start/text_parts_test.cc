// Texts of parts between control tokens: the places of the marks, and where stop strings count.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/run/request_output.h"

namespace volley::engine {
namespace {

using testing::ElementsAre;

// A token is a byte; from 256 on they are control tokens.
class Bytes final : public text::Tokenizer {
 public:
  Result<std::vector<TokenId>> encode_within(std::string_view, bool, const EncodeLimits&) const override {
    return internal_error("not asked for");
  }
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override {
    std::string text;
    for (const TokenId id : ids) {
      if (id < 128) text += static_cast<char>(id);
      if (id >= 128 && id < 256) text += "\uFFFD";
      if (id >= 256 && !skip_special_tokens) text += "<mark>";
    }
    return text;
  }
  int32_t vocab_size() const override { return 300; }
  std::optional<TokenId> token_id(std::string_view) const override { return std::nullopt; }
};

std::vector<TokenId> tokens(const std::string& text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(c == '#' ? 256 : c == '!' ? 257 : static_cast<unsigned char>(c));
  return ids;
}

struct Read {
  std::string text;  // with a | for each mark
  std::optional<Finish> finish;
};

// '#' and '!' are marks, and stop strings count behind '!'. Each step brings `step` tokens.
Read run(const std::string& written, size_t step, std::vector<std::string> stop, bool at_start = false,
         std::vector<std::string>* befores = nullptr, int32_t min_tokens = 0) {
  Read read;
  const EventSink sink = [&](const Event& event) {
    size_t at = 0;
    for (const Event::Mark& mark : event.marks) {
      read.text += event.text.substr(at, mark.at - at) + "|";
      at = mark.at;
    }
    read.text += event.text.substr(at);
    if (event.finish) read.finish = event.finish;
  };
  TextParts parts;
  parts.marks = {256, 257};
  parts.stops_count_at_start = at_start;
  parts.stops_count = [befores](TokenId mark, std::string_view before) {
    if (befores) befores->emplace_back(before);
    return mark == 257;
  };
  RequestOutput output(1, sink, std::make_shared<Bytes>(),
                       {.stop = std::move(stop), .min_tokens = min_tokens, .parts = parts}, 1,
                       RequestOutput::Clock::now());
  const std::vector<TokenId> ids = tokens(written);
  for (size_t at = 0; at < ids.size() && !read.finish; at += step) {
    decode::RoundResult result;
    result.tokens.assign(ids.begin() + static_cast<std::ptrdiff_t>(at),
                         ids.begin() + static_cast<std::ptrdiff_t>(std::min(at + step, ids.size())));
    output.push(result, true, 0, false, RequestOutput::Clock::now());
  }
  if (!read.finish) output.finish(FinishReason::kLength, std::nullopt, RequestOutput::Clock::now());
  return read;
}

TEST(TextParts, MarksAreNoText) {
  for (size_t step = 1; step < 12; ++step) {
    std::vector<std::string> befores;
    EXPECT_EQ(run("#ab#c!!d", step, {}, false, &befores).text, "|ab|c||d");
    EXPECT_THAT(befores, ElementsAre("", "ab", "c", ""));
  }
}

TEST(TextParts, StopStringsCountWhereTheyAreSaidTo) {
  for (size_t step = 1; step < 12; ++step) {
    const Read read = run("xy#xy!axyb", step, {"xy"});
    EXPECT_EQ(read.text, "xy|xy|a");
    EXPECT_EQ(read.finish->stop_text, "xy");
    EXPECT_EQ(read.finish->usage.completion_tokens, 9);
    EXPECT_EQ(run("axyb", step, {"xy"}, true).text, "a");
  }
}

// Text that may become a stop string is given out once a mark follows, and no match crosses a mark.
TEST(TextParts, StopStringsDoNotReachOverMarks) {
  for (size_t step = 1; step < 12; ++step) {
    const Read read = run("!ax!yx#y", step, {"xy"});
    EXPECT_EQ(read.text, "|ax|yx|y");
    EXPECT_EQ(read.finish->reason, FinishReason::kLength);
    EXPECT_EQ(run("!xyaxyb", step, {"xy"}, false, nullptr, 3).text, "|xya");
  }
}

TEST(TextParts, CharactersDoNotReachOverMarks) {
  for (size_t step = 1; step < 12; ++step) {
    EXPECT_EQ(run(std::string("a\xC3#b"), step, {"q"}).text, "a\uFFFD|b");
    EXPECT_EQ(run(std::string("!a\xC3!b"), step, {"q"}).text, "|a\uFFFD|b");
  }
}

// Only the first kilobyte of a part is kept for the question.
TEST(TextParts, OnlyTheBeginningOfAPartIsKept) {
  std::vector<std::string> befores;
  run(std::string(5000, 'a') + "#", 7, {}, false, &befores);
  EXPECT_THAT(befores, ElementsAre(std::string(1024, 'a')));
}

// Strips the first space of a text, as SentencePiece's decoders do.
class Stripping final : public text::Tokenizer {
 public:
  Result<std::vector<TokenId>> encode_within(std::string_view, bool, const EncodeLimits&) const override {
    return internal_error("not asked for");
  }
  std::string decode(std::span<const TokenId> ids, bool) const override {
    std::string text;
    for (const TokenId id : ids) text += static_cast<char>(id);
    return text.starts_with(' ') ? text.substr(1) : text;
  }
  int32_t vocab_size() const override { return 128; }
  std::optional<TokenId> token_id(std::string_view) const override { return std::nullopt; }
};

TEST(TextParts, PartsWithoutMarksGoOnWithThePrompt) {
  GenerateRequest request;
  request.prompt = tokens("Once upon a time");
  const auto written = [&](std::vector<std::string> stop) {
    std::string text;
    RequestOutput output(
        1, [&](const Event& event) { text += event.text; }, std::make_shared<Stripping>(),
        {.stop = std::move(stop), .parts = request.parts, .context = text_context(request)}, 16,
        RequestOutput::Clock::now());
    decode::RoundResult result;
    result.tokens = tokens(" there was");
    output.push(result, true, 0, false, RequestOutput::Clock::now());
    if (result.tokens.size() == 10) output.finish(FinishReason::kLength, std::nullopt, RequestOutput::Clock::now());
    return text;
  };
  EXPECT_EQ(written({}), "there was") << "a text of its own";
  request.parts.emplace();
  EXPECT_EQ(written({}), " there was");
  EXPECT_EQ(written({" there"}), "");
  request.parts->marks = {0};
  EXPECT_EQ(written({}), "there was");
}

}  // namespace
}  // namespace volley::engine

#include "serve/formats/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "serve/formats/output_parser_for_test.h"

namespace volley::serve {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

OutputParser::Options hermes(ReasoningStart reasoning = ReasoningStart::kOff) {
  return {answers_named("hermes"), reasoning, "call_"};
}
OutputParser::Options llama(ReasoningStart reasoning = ReasoningStart::kOff) {
  return {answers_named("llama"), reasoning, "call_"};
}
OutputParser::Options thinking(ReasoningStart reasoning) {
  return {answers_named("none"), reasoning, "call_"};
}

constexpr const char* kWeather =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"K\u00f6ln\"}}\n</tool_call>";
constexpr const char* kTime = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";

// --- Hermes ---

TEST(HermesCalls, OneCall) {
  EXPECT_EQ(parse(hermes(), kWeather), (Message{"", "", {{"weather", "{\"city\": \"K\u00f6ln\"}"}}}));
}

TEST(HermesCalls, SeveralCallsAndTheTextAroundThem) {
  const std::string two = std::string(kWeather) + "\n" + kTime;
  const std::vector<Call> calls = {{"weather", "{\"city\": \"K\u00f6ln\"}"}, {"time", "{}"}};
  EXPECT_EQ(parse(hermes(), two), (Message{"", "", calls}));
  EXPECT_EQ(parse(hermes(), "  Let me see.\n\n" + two + "\n"), (Message{"  Let me see.", "", calls}));
  EXPECT_EQ(parse(hermes(), "A" + std::string(kWeather) + "\nB" + kTime), (Message{"A\nB", "", calls}));
}

TEST(HermesCalls, IdsAreThePrefixAndTheIndex) {
  const Message message =
      parse({answers_named("hermes"), ReasoningStart::kOff, "call_x7_"}, std::string(kWeather) + kTime);
  ASSERT_EQ(message.calls.size(), 2u);
  EXPECT_EQ(message.calls[0].id, "call_x7_0");
  EXPECT_EQ(message.calls[1].id, "call_x7_1");
}

// Clients parse them, and templates of later turns print them again, where a changed byte would miss the prefix cache.
TEST(HermesCalls, ArgumentsAreTheBytesThatWereGenerated) {
  const std::string arguments = R"({ "b":1.0,"a" : [1e3, "\u00e9\n</tool_call>}", {"x": null}] , "a": "twice"})";
  EXPECT_THAT(parse(hermes(), "<tool_call>{\"name\":\"f\",\"arguments\":" + arguments + "}</tool_call>").calls,
              ElementsAre(Call{"f", arguments}));
}

// Models write them, but JSON strings may not have any.
TEST(HermesCalls, ControlCharactersInStringsAreEscaped) {
  const std::string text =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\n\"x\": \"a\n\tb\\\nc\x01\"}}\n</tool_call>";
  EXPECT_EQ(parse(hermes(), text).calls, (std::vector<Call>{{"f", "{\n\"x\": \"a\\n\\tb\\nc\\u0001\"}"}}));
  expect_same_however_cut(hermes(), text);
}

TEST(HermesCalls, MembersInAnyOrderAndOtherOnes) {
  for (const char* object :
       {R"({"arguments": {"x": 1}, "name": "f"})", R"({"type": "function", "name": "f", "arguments": {"x": 1}})",
        R"({"name": "f", "id": [1, {"a": "}"}], "arguments": {"x": 1}, "score": -1.5e3})",
        R"({"name": "f", "parameters": {"x": 1}})", R"({"score":1,"name":"\u0066","arguments":{"x": 1}})"}) {
    EXPECT_EQ(parse(hermes(), "<tool_call>" + std::string(object) + "</tool_call>"),
              (Message{"", "", {{"f", "{\"x\": 1}"}}}))
        << object;
  }
}

TEST(HermesCalls, ArgumentsThatAreLeftOutAreEmpty) {
  EXPECT_EQ(parse(hermes(), "<tool_call>\n{\"name\": \"now\"}\n</tool_call>"), (Message{"", "", {{"now", "{}"}}}));
}

// A call's head goes out before its arguments end, and these go out as they come.
TEST(HermesCalls, AreStreamed) {
  OutputParser parser(hermes());
  EXPECT_EQ(parser.push("Sure: <tool").content(), "Sure:");
  EXPECT_TRUE(parser.push("_call>\n{\"name\": \"f\"").empty());
  EXPECT_TRUE(parser.push(", \"arguments\": ").empty());
  EXPECT_EQ(only_call(parser.push("{\"text\": \"ab")), "call_0 f({\"text\": \"ab");
  EXPECT_EQ(only_call(parser.push("cd")), " (cd");
  EXPECT_EQ(parser.push("\"}}\n</tool_call>").tool_calls()[0].arguments, "\"}");
  EXPECT_TRUE(parser.finish().empty());
  EXPECT_EQ(parser.calls(), 1);
}

TEST(HermesCalls, TextWithoutCallsIsStreamedAndStaysAsItIs) {
  OutputParser parser(hermes());
  EXPECT_EQ(parser.push(" a < b <tool").content(), " a < b");
  EXPECT_EQ(parser.push("> c \n").content(), " <tool> c");
  EXPECT_EQ(parser.push("").content(), "");
  EXPECT_EQ(parser.finish().content(), " \n");
}

TEST(HermesCalls, WhatIsNoCallIsContent) {
  for (const char* text :
       {"<tool_call>", "<tool_call></tool_call>", "<tool_call>\nweather()\n</tool_call>\n", "<tool_call>{}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>", "<tool_call>{\"name\": 7, \"arguments\": {}}",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>", "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>[{\"name\": \"f\", \"arguments\": {}}]</tool_call>", "<tool_call>\n<function=f>\n</tool_call>",
        "<tool_call>{\"name\": \"f\", \"argu", "a </tool_call> b", "<tool_call>{\"name\": \"f\", oops",
        "<tool_call>{\"name\": \"\\q\", \"arguments\": {}}", " \n<tool_call> \n", "<tool_call>{\"name\": \"f\"<br>"}) {
    EXPECT_EQ(parse(hermes(), text), (Message{text, "", {}}));
  }
}

TEST(HermesCalls, ACallAfterSomethingThatIsNone) {
  const Call time{"time", "{}"};
  EXPECT_EQ(parse(hermes(), "<tool_call>oops " + std::string(kTime)), (Message{"<tool_call>oops", "", {time}}));
  EXPECT_EQ(parse(hermes(), "<tool_call>{\"name\": \"" + std::string(kTime)),
            (Message{"<tool_call>{\"name\": \"", "", {time}}));
  EXPECT_EQ(parse(hermes(), "<tool_call><tool_call>" + std::string(kTime)),
            (Message{"<tool_call><tool_call>", "", {time}}));
}

// max_tokens can cut anywhere. As with OpenAI's API, clients then see unfinished arguments.
TEST(HermesCalls, CutOffArgumentsStay) {
  const char* cut = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b";
  EXPECT_EQ(parse(hermes(), cut, TextEnd::kCut), (Message{"", "", {{"f", "{\"a\": \"b"}}}));
  EXPECT_EQ(parse(hermes(), cut), (Message{"", "", {{"f", "{\"a\": \"b\"}"}}})) << "the model's own end";
  for (const char* end : {"", "}", "}\n", "}\n</tool", "}\n</tool_call>"}) {
    EXPECT_EQ(parse(hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": {}" + std::string(end)),
              (Message{"", "", {{"f", "{}"}}}))
        << end;
  }
}

TEST(HermesCalls, AnEndThatIsMissingDoesNotUndoTheCall) {
  const Call f{"f", "{\"a\": 1}"};
  const std::string open = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}";
  EXPECT_EQ(parse(hermes(), open + "\n</tool_call>"), (Message{"", "", {f}}));
  EXPECT_EQ(parse(hermes(), open + "}\n" + kTime), (Message{"", "", {f, {"time", "{}"}}}));
  EXPECT_EQ(parse(hermes(), open + "}\nDone."), (Message{"\nDone.", "", {f}}));
  EXPECT_EQ(parse(hermes(), open + "}}\n</tool_call>"), (Message{"}\n</tool_call>", "", {f}}));
  EXPECT_EQ(parse(hermes(), "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1</tool_call>"),
            (Message{"", "", {{"f", "{\"a\": 1}"}}}));
}

TEST(HermesCalls, NoArgumentsAreAnEmptyObject) {
  for (const char* object : {R"({"name": "f", "arguments": null})", R"({"name": "f", "arguments": ""})",
                             R"({"arguments": null , "name": "f"})", R"({"name": "f", "parameters":null,"id":7})"}) {
    const std::string text = "<tool_call>" + std::string(object) + "</tool_call>";
    EXPECT_EQ(parse(hermes(), text), (Message{"", "", {{"f", "{}"}}})) << object;
    expect_same_however_cut(hermes(), text);
  }
  for (const char* object : {R"({"name": "f", "arguments": nul})", R"({"name": "f", "arguments": nulls})",
                             R"({"name": "f", "arguments": "x"})", R"({"name": "f", "arguments": []})"}) {
    const std::string text = "<tool_call>" + std::string(object) + "</tool_call>";
    EXPECT_EQ(parse(hermes(), text), (Message{text, "", {}}));
  }
}

TEST(HermesCalls, NoToolsMeansThatMarkersAreText) {
  EXPECT_EQ(parse({}, kWeather), (Message{kWeather, "", {}}));
}

// --- Llama ---

TEST(LlamaCalls, OneCallWithAndWithoutTag) {
  const Call f{"f", "{\"x\": 1}"};
  for (const char* text : {"{\"name\": \"f\", \"parameters\": {\"x\": 1}}",
                           "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"x\": 1}}\n",
                           "\n <|python_tag|> {\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"x\": 1}}",
                           "{\"name\":\"f\",\"arguments\":{\"x\": 1}}"}) {
    EXPECT_EQ(parse(llama(), text), (Message{"", "", {f}})) << text;
  }
}

TEST(LlamaCalls, Several) {
  const std::string call = "{\"name\": \"f\", \"parameters\": {}}";
  const Call f{"f", "{}"};
  EXPECT_THAT(parse(llama(), call + "; " + call).calls, ElementsAre(f, f));
  EXPECT_THAT(parse(llama(), call + "\n" + call + ";" + call).calls, ElementsAre(f, f, f));
  EXPECT_EQ(parse(llama(), call + ";;" + call), (Message{";;" + call, "", {f}}));
  EXPECT_EQ(parse(llama(), call + "; "), (Message{"; ", "", {f}}));
  EXPECT_EQ(parse(llama(), call + "; {\"a\": 1}"), (Message{"; {\"a\": 1}", "", {f}}));
  EXPECT_EQ(parse(llama(), call + "\nThat is it."), (Message{"\nThat is it.", "", {f}}));
}

TEST(LlamaCalls, OtherAnswersAreContent) {
  for (const char* text :
       {"It rains. {\"name\": \"f\", \"parameters\": {}}", " \n", "{", "{}", "{\"city\": \"Bonn\"}",
        "{\"name\": \"Ada\"}", "{\"name\": \"Ada\", \"age\": 36, \"parameters\": {}}", "<|python", "<b>",
        "<|python_tag|>search(\"x\")", "<|python_tag|> ", "[1]", "{\"name\": \"f\", \"parameters\": [1]}"}) {
    EXPECT_EQ(parse(llama(), text), (Message{text, "", {}}));
  }
}

// A JSON answer must not wait for its end just because calls are JSON, too.
TEST(LlamaCalls, JsonThatIsNoCallIsStreamedFromItsFirstForeignMember) {
  OutputParser parser(llama());
  EXPECT_TRUE(parser.push("{\"ci").empty());
  EXPECT_EQ(parser.push("ty\": ").content(), "{\"city\": ");
  EXPECT_EQ(parser.push("\"Bo").content(), "\"Bo");
}

TEST(LlamaCalls, CutOff) {
  const char* cut = "{\"name\": \"f\", \"parameters\": {\"a\": \"b";
  EXPECT_EQ(parse(llama(), cut, TextEnd::kCut), (Message{"", "", {{"f", "{\"a\": \"b"}}}));
  EXPECT_EQ(parse(llama(), cut), (Message{"", "", {{"f", "{\"a\": \"b\"}"}}})) << "the model's own end";
  EXPECT_EQ(parse(llama(), "{\"name\": \"f\", \"par"), (Message{"{\"name\": \"f\", \"par", "", {}}));
}

// --- Reasoning ---

TEST(Reasoning, ModelOpensIt) {
  const auto options = thinking(ReasoningStart::kClosed);
  EXPECT_EQ(parse(options, "<think>\nHm, so.\n</think>\n\nYes.\n"), (Message{"Yes.\n", "Hm, so.", {}}));
  EXPECT_EQ(parse(options, "\n<think></think>Yes."), (Message{"Yes.", "", {}}));
  EXPECT_EQ(parse(options, "<think>\n\n</think>\n\n"), (Message{"", "", {}}));
  EXPECT_EQ(parse(options, " Yes. <think>no</think>"), (Message{" Yes. <think>no</think>", "", {}}));
  EXPECT_EQ(parse(options, "<thin"), (Message{"<thin", "", {}}));
  EXPECT_EQ(parse(options, "<think>a</think>b</think><think>c"), (Message{"b</think><think>c", "a", {}}));
}

TEST(Reasoning, PromptOpensIt) {
  const auto options = thinking(ReasoningStart::kOpen);
  EXPECT_EQ(parse(options, "Hm, so.\n</think>\n\nYes."), (Message{"Yes.", "Hm, so.", {}}));
  EXPECT_EQ(parse(options, "\n<think>\nHm.</think>Yes."), (Message{"Yes.", "Hm.", {}}));
  EXPECT_EQ(parse(options, " \n"), (Message{"", "", {}}));
}

TEST(Reasoning, CutOff) {
  EXPECT_EQ(parse(thinking(ReasoningStart::kOpen), "Hm, <b> so"), (Message{"", "Hm, <b> so", {}}));
  EXPECT_EQ(parse(thinking(ReasoningStart::kClosed), "<think>Hm\n</thin"), (Message{"", "Hm\n</thin", {}}));
  EXPECT_EQ(parse(thinking(ReasoningStart::kOpen), "<thi"), (Message{"", "<thi", {}}));
}

TEST(Reasoning, CallsInThoughtsAreThoughts) {
  const std::string text = "<think>\nMaybe " + std::string(kTime) + "?\n</think>\n\n" + kWeather;
  const Message message = parse(hermes(ReasoningStart::kClosed), text);
  EXPECT_EQ(message.reasoning, "Maybe " + std::string(kTime) + "?");
  EXPECT_EQ(message.content, "");
  EXPECT_THAT(message.calls, ElementsAre(Call{"weather", "{\"city\": \"K\u00f6ln\"}"}));
  EXPECT_THAT(parse(llama(ReasoningStart::kOpen), "a</think>\n{\"name\": \"f\", \"parameters\": {}}").calls,
              ElementsAre(Call{"f", "{}"}));
}

TEST(Reasoning, IsStreamed) {
  OutputParser parser(thinking(ReasoningStart::kClosed));
  EXPECT_EQ(parser.push("<think>\nFirst, ").reasoning(), "First,");
  EXPECT_EQ(parser.push("then").reasoning(), " then");
  EXPECT_TRUE(parser.push("\n</thi").empty());
  EXPECT_TRUE(parser.push("nk>\n").empty());
  EXPECT_EQ(parser.push("\nYes").content(), "Yes");
}

TEST(Reasoning, StartsWhereThePromptEnds) {
  const AnswerFormat& format = *plain_answers();
  EXPECT_EQ(format.start(false, "<think>\n"), ReasoningStart::kOff);
  EXPECT_EQ(format.start(true, "<|im_start|>assistant\n"), ReasoningStart::kClosed);
  EXPECT_EQ(format.start(true, "<|im_start|>assistant\n<think>\n"), ReasoningStart::kOpen);
  // A template told not to think closes it at once; a user may write about it.
  EXPECT_EQ(format.start(true, "assistant\n<think>\n\n</think>\n\n"), ReasoningStart::kClosed);
  EXPECT_EQ(format.start(true, "user\nWhat is <think>?\nassistant\n"), ReasoningStart::kClosed);
  EXPECT_EQ(format.start(true, "assistant\n<think>\nSo", "<think>\nSo"), ReasoningStart::kOpen);
  EXPECT_EQ(format.start(true, "assistant\n<think>a</think>b", "<think>a</think>b"), ReasoningStart::kOff);
  EXPECT_EQ(format.start(true, "assistant\nHello", "Hello"), ReasoningStart::kOff);
}

// --- Properties ---

// Pieces that make nearly right output likely.
std::string random_output(std::mt19937& random) {
  static const std::vector<std::string> kPieces = {
      "<tool_call>",
      "</tool_call>",
      "<think>",
      "</think>",
      "<|python_tag|>",
      "\n",
      " ",
      "{\"name\": \"f\", ",
      "\"arguments\": ",
      "\"parameters\": ",
      "{\"a\": \"b\"}",
      "{}",
      "}",
      "{",
      "\"",
      "\\",
      ",",
      ";",
      "<",
      "</",
      "<tool_",
      "text",
      "\u00e9\u20ac\U0001F600",
      "[1, 2]",
      ":",
      "{\"name\": \"g\", \"arguments\": {\"x\": [{\"y\": \"</tool_call>\"}]}}",
      "<tool_call>\n{\"name\": \"h\", \"arguments\": {\"k\": 1}}\n</tool_call>",
      "{\"name\": \"f\", \"parameters\": {\"z\": -1}}",
      "<function=f>\n",
      "<parameter=n>",
      "</parameter>\n",
      "</function>",
      "<tool_call>\n<function=f>\n<parameter=n>\n7\n</parameter>\n<parameter=b>\nx\n</parameter>\n",
      "[TOOL_CALLS]",
      "[TOOL_",
      "[ARGS]",
      "f",
      "[{\"name\": \"f\", \"arguments\": {\"k\": 1}}",
      "]",
      "[TOOL_CALLS]f[ARGS]{\"a\": 1}"};
  std::string text;
  const int pieces = std::uniform_int_distribution(1, 14)(random);
  for (int i = 0; i < pieces; ++i) {
    text += kPieces[std::uniform_int_distribution<size_t>(0, kPieces.size() - 1)(random)];
  }
  return text;
}

std::shared_ptr<const ToolTypes> f_types() {
  return std::make_shared<ToolTypes>(ToolTypes{{"f", {{"n", kJsonNumber}, {"b", kJsonString}}}});
}

const std::vector<OutputParser::Options>& all_options() {
  static const std::vector<OutputParser::Options> kAll = [] {
    std::vector<OutputParser::Options> all;
    for (const char* name : {"none", "hermes", "llama", "qwen3_coder", "mistral"}) {
      const auto format = answers_named(name);
      for (const auto reasoning : {ReasoningStart::kOff, ReasoningStart::kClosed, ReasoningStart::kOpen}) {
        all.push_back({format, reasoning, "call_", f_types()});
      }
    }
    return all;
  }();
  return kAll;
}

TEST(OutputParserProperty, AnySplitGivesTheSameMessage) {
  std::mt19937 random(7);
  int with_calls = 0, with_reasoning = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::string text = random_output(random);
    for (const OutputParser::Options& options : all_options()) {
      const Message whole = parse(options, text);
      with_calls += !whole.calls.empty();
      with_reasoning += !whole.reasoning.empty();
      OutputParser parser(options);
      Message pieces;
      const size_t longest = std::uniform_int_distribution<size_t>(1, 12)(random);
      for (size_t at = 0; at < text.size();) {
        const size_t size = std::uniform_int_distribution<size_t>(0, longest)(random);
        pieces.add(parser.push(std::string_view(text).substr(at, size)));
        at += size;
      }
      pieces.add(parser.finish());
      ASSERT_EQ(pieces, whole) << text;
    }
  }
  // The texts must reach the interesting paths.
  EXPECT_GT(with_calls, 1000);
  EXPECT_GT(with_reasoning, 1000);
}

std::map<char, int> letters(std::string_view text) {
  std::map<char, int> counts;
  for (const char c : text) counts[c] += 1;
  return counts;
}

// Without a call every character is content; with calls, no text between them is lost.
TEST(OutputParserProperty, NoCharacterIsLost) {
  std::mt19937 random(11);
  for (int round = 0; round < 8000; ++round) {
    const std::string text = random_output(random);
    const OutputParser::Options coder{answers_named("qwen3_coder"), ReasoningStart::kOff, "call_", f_types()};
    const OutputParser::Options mistral{answers_named("mistral"), ReasoningStart::kOff, "call_", f_types()};
    for (const OutputParser::Options& options : {hermes(), llama(), coder, mistral}) {
      const Message message = parse(options, text);
      if (message.calls.empty()) {
        ASSERT_EQ(message.content, text);
        continue;
      }
      // The form consumes markers, an object's own members and white space. All other characters must appear.
      std::string seen = message.content;
      for (const Call& call : message.calls) seen += call.name + call.arguments;
      std::map<char, int> before = letters(text), after = letters(seen);
      ASSERT_GE(after['\\'], before['\\']) << text;  // control characters are escaped
      for (const char c : {'x', 'k', 'z', 'b', '[', '\xE2', '\xF0'}) {
        if (c == '[' && options.format == mistral.format) continue;  // begins lists and markers
        ASSERT_EQ(before[c], after[c]) << c << " in " << text;
      }
    }
  }
}

}  // namespace
}  // namespace volley::serve

// Calls that break off, in every format and API: one call, whose arguments are a JSON object, then text.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "serve/api/openai_response.h"
#include "serve/formats/format_for_test.h"
#include "serve/formats/harmony.h"
#include "serve/messages/messages_writer.h"
#include "serve/responses/responses_writer.h"
#include "serve/testing/built_answers.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using Kind = OutputDelta::Kind;

constexpr std::array<TokenId, kHarmonyMarks> kMarkIds = {1, 2, 3, 4, 5, 6, 7};

struct Format {
  const char* name;
  const char* parser;
  std::string before, after;  // around the arguments of a call of f
  // Around a key and its value, where these are no JSON.
  std::string key = {}, value = {}, value_end = {};
  std::string quote = {};  // around the text s

  bool is_json() const { return key.empty(); }
  bool is_coder() const { return parser == std::string_view("qwen3_coder"); }
  bool is_harmony() const { return parser == std::string_view("harmony"); }
  std::string open(const std::string& name, const std::string& text) const {
    return key + name + value + (name == "s" ? quote : "") + text;
  }
  std::string parameter(const std::string& name, const std::string& text) const {
    return open(name, text) + (name == "s" ? quote : "") + value_end;
  }
};

const std::vector<Format>& formats() {
  static const std::vector<Format> kFormats = {
      {"Hermes", "hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": ", "}\n</tool_call>"},
      {"Llama", "llama", "{\"name\": \"f\", \"parameters\": ", "}"},
      {"Mistral's lists", "mistral", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": ", "}]"},
      {"Mistral's names", "mistral", "[TOOL_CALLS]f[ARGS]", ""},
      {"Harmony", "harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "<|call|>"},
      {"DeepSeek V3.1", "deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>",
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"DeepSeek V3", "deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n",
       "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"Kimi", "kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>",
       "<|tool_call_end|><|tool_calls_section_end|>"},
      {"GLM", "glm45", "<tool_call>f\n", "</tool_call>", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"},
      {"MiniMax", "minimax_m2", "<minimax:tool_call>\n<invoke name=\"f\">\n", "</invoke>\n</minimax:tool_call>",
       "<parameter name=\"", "\">", "</parameter>\n"},
      {"LFM2", "lfm2", "<|tool_call_start|>[f(", ")]<|tool_call_end|>", " ", "=", ",", "'"},
      {"Coder", "qwen3_coder", "<tool_call>\n<function=f>\n", "</function>\n</tool_call>", "<parameter=", ">\n",
       "\n</parameter>\n"},
  };
  return kFormats;
}

std::string good_arguments(const Format& format) {
  return format.is_json() ? R"({"q": 1, "s": "a\"b", "l": ["x"]})"
                          : format.parameter("q", "1") + format.parameter("s", "a\"b") + format.parameter("l", "['x']");
}
const json kGood = {{"q", 1}, {"s", "a\"b"}, {"l", {"x"}}};

OutputParser::Options options_of(const Format& format, ReasoningStart reasoning = ReasoningStart::kOff) {
  OutputParser::Options options;
  if (format.is_harmony()) {
    options.format = harmony_answers(HarmonyTokens(kMarkIds), true);
  } else {
    options.format = answers_named(format.parser);
  }
  options.reasoning = reasoning;
  options.types = std::make_shared<ToolTypes>(
      ToolTypes{{"f", {{"q", kJsonNumber}, {"s", kJsonString}, {"l", kJsonArray}}}, {"g", {}}});
  return options;
}

// Splits the text into events of `size` bytes. For Harmony, spelt control tokens become marks.
std::vector<Event> events_of(const Format& format, std::string_view text, size_t size, TextEnd end) {
  std::vector<Event> events;
  const auto next = [&]() -> Event& {
    if (events.empty() || events.back().text.size() >= size) events.emplace_back();
    return events.back();
  };
  while (!text.empty()) {
    size_t mark = format.is_harmony() ? 0 : kHarmonyMarks;
    while (mark < kHarmonyMarks && !text.starts_with(HarmonyTokens::texts()[mark])) ++mark;
    if (mark < kHarmonyMarks) {
      Event& event = next();
      event.marks.push_back({kMarkIds[mark], event.text.size()});
      text.remove_prefix(HarmonyTokens::texts()[mark].size());
    } else {
      // Events hold whole characters.
      size_t bytes = 1;
      while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) ++bytes;
      next().text += text.substr(0, bytes);
      text.remove_prefix(bytes);
    }
  }
  events.emplace_back().finish = Finish{};
  if (end == TextEnd::kCut) events.back().finish->reason = FinishReason::kLength;
  return events;
}

using Pieces = std::vector<OutputDelta::Piece>;

Pieces parse(const Format& format, const OutputParser::Options& options, std::string_view text, size_t size,
             TextEnd end) {
  OutputParser parser(options);
  OutputDelta all;
  for (const Event& event : events_of(format, text, size, end)) {
    all.add(parser.push(event.text, event.marks));
    if (event.finish) all.add(parser.finish(end));
  }
  return all.pieces;
}

std::string shown(const Pieces& pieces) {
  std::string text;
  for (const auto& piece : pieces) {
    text += piece.kind == Kind::kCall        ? "[" + piece.id + " " + piece.name + " " + piece.text + "]"
            : piece.kind == Kind::kReasoning ? "(" + piece.text + ")"
                                             : piece.text;
  }
  return text;
}

// Checks any output: each call is one piece with id and name, its arguments are an object, and no cut changes a result.
Pieces checked(const Format& format, const std::string& text, TextEnd end = TextEnd::kModel,
               ReasoningStart reasoning = ReasoningStart::kOff) {
  const OutputParser::Options options = options_of(format, reasoning);
  const Pieces whole = parse(format, options, text, text.size() + 1, end);
  int calls = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i].kind != Kind::kCall) continue;
    EXPECT_EQ(whole[i].call, calls++) << text;
    EXPECT_FALSE(whole[i].id.empty() || whole[i].name.empty()) << text << "\n" << shown(whole);
    const bool may_be_open = end == TextEnd::kCut && i + 1 == whole.size();
    EXPECT_TRUE(may_be_open || json::parse(whole[i].text, nullptr, false).is_object()) << text << "\n" << shown(whole);
  }
  for (const size_t size : {1u, 3u}) EXPECT_EQ(shown(parse(format, options, text, size, end)), shown(whole)) << text;
  return whole;
}

json arguments_of(const Pieces& pieces) {
  for (const auto& piece : pieces) {
    if (piece.kind == Kind::kCall) return json::parse(piece.text, nullptr, false);
  }
  return nullptr;
}

std::string content_of(const Pieces& pieces) {
  return OutputDelta{pieces}.content();
}

TEST(BrokenCalls, WholeCallsStayAsTheyAre) {
  for (const Format& format : formats()) {
    const Pieces pieces = checked(format, format.before + good_arguments(format) + format.after);
    ASSERT_EQ(pieces.size(), 1u) << format.name << shown(pieces);
    EXPECT_EQ(arguments_of(pieces), kGood) << format.name;
  }
}

TEST(BrokenCalls, TextWhereAParameterShouldBe) {
  const Format& coder = formats().back();
  const std::string head = "<tool_call>\n<function=f>\n", tail = "\n</function>\n</tool_call>";
  const std::tuple<std::string, json, std::string> cases[] = {
      {"{\"q\": 1}", json::object(), "\n{\"q\": 1}" + tail},
      {"<parameter=q>\n1\n</parameter>\ntext", {{"q", 1}}, "\ntext" + tail},
      {"<parameter=q>\n1\n</parameter>text", {{"q", 1}}, "text" + tail},
      {"<parameter=q>\n1\n</parameter>\n<q>2</q>", {{"q", 1}}, "\n<q>2</q>" + tail},
      {"<parameter=q>\n1\n</parameter>\n<parameter=\n", {{"q", 1}}, "\n<parameter=\n" + tail},
      {"<parameter=s>\n<parameter=x>", {{"s", "<parameter=x>"}}, ""},
  };
  for (const auto& [body, arguments, content] : cases) {
    const Pieces pieces = checked(coder, head + body + tail);
    ASSERT_FALSE(pieces.empty());
    EXPECT_EQ(pieces.front().name, "f");
    EXPECT_EQ(arguments_of(pieces), arguments) << body;
    EXPECT_EQ(content_of(pieces), content) << body;
    // The next call is separate.
    const Pieces two = checked(coder, head + body + tail + "\n" + coder.before + good_arguments(coder) + coder.after);
    EXPECT_EQ(two.back().kind, Kind::kCall);
    EXPECT_EQ(two.back().call, 1);
    EXPECT_EQ(json::parse(two.back().text), kGood);
  }
}

TEST(BrokenCalls, ArgumentsThatAreNoJson) {
  for (const Format& format : formats()) {
    if (!format.is_json()) continue;
    for (const auto& [written, read] : {
             std::pair<std::string, json>{"{\"q\": 1]", {{"q", 1}}},
             {"{\"q\": [1, {\"s\": \"a\"}", {{"q", {1, {{"s", "a"}}}}}},
             {"{\"q\": True}", {{"INVALID_JSON", "{\"q\": True}"}}},
             {"{\"q\": 1, \"s\": nope}", {{"q", 1}, {"INVALID_JSON", ", \"s\": nope}"}}},
             {"{\"q\": 1,}", {{"q", 1}}},
         }) {
      const bool ends = written.ends_with('}') && !written.ends_with("\"}");
      const Pieces pieces = checked(format, format.before + written + (ends ? format.after : ""));
      ASSERT_FALSE(pieces.empty()) << format.name;
      const json arguments = arguments_of(pieces);
      // Without brackets that end them, the arguments are the whole message.
      if (format.is_harmony() && written.ends_with(']')) {
        EXPECT_EQ(arguments, json({{"q", 1}, {"INVALID_JSON", "]"}}));
      } else {
        EXPECT_EQ(arguments, read) << format.name << ": " << written;
      }
    }
  }
}

TEST(BrokenCalls, NoArgumentsAreAnEmptyObject) {
  for (const Format& format : formats()) {
    const bool named = format.before.ends_with("[ARGS]") || format.before.find("functions.f") != std::string::npos ||
                       format.parser == std::string_view("deepseek_v3");
    for (const char* written : {"null", "\"\"", "{}", ""}) {
      if (format.is_json() == (*written == 0) || (named && *written != '{')) continue;
      if (format.is_harmony() && *written == '"') continue;
      const Pieces pieces = checked(format, format.before + written + format.after);
      ASSERT_EQ(pieces.size(), 1u) << format.name << written;
      EXPECT_EQ(arguments_of(pieces), json::object()) << format.name << written;
    }
  }
}

// Breaks the call off at every place, with each possible continuation.
TEST(BrokenCalls, BrokenOffAtEveryByte) {
  for (const Format& format : formats()) {
    const std::string call = format.before + good_arguments(format) + format.after;
    const std::string next = format.is_harmony() ? "<|start|>assistant" : "";
    for (size_t at = 0; at <= call.size(); ++at) {
      const std::string begun = call.substr(0, at);
      for (const std::string& behind : {std::string(), std::string(" and so on."), next + call, "</tool_call>\n" + call,
                                        std::string("\n</function>\n</tool_call>"), std::string("<tool_call>"),
                                        std::string("{]}"), std::string("<|end|>x"), std::string("\\")}) {
        for (const TextEnd end : {TextEnd::kModel, TextEnd::kCut}) checked(format, begun + behind, end);
        for (const ReasoningStart start : {ReasoningStart::kOpen, ReasoningStart::kClosed}) {
          checked(format, begun + behind, TextEnd::kModel, start);
          checked(format, "<think>hm " + begun + behind + "</think>" + call, TextEnd::kModel, start);
        }
      }
    }
  }
}

TEST(BrokenCalls, AnyByteChanged) {
  for (const Format& format : formats()) {
    const std::string call = format.before + good_arguments(format) + format.after;
    for (size_t at = 0; at < call.size(); ++at) {
      for (const char c : std::string("<>{}[]\"\\,:/='x \n")) {
        std::string text = call + call;
        text[at] = c;
        checked(format, text);
        checked(format, call.substr(0, at) + c + call.substr(at) + " Bye.");
      }
      checked(format, call.substr(0, at) + call.substr(at + 1));
    }
  }
}

// A limit or a stop within the arguments leaves them open, so that no client takes half of a file for all of it.
TEST(BrokenCalls, WhatIsCutIsNotClosed) {
  for (const Format& format : formats()) {
    const std::string text = format.before + (format.is_json() ? "{\"s\": \"half of" : format.open("s", "half of"));
    EXPECT_EQ(checked(format, text, TextEnd::kCut).back().text, "{\"s\": \"half of") << format.name;
    EXPECT_EQ(checked(format, text, TextEnd::kModel).back().text, "{\"s\": \"half of\"}") << format.name;
  }
}

// --- What clients are told ---

ResponseInfo info_of(const Format& format) {
  ResponseInfo info;
  info.id = "chatcmpl-1";
  info.model = "m";
  info.prompts.emplace_back();
  info.parser = options_of(format);
  info.token_text = [](TokenId) { return std::string(); };
  info.decode = [](std::span<const TokenId>, bool) { return std::string(); };
  return info;
}

std::string written_by(ResponseWriter& writer, const std::vector<Event>& events) {
  std::string out;
  for (const Event& event : events) out += writer.add(0, event);
  return out + writer.end();
}

ResponseObject response_object() {
  ResponseObject object;
  object.id_suffix = "1";
  object.echo = R"("store":false)";
  return object;
}

TEST(BrokenCalls, ClientsOfEveryApiGetTheSameWholeAndStreamed) {
  for (const Format& format : formats()) {
    const bool json_form = format.is_json();
    const std::string call = format.before + good_arguments(format) + format.after;
    const std::string next = format.is_harmony() ? "<|start|>assistant" + call : "\n" + call;
    std::vector<std::string> texts = {
        format.before + (json_form ? "{\"q\": 1]" : "{\"q\": 1}\n") + format.after + " text",
        format.before + (json_form ? "{\"q\": 1, \"s\": nope}" : format.parameter("q", "1") + "text") + format.after,
        format.before + (json_form ? "{\"q\": True}}" : format.open("q", "True")) + format.after + next,
        format.before + (json_form ? "{\"s\": \"a" : format.open("s", "a")),
        "Well. " + format.before + (json_form ? "{\"s\": " : format.key),
    };
    for (const std::string& text : texts) {
      SCOPED_TRACE(std::string(format.name) + ": " + text);
      for (const TextEnd end : {TextEnd::kModel, TextEnd::kCut}) {
        json chat, messages, responses;
        for (const size_t size : {size_t{1}, size_t{4}, size_t{1000}}) {
          const auto events = events_of(format, text, size, end);
          const json streamed = built_chat(written_by(*stream_response_writer(info_of(format), 1), events));
          EXPECT_EQ(streamed, whole_chat(json::parse(written_by(*whole_response_writer(info_of(format), 1), events))));
          EXPECT_TRUE(chat.is_null() || streamed == chat) << streamed << chat;
          chat = streamed;
          const json items =
              built_response(written_by(*responses_writer(info_of(format), response_object(), true), events));
          const json whole_items =
              json::parse(written_by(*responses_writer(info_of(format), response_object(), false), events));
          EXPECT_EQ(items, whole_items.at("output"));
          EXPECT_TRUE(responses.is_null() || items == responses) << items << responses;
          responses = items;
          if (end == TextEnd::kCut) continue;  // a whole answer shows open arguments as an empty input
          const json blocks = built_message(written_by(*messages_writer(info_of(format), true, false), events));
          EXPECT_EQ(blocks,
                    json::parse(written_by(*messages_writer(info_of(format), false, false), events)).at("content"));
          EXPECT_TRUE(messages.is_null() || blocks == messages) << blocks << messages;
          messages = blocks;
        }
        for (const json& c : chat.at("calls")) {
          EXPECT_EQ(c.at("function").at("name"), "f");
          const std::string arguments = c.at("function").at("arguments");
          EXPECT_TRUE(end == TextEnd::kCut || json::parse(arguments).is_object()) << arguments;
        }
      }
    }
  }
}

// A client that takes numbers for doubles reads infinity, one that keeps their text has them as they were written.
TEST(BrokenCalls, NumbersThatNoDoubleHoldsStayAsTheyAre) {
  const std::string long_one(400, '7');
  for (const Format& format : formats()) {
    for (const std::string& number : {std::string("1195858088e1678"), std::string("-1E+999"), std::string("1e-99999"),
                                      "0." + long_one + "e999", "-" + long_one}) {
      const std::string expected = R"({"q": )" + number + R"(, "l": [)" + number + "]}";
      const std::string written =
          format.is_json() ? expected : format.parameter("q", number) + format.parameter("l", "[" + number + "]");
      SCOPED_TRACE(std::string(format.name) + ": " + number);
      for (const size_t size : {size_t{1}, size_t{1000}}) {
        const auto events = events_of(format, format.before + written + format.after, size, TextEnd::kModel);
        const json chat = built_chat(written_by(*stream_response_writer(info_of(format), 1), events));
        ASSERT_EQ(chat.at("calls").size(), 1u);
        EXPECT_EQ(chat.at("calls")[0].at("function").at("arguments"), expected);
        EXPECT_EQ(chat, whole_chat(json::parse(written_by(*whole_response_writer(info_of(format), 1), events))));
        for (const bool streamed : {true, false}) {
          const std::string answer =
              written_by(*responses_writer(info_of(format), response_object(), streamed), events);
          const json items = streamed ? built_response(answer) : json::parse(answer).at("output");
          EXPECT_EQ(items.at(0).at("arguments"), expected);
        }
        std::string input;
        for (const json& event : stream_data(written_by(*messages_writer(info_of(format), true, false), events))) {
          input += event.value("delta", json::object()).value("partial_json", "");
        }
        EXPECT_EQ(input, expected);
        const std::string whole = written_by(*messages_writer(info_of(format), false, false), events);
        EXPECT_NE(whole.find(R"("input":)" + expected + "}"), std::string::npos) << whole;
      }
    }
  }
}

// The text behind a call is what the limit cut, and the call is what the model wrote.
TEST(BrokenCalls, ALimitInTheTextBehindACallLeavesItsArguments) {
  for (const Format& format : formats()) {
    const std::string text =
        format.before + (format.is_json() ? "{\"q\": True}" : format.parameter("q", "True")) +
        (format.is_harmony() ? "<|call|><|start|>assistant<|channel|>final<|message|>" : format.after) + " and then";
    const auto events = events_of(format, text, 5, TextEnd::kCut);
    const json message = json::parse(written_by(*messages_writer(info_of(format), false, false), events));
    EXPECT_EQ(message.at("stop_reason"), "max_tokens");
    EXPECT_EQ(message.at("content")[0].at("input"),
              format.is_json() ? json({{"INVALID_JSON", "{\"q\": True}"}}) : json({{"q", true}}))
        << format.name;
    EXPECT_EQ(message.at("content")[1].at("text"), " and then") << format.name;
  }
}

}  // namespace
}  // namespace volley::serve

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "serve/formats/call_ids.h"
#include "serve/formats/output_parser_for_test.h"

namespace volley::serve {
namespace {

OutputParser::Options mistral() {
  static const auto kTools = std::make_shared<ToolTypes>(ToolTypes{{"weather", {}}, {"time", {}}});
  return {answers_named("mistral"), ReasoningStart::kOff, "call_", kTools};
}

const Call kWeatherCall{"weather", "{\"city\": \"K\u00f6ln [{]}\"}"};
const Call kTimeCall{"time", "{}"};
const std::string kWeatherObject = "{\"name\": \"weather\", \"arguments\": " + kWeatherCall.arguments + "}";
const std::string kTimeObject = "{\"name\": \"time\", \"arguments\": {}}";

TEST(MistralCalls, Lists) {
  const std::string both = "[" + kWeatherObject + ", " + kTimeObject + "]";
  for (const std::string& text :
       {"[TOOL_CALLS] " + both, "[TOOL_CALLS]" + both + "\n", both, " " + both, "\n[TOOL_CALLS]\n" + both,
        "[TOOL_CALLS][ " + kWeatherObject + " ,\n" + R"({"arguments": {}, "name": "time", "id": "abcdef123"}])"}) {
    EXPECT_EQ(parse(mistral(), text), (Message{"", "", {kWeatherCall, kTimeCall}})) << text;
    expect_same_however_cut(mistral(), text);
  }
}

TEST(MistralCalls, Named) {
  const std::string& city = kWeatherCall.arguments;
  for (const std::string& text :
       {"[TOOL_CALLS]weather[ARGS]" + city + "[TOOL_CALLS]time[ARGS]{}",
        "[TOOL_CALLS]weather[CALL_ID]abcdef123[ARGS]" + city + "[TOOL_CALLS]time[CALL_ID]abcdef124[ARGS]{}",
        "[TOOL_CALLS]weather" + city + "\n[TOOL_CALLS]time {}", "weather" + city + "time{}",
        "weatherabcdef123" + city + "timeabcdef124{}\n", "\nweather[ARGS]" + city + "[TOOL_CALLS]time[ARGS] {}"}) {
    EXPECT_EQ(parse(mistral(), text), (Message{"", "", {kWeatherCall, kTimeCall}})) << text;
    expect_same_however_cut(mistral(), text);
  }
}

// As in other forms, a name behind a marker need not be known.
TEST(MistralCalls, ControlCharactersInStringsAreEscaped) {
  EXPECT_EQ(parse(mistral(), "[TOOL_CALLS]f{\"x\": \"a\nb\"}").calls, (std::vector<Call>{{"f", "{\"x\": \"a\\nb\"}"}}));
}

TEST(MistralCalls, MarkedNamesNeedNotBeKnown) {
  EXPECT_EQ(parse(mistral(), "[TOOL_CALLS]other[ARGS]{}"), (Message{"", "", {{"other", "{}"}}}));
  EXPECT_EQ(parse({answers_named("mistral"), ReasoningStart::kOff, "call_", nullptr}, "[TOOL_CALLS]other[ARGS]{}"),
            (Message{"", "", {{"other", "{}"}}}));
}

TEST(MistralCalls, TheTextAroundThem) {
  EXPECT_EQ(parse(mistral(), "Let me see.\n[TOOL_CALLS]time[ARGS]{}\nBye."),
            (Message{"Let me see.\nBye.", "", {kTimeCall}}));
  EXPECT_EQ(parse(mistral(), "A[1] [TOOL_CALLS] [" + kTimeObject + "]"), (Message{"A[1]", "", {kTimeCall}}));
}

TEST(MistralCalls, AreStreamed) {
  OutputParser parser(mistral());
  EXPECT_EQ(parser.push("Sure: [TOOL").content(), "Sure:");
  EXPECT_TRUE(parser.push("_CALLS]weather[ARGS]").empty());
  EXPECT_EQ(only_call(parser.push("{\"ci")), short_call_id("call_0") + " weather(") << "names go out with their values";
  EXPECT_EQ(parser.push("ty\": \"K").tool_calls()[0].arguments, "{\"city\": \"K");
  EXPECT_EQ(parser.push("\"}").tool_calls()[0].arguments, "\"}");
  EXPECT_TRUE(parser.finish().empty());

  OutputParser text(mistral());
  EXPECT_TRUE(text.push("we").empty()) << "a tool's name may follow";
  EXPECT_EQ(text.push("ll, ").content(), "well,");
  EXPECT_EQ(text.push("it").content(), " it");
}

TEST(MistralCalls, WhatIsNoCallIsContent) {
  for (const char* text : {"[TOOL_CALLS]",
                           "[TOOL_CALLS] []",
                           "[TOOL_CALLS] [1]",
                           "[TOOL_CALLS]weather[ARGS]",
                           "[TOOL_CALLS]\n[ARGS]{}",
                           "[TOOL_CALLS]weather[ARGS]7",
                           "[TOOL_CALLS]weather[CALL_ID]a-b[ARGS]{}",
                           "[TOOL_CALLS][{\"name\": \"f\", ",
                           "[{\"name\": \"Ada\", \"age\": 36}]",
                           "[{\"name\": \"Ada\"}]",
                           "[1, 2]",
                           "[",
                           "other{}",
                           "weather",
                           "weather is",
                           "weather()",
                           "time: 12",
                           "weatherabcdef12{}",
                           "It is time{}",
                           "[TOOL_CALLS]a\nb[ARGS]{}",
                           " \n"}) {
    EXPECT_EQ(parse(mistral(), text), (Message{text, "", {}}));
    expect_same_however_cut(mistral(), text);
  }
  EXPECT_EQ(parse(mistral(), "[TOOL_CALLS]oops\n[TOOL_CALLS]time[ARGS]{}"),
            (Message{"[TOOL_CALLS]oops", "", {kTimeCall}}));
  EXPECT_EQ(parse(mistral(), "[TOOL_CALLS]" + std::string(2000, 'a') + "{}").calls.size(), 0u);
}

TEST(MistralCalls, BrokenAndCutOff) {
  for (const std::string& text : {"[TOOL_CALLS] [" + kTimeObject, "[" + kTimeObject + " ", std::string("time{}"),
                                  std::string("[TOOL_CALLS] [{\"name\": \"time\", \"arguments\": {}")}) {
    EXPECT_EQ(parse(mistral(), text), (Message{"", "", {kTimeCall}})) << text;
  }
  EXPECT_EQ(parse(mistral(), "[TOOL_CALLS] [" + kTimeObject + ", 7]"), (Message{", 7]", "", {kTimeCall}}));
  EXPECT_EQ(parse(mistral(), "[" + kTimeObject + ", "), (Message{", ", "", {kTimeCall}}));
  EXPECT_EQ(parse(mistral(), "[" + kTimeObject + " Bye."), (Message{" Bye.", "", {kTimeCall}}));
  EXPECT_EQ(parse(mistral(), "[TOOL_CALLS]f[ARGS]{\"a\": \"b").calls, (std::vector<Call>{{"f", "{\"a\": \"b\"}"}}));
  EXPECT_EQ(parse(mistral(), "[TOOL_CALLS]f[ARGS]{\"a\": 1]x"), (Message{"]x", "", {{"f", "{\"a\": 1}"}}}));
}

// The templates refuse a history with other ids.
TEST(MistralCalls, IdsAreNineLettersAndDigits) {
  std::set<std::string> ids;
  for (int i = 0; i < 2000; ++i) {
    const std::string id = short_call_id("call_5f_0_" + std::to_string(i));
    EXPECT_EQ(id.size(), 9u);
    EXPECT_EQ(id.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
              std::string::npos);
    EXPECT_EQ(short_call_id(id), id);
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 2000u);
  for (const char* other : {"", "abcdefgh", "abcdefgh-", "abcdefg\u00e9", "0123456789"}) {
    EXPECT_EQ(short_call_id(other).size(), 9u);
    EXPECT_NE(short_call_id(other), other);
  }
}

TEST(MistralCalls, AHistoryGetsShortIds) {
  const std::string a = short_call_id("toolu_a");
  std::vector<ChatMessage> messages(3);
  messages[0] = {"user", "id"};
  messages[1] = {"assistant", {}};
  messages[1].calls = {R"({"id": "toolu_a", "n": 1.50})", R"({"id": "abcdef123"})", R"({"id": 7})", "8"};
  messages[2] = {"tool", "x"};
  messages[2].call_id = "toolu_a";
  shorten_call_ids(messages);
  EXPECT_EQ(messages_json(messages),
            R"([{"role":"user","content":"id"},{"role":"assistant","content":null,"tool_calls":[{"id":")" + a +
                R"(","n":1.50},{"id":"abcdef123"},{"id":7},8]},{"role":"tool","content":"x","tool_call_id":")" + a +
                R"("}])");
}

}  // namespace
}  // namespace volley::serve

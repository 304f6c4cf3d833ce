// Tool calls inside a thought that the model never closes.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "serve/formats/output_parser_for_test.h"

namespace volley::serve {
namespace {

OutputParser::Options hermes(ReasoningStart reasoning) {
  return {answers_named("hermes"), reasoning, "call_"};
}

const std::string kWeatherThought =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"K\u00f6ln\"}}\n</tool_call>";
const std::string kTimeThought = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";

// Some models call in the middle of a thought and stop there. Agents wait for that call.
TEST(CallsInThoughts, AtTheEndAreCalls) {
  const std::string two = kWeatherThought + "\n" + kTimeThought;
  const std::string coder_call =
      "<tool_call>\n<function=f>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>\n";
  const std::vector<Call> calls = {{"weather", "{\"city\": \"K\u00f6ln\"}"}, {"time", "{}"}};
  const OutputParser::Options coder{answers_named("qwen3_coder"), ReasoningStart::kOpen, "call_",
                                    std::make_shared<ToolTypes>(ToolTypes{{"f", {{"n", kJsonNumber}}}})};
  for (const auto& [options, text, expected] : {
           std::tuple(hermes(ReasoningStart::kOpen), "Hm.\n\n" + two + "\n", Message{"", "Hm.", calls}),
           std::tuple(hermes(ReasoningStart::kClosed), "<think>\n" + two, Message{"", "", calls}),
           std::tuple(hermes(ReasoningStart::kOpen), "<tool_call> begins it. <tool_call>{" + two,
                      Message{"", "<tool_call> begins it. <tool_call>{", calls}),
           std::tuple(hermes(ReasoningStart::kOpen), "Maybe " + kTimeThought + "? No. " + kWeatherThought,
                      Message{"", "Maybe " + kTimeThought + "? No.", {calls[0]}}),
           std::tuple(coder, "Hm.\n" + coder_call, Message{"", "Hm.", {{"f", "{\"n\": 7}"}}}),
       }) {
    EXPECT_EQ(parse(options, text), expected) << text;
    expect_same_however_cut(options, text);
  }
}

TEST(CallsInThoughts, ElsewhereAreThoughts) {
  for (const std::string& text : std::vector<std::string>{
           "Maybe " + kTimeThought + "?",                                 // it goes on
           "Maybe <tool_call>\n{\"name\": \"time\", \"arguments\": {}}",  // cut off
           "Maybe <tool_call>\n{\"name\": \"time\"}",
           "Maybe <tool_call>\n</tool_call>",
           "Maybe " + kTimeThought + "</thi",
       }) {
    EXPECT_EQ(parse(hermes(ReasoningStart::kOpen), text), (Message{"", text, {}}));
    expect_same_however_cut(hermes(ReasoningStart::kOpen), text);
  }
  const OutputParser::Options no_tools{answers_named("none"), ReasoningStart::kOpen, "call_"};
  EXPECT_EQ(parse(no_tools, kTimeThought), (Message{"", kTimeThought, {}})) << "the request has no tools";
  const std::string closed = "Maybe " + kTimeThought + "\n</think>\nYes.";
  EXPECT_EQ(parse(hermes(ReasoningStart::kOpen), closed), (Message{"Yes.", "Maybe " + kTimeThought, {}}));
  expect_same_however_cut(hermes(ReasoningStart::kOpen), closed);
}

TEST(CallsInThoughts, WhatProvesToBeNoCallIsStreamedOn) {
  OutputParser parser(hermes(ReasoningStart::kOpen));
  EXPECT_EQ(parser.push("A <tool_call>").reasoning(), "A");
  EXPECT_EQ(parser.push(" mark").reasoning(), " <tool_call> mark");
  EXPECT_EQ(parser.push(" " + kTimeThought).reasoning(), "");
  EXPECT_EQ(parser.push(" is one").reasoning(), " " + kTimeThought + " is one");
}

}  // namespace
}  // namespace volley::serve

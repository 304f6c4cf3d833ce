// Joins an OutputParser's deltas as a client does, for tests of formats.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "serve/formats/format_for_test.h"

namespace volley::serve {

struct Call {
  std::string name, arguments, id = {};
  bool operator==(const Call& other) const { return name == other.name && arguments == other.arguments; }
};

inline void PrintTo(const Call& call, std::ostream* out) {
  *out << call.name << "(" << call.arguments << ")";
}

// All deltas put together.
struct Message {
  std::string content, reasoning;
  std::vector<Call> calls;

  bool operator==(const Message&) const = default;

  void add(const OutputDelta& delta) {
    content += delta.content();
    reasoning += delta.reasoning();
    for (const OutputDelta::ToolCall& call : delta.tool_calls()) {
      const auto index = static_cast<size_t>(call.index);
      if (!call.id.empty()) {
        ASSERT_EQ(index, calls.size()) << "a call must be announced once, in order";
        calls.push_back({call.name, "", call.id});
      } else {
        ASSERT_TRUE(call.name.empty());
        ASSERT_FALSE(call.arguments.empty()) << "an empty delta";
        ASSERT_EQ(index + 1, calls.size()) << "arguments of a call that is not the last one";
      }
      calls[index].arguments += call.arguments;
    }
  }
};

inline void PrintTo(const Message& message, std::ostream* out) {
  *out << "content: " << testing::PrintToString(message.content)
       << ", reasoning: " << testing::PrintToString(message.reasoning)
       << ", calls: " << testing::PrintToString(message.calls);
}

// "ID NAME(ARGUMENTS" of the delta's one call.
inline std::string only_call(const OutputDelta& delta) {
  const std::vector<OutputDelta::ToolCall> calls = delta.tool_calls();
  EXPECT_EQ(calls.size(), 1u);
  return calls.empty() ? "" : calls[0].id + " " + calls[0].name + "(" + calls[0].arguments;
}

inline Message parse(const OutputParser::Options& options, std::string_view text, TextEnd end = TextEnd::kModel) {
  OutputParser parser(options);
  Message message;
  message.add(parser.push(text));
  message.add(parser.finish(end));
  EXPECT_EQ(parser.calls(), static_cast<int>(message.calls.size()));
  return message;
}

// Cuts the text at every place into two pieces, and into bytes.
inline void expect_same_however_cut(const OutputParser::Options& options, std::string_view text) {
  const Message whole = parse(options, text);
  for (size_t at = 0; at <= text.size(); ++at) {
    OutputParser parser(options);
    Message message;
    for (const std::string_view piece : {text.substr(0, at), text.substr(at)}) message.add(parser.push(piece));
    message.add(parser.finish());
    EXPECT_EQ(message, whole) << "cut at " << at << ": " << text;
  }
  OutputParser parser(options);
  Message message;
  for (const char& c : text) message.add(parser.push({&c, 1}));
  message.add(parser.finish());
  EXPECT_EQ(message, whole) << "byte by byte: " << text;
}

}  // namespace volley::serve

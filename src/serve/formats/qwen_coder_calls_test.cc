#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/formats/output_parser_for_test.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

OutputParser::Options coder() {
  static const auto kTypes = std::make_shared<ToolTypes>(ToolTypes{{"write",
                                                                    {{"path", kJsonString},
                                                                     {"lines", kJsonNumber},
                                                                     {"force", kJsonBoolean},
                                                                     {"tags", kJsonArray},
                                                                     {"owner", kJsonString | kJsonNull}}}});
  return {answers_named("qwen3_coder"), ReasoningStart::kOff, "call_", kTypes};
}

std::string parameter(const std::string& key, const std::string& value) {
  return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
}
std::string call(const std::string& name, const std::string& parameters) {
  return "<tool_call>\n<function=" + name + ">\n" + parameters + "</function>\n</tool_call>";
}

const std::string kCoderTime = call("time", "");

TEST(QwenCoderCalls, ValuesHaveTheTypesOfTheSchema) {
  const std::string text = call("write", parameter("path", "a \"b\"\\\n\tc") + parameter("lines", "7") +
                                             parameter("force", "True") + parameter("tags", "[\"x\", {\"y\": 1.0}]") +
                                             parameter("owner", "null") + parameter("other", "5"));
  const std::string arguments =
      R"({"path": "a \"b\"\\\n\tc", "lines": 7, "force": true, "tags": ["x", {"y": 1.0}], "owner": null, "other": "5"})";
  EXPECT_EQ(parse(coder(), text), (Message{"", "", {{"write", arguments}}}));
  expect_same_however_cut(coder(), text);
}

TEST(QwenCoderCalls, ValuesThatDoNotFitAreStrings) {
  EXPECT_EQ(parse(coder(), call("write", parameter("lines", "many") + parameter("owner", "12"))).calls,
            (std::vector<Call>{{"write", R"({"lines": "many", "owner": "12"})"}}));
}

// Code keeps indentation and blank lines; only the form's own line breaks are dropped.
TEST(QwenCoderCalls, TextKeepsItsWhiteSpace) {
  EXPECT_EQ(parse(coder(), call("write", parameter("path", "\n  a\n\n"))).calls,
            (std::vector<Call>{{"write", R"({"path": "\n  a\n\n"})"}}));
  EXPECT_EQ(parse(coder(), call("write", "<parameter=path>a </parameter><parameter=owner></parameter>")).calls,
            (std::vector<Call>{{"write", R"({"path": "a ", "owner": ""})"}}));
  EXPECT_EQ(parse(coder(), call("write", parameter("path", "</div>\n</para>\n<parameter=x>"))).calls,
            (std::vector<Call>{{"write", R"({"path": "</div>\n</para>\n<parameter=x>"})"}}));
}

TEST(QwenCoderCalls, SeveralCallsAndTheTextAroundThem) {
  const std::string text =
      "Let me see.\n\n" + call("write", parameter("path", "K\u00f6ln")) + "\n" + kCoderTime + "\nBye.";
  EXPECT_EQ(parse(coder(), text),
            (Message{"Let me see.\nBye.", "", {{"write", "{\"path\": \"K\u00f6ln\"}"}, {"time", "{}"}}}));
  expect_same_however_cut(coder(), text);
}

TEST(QwenCoderCalls, AreStreamed) {
  OutputParser parser(coder());
  EXPECT_EQ(parser.push("Sure: <tool").content(), "Sure:");
  EXPECT_TRUE(parser.push("_call>\n<function=write").empty());
  EXPECT_EQ(only_call(parser.push(">\n<parameter=path>\nab\n")), "call_0 write({\"path\": \"ab");
  EXPECT_EQ(parser.push("cd</").tool_calls()[0].arguments, "\\ncd");
  EXPECT_EQ(parser.push("parameter>\n<parameter=lines>\n1").tool_calls()[0].arguments, "\"");
  EXPECT_TRUE(parser.push("2\n").empty());
  EXPECT_EQ(parser.push("</parameter>\n</function>\n").tool_calls()[0].arguments, ", \"lines\": 12}");
  EXPECT_TRUE(parser.push("</tool_call>").empty());
  EXPECT_TRUE(parser.finish().empty());
}

TEST(QwenCoderCalls, WhatIsNoCallIsContent) {
  for (const char* text : {"<tool_call>", "<tool_call></tool_call>", "<tool_call>\n<function=", "<tool_call>\n<func",
                           "<tool_call>\n<function=>\n</function>", "<tool_call>\n<function=f\n>", "<function=f>\n",
                           "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "<tool_call>\nf()", " \n"}) {
    EXPECT_EQ(parse(coder(), text), (Message{text, "", {}}));
    expect_same_however_cut(coder(), text);
  }
  EXPECT_EQ(parse(coder(), "<tool_call>oops " + kCoderTime), (Message{"<tool_call>oops", "", {{"time", "{}"}}}));
}

// Some models leave out <tool_call>, for known tools.
TEST(QwenCoderCalls, WithoutTheFirstMarker) {
  const std::string bare = "<function=write>\n" + parameter("path", "*.md") + "</function>\n</tool_call>";
  EXPECT_EQ(parse(coder(), "I'll look.\n\n" + bare), (Message{"I'll look.", "", {{"write", R"({"path": "*.md"})"}}}));
  EXPECT_EQ(parse(coder(), bare + "\n" + bare + " Bye"),
            (Message{" Bye", "", {{"write", R"({"path": "*.md"})"}, {"write", R"({"path": "*.md"})"}}}));
  const std::string other = "See <function=other>\n" + parameter("path", "x") + "</function>, <f and <function=write";
  EXPECT_EQ(parse(coder(), other), (Message{other, "", {}}));
  for (const std::string& text : {"a\n" + bare, other, "<" + bare, "<tool_call>" + bare}) {
    expect_same_however_cut(coder(), text);
  }
}

// Without </parameter> a value ends where the tool's next parameter or the call's end begins a line.
TEST(QwenCoderCalls, ValuesWithoutTheirEnd) {
  const std::string open = "<tool_call>\n<function=write>\n<parameter=path>\n";
  const std::string end = "\n</function>\n</tool_call>";
  EXPECT_EQ(parse(coder(), open + "a" + end + "\n" + kCoderTime),
            (Message{"", "", {{"write", R"({"path": "a"})"}, {"time", "{}"}}}));
  EXPECT_EQ(parse(coder(), open + "a\n<parameter=lines>\n7" + end + " Bye"),
            (Message{" Bye", "", {{"write", R"({"path": "a", "lines": 7})"}}}));
  EXPECT_EQ(parse(coder(), open + "a\n</function>").calls, (std::vector<Call>{{"write", R"({"path": "a"})"}}));
  // The value has no byte: the line break before it is the form's.
  EXPECT_EQ(parse(coder(), open + "</function>\n</tool_call>" + kCoderTime),
            (Message{"", "", {{"write", R"({"path": ""})"}, {"time", "{}"}}}));
  EXPECT_EQ(parse(coder(), open + "<parameter=lines>\n7" + end).calls,
            (std::vector<Call>{{"write", R"({"path": "", "lines": 7})"}}));
  EXPECT_EQ(parse(coder(), open + "<parameter=x>" + end).calls,
            (std::vector<Call>{{"write", R"({"path": "<parameter=x>"})"}}));
  // Text that only looks like a call.
  const std::string text = "a\n<parameter=x>\n</function>\n<b>\n</function>\n\n<parameter=\n</func";
  EXPECT_EQ(parse(coder(), open + text + "\n</parameter>" + end).calls,
            (std::vector<Call>{{"write", "{\"path\": " + json_quote(text) + "}"}}));
  EXPECT_EQ(parse(coder(), open + "a\n</func").calls, (std::vector<Call>{{"write", "{\"path\": \"a\\n</func\"}"}}));
  for (const std::string& body :
       {"</function>\n</tool_call>" + kCoderTime, "<parameter=lines>\n7" + end, "<parameter=x>" + end,
        "a" + end + kCoderTime, "a\n<parameter=lines>\n7" + end, text + "\n</parameter>" + end,
        std::string("a\n</function>"), std::string("a\n</func")}) {
    expect_same_however_cut(coder(), open + body);
  }
}

// An announced call stays a call, and a break between parameters leaves it complete.
TEST(QwenCoderCalls, BrokenAndCutOff) {
  const std::string open = "<tool_call>\n<function=write>\n" + parameter("lines", "7");
  const Call write{"write", "{\"lines\": 7}"};
  EXPECT_EQ(parse(coder(), open + "</tool_call>"), (Message{"", "", {write}}));
  EXPECT_EQ(parse(coder(), open + "</tool_call>\n" + kCoderTime), (Message{"", "", {write, {"time", "{}"}}}));
  EXPECT_EQ(parse(coder(), open + "<para>"), (Message{"\n<para>", "", {write}}));
  EXPECT_EQ(parse(coder(), open + "<parameter=a\n"), (Message{"\n<parameter=a\n", "", {write}}));
  EXPECT_EQ(parse(coder(), open + "</function>"), (Message{"", "", {write}}));
  for (const char* cut : {"", "</", "</func", "\n</function"}) {
    EXPECT_EQ(parse(coder(), open + cut), (Message{"", "", {write}})) << cut;
  }
  EXPECT_EQ(parse(coder(), "<tool_call>\n<function=time>\n"), (Message{"", "", {{"time", "{}"}}}));
  EXPECT_EQ(parse(coder(), open + "<param"), (Message{"\n<param", "", {write}}));
  EXPECT_EQ(parse(coder(), open + "<parameter=a"), (Message{"\n<parameter=a", "", {write}}));
  EXPECT_EQ(parse(coder(), open + "<parameter=path>\nab\n</para").calls,
            (std::vector<Call>{{"write", R"({"lines": 7, "path": "ab"})"}}));
  EXPECT_EQ(parse(coder(), open + "<parameter=tags>\n[1, ").calls,
            (std::vector<Call>{{"write", R"({"lines": 7, "tags": "[1, "})"}}));
  for (const auto& [cut, arguments] : {std::pair{"<param", ""},
                                       {"<parameter=path>\nab", R"({"lines": 7, "path": "ab)"},
                                       {"<parameter=tags>\n[1, ", R"({"lines": 7)"}}) {
    EXPECT_EQ(parse(coder(), open + cut, TextEnd::kCut), (Message{"", "", {{"write", arguments}}})) << cut;
  }
  for (const char* end : {"", "</func", "</tool_call>", "<para>", "<parameter=a\n", "<parameter=tags>\n[1, "}) {
    expect_same_however_cut(coder(), open + end);
  }
}

}  // namespace
}  // namespace volley::serve

#include "serve/formats/call_arguments.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

// However the text is cut, the same comes out of it, and what has gone out can be completed behind every character.
std::string arguments_of(const std::string& text) {
  CallArguments whole;
  std::string expected;
  whole.push(text, expected);
  whole.end(expected);
  EXPECT_TRUE(read_json(expected).is_object()) << text << " became " << expected;
  for (size_t size = 1; size < 4; ++size) {
    CallArguments pieces;
    std::string out;
    for (size_t at = 0; at < text.size() && !pieces.ended(); at += size) {
      const bool begins_character = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
      if (begins_character) {
        CallArguments ended = pieces;
        std::string closed = out;
        ended.end(closed);
        EXPECT_TRUE(read_json(closed).is_object()) << text << " was " << closed << " at " << at;
      }
      pieces.push(std::string_view(text).substr(at, size), out);
    }
    pieces.end(out);
    EXPECT_EQ(out, expected) << text;
  }
  return expected;
}

TEST(CallArguments, JsonPassesThroughByteForByte) {
  for (
      const char* text :
      {"{}", "{ }", R"({"a": 1})", R"({ "b":1.0,"a" : [1e3, "\u00e9\n</tool_call>}", {"x": null}] , "a": "twice"})",
       R"({"a": [[], {}, [ ], -0.5E+10, true, false]})", "{\n  \"K\u00f6ln\": \"\u20ac \\\"\\\\\\/\\b\\f\\n\\r\\t\"\n}",
       R"({"pair": "\ud83d\ude00", "": ""})",
       R"({"a": 1195858088e1678, "b": [-1E+999, {"c": 1e-999}], "d": 0.1234567890123456789012345678901234567890e400})"}) {
    EXPECT_EQ(arguments_of(text), text);
  }
}

TEST(CallArguments, WhatModelsGetWrongInStringsIsMended) {
  EXPECT_EQ(arguments_of("{\"x\": \"a\n\tb\\\nc\x01\"}"), R"({"x": "a\n\tb\nc\u0001"})");
  EXPECT_EQ(arguments_of(R"({"re": "\d+\.\w", "k\q": 'x'})").substr(0, 19), R"({"re": "\\d+\\.\\w")");
  EXPECT_EQ(arguments_of(R"({"a": "it\'s", "b": "\u12z\u1"})"), R"({"a": "it's", "b": "\\u12z\\u1"})");
  EXPECT_EQ(arguments_of(R"({"a": "\ud83dx\ud83d\n\ude00\ud83d\ud83d\ude00\ud83d"})"),
            R"({"a": "\ufffdx\ufffd\n\ufffd\ufffd\ud83d\ude00\ufffd"})");
  EXPECT_EQ(arguments_of(R"({"a": [1, 2,], "b": {"c": 3 , },})"), R"({"a": [1, 2], "b": {"c": 3  }})");
}

TEST(CallArguments, WhereTheyBreakOffTheyAreClosed) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "{}"},
      {" \n", "{}"},
      {"null", "{}"},
      {"{", "{}"},
      {"{ ", "{}"},
      {R"({"a": 1)", R"({"a": 1})"},
      {R"({"a": 1, )", R"({"a": 1})"},
      {R"({"a": "b)", R"({"a": "b"})"},
      {R"({"a": "b\)", R"({"a": "b\\"})"},
      {R"({"a": "b\u00)", R"({"a": "b\\u00"})"},
      {R"({"a": {"b": [{"c": true)", R"({"a": {"b": [{"c": true}]}})"},
      {R"({"a": [1, )", R"({"a": [1]})"},
      {R"({"a": {)", R"({"a": {}})"},
      // Not sent yet, but not lost.
      {R"({"a)", R"({"INVALID_JSON": "{\"a"})"},
      {R"({"a": )", R"({"INVALID_JSON": "{\"a\": "})"},
      {R"({"a": tr)", R"({"INVALID_JSON": "{\"a\": tr"})"},
      {R"({"a": 1, "b":)", R"({"a": 1, "INVALID_JSON": ", \"b\":"})"},
      {R"({"a": [1, -)", R"({"a": [1], "INVALID_JSON": ", -"})"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(arguments_of(text), expected) << text;
}

TEST(CallArguments, WhatIsNoJsonIsHandedOnAsText) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"x": True})", R"({"INVALID_JSON": "{\"x\": True}"})"},
      {R"({'x': 1})", R"({"INVALID_JSON": "{'x': 1}"})"},
      {R"({x: 1})", R"({"INVALID_JSON": "{x: 1}"})"},
      {"print(1)", "{\"INVALID_JSON\": \"print(1)\"}"},
      {R"([1])", R"({"INVALID_JSON": "[1]"})"},
      {R"("a")", R"({"INVALID_JSON": "\"a\""})"},
      {"null{}", R"({"INVALID_JSON": "null{}"})"},
      {"null x", R"({"INVALID_JSON": "null x"})"},
      {R"(nul)", R"({"INVALID_JSON": "nul"})"},
      {R"({,})", R"({"INVALID_JSON": "{,}"})"},
      {R"({"a": 01})", R"({"INVALID_JSON": "{\"a\": 01}"})"},
      {R"({"a": 01e999})", R"({"INVALID_JSON": "{\"a\": 01e999}"})"},
      {R"({"a": 1, "b": nope, "c": "d"})", R"({"a": 1, "INVALID_JSON": ", \"b\": nope, \"c\": \"d\"}"})"},
      {R"({"a": {"b": [1 2]}})", R"({"a": {"b": [1]}, "INVALID_JSON": " 2]}}"})"},
      {R"({"a": {"b": x}})", R"({"a": {}, "INVALID_JSON": "\"b\": x}}"})"},
      {R"({"a": 1]})", R"({"a": 1, "INVALID_JSON": "]}"})"},
      {R"({"a" 1})", R"({"INVALID_JSON": "{\"a\" 1}"})"},
      {R"({"a": "b" "c": 1})", R"({"a": "b", "INVALID_JSON": " \"c\": 1}"})"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(arguments_of(text), expected) << text;
  const std::string deep = "{\"a\": " + std::string(5000, '[') + std::string(5000, ']') + "}";
  EXPECT_LT(arguments_of(deep).find("INVALID_JSON"), 200u) << "clients could not send it back";
}

TEST(CallArguments, TextBehindTheObjectIsNotTaken) {
  CallArguments arguments;
  std::string json;
  EXPECT_EQ(arguments.push("{\"a\": {}} x", json), 9u);
  EXPECT_EQ(arguments.push("y", json), 0u);
  EXPECT_EQ(json, "{\"a\": {}}");
}

// Changes every byte in every way.
TEST(CallArguments, AreAnObjectWhateverIsWritten) {
  const std::string text = R"({"a": [1.5, {"b": "c\u00e9\n"}, null], "d": {"e": true, "f": []}})";
  for (size_t at = 0; at <= text.size(); ++at) {
    arguments_of(text.substr(0, at));
    for (const char c : std::string("{}[]\",:\\'x1- \n\x01")) {
      arguments_of(text.substr(0, at) + c + text.substr(at));
      if (at < text.size()) arguments_of(text.substr(0, at) + c + text.substr(at + 1));
    }
    if (at < text.size()) arguments_of(text.substr(0, at) + text.substr(at + 1));
  }
}

}  // namespace
}  // namespace volley::serve

// Protects the gate that every body passes: UTF-8, depth, positions in messages, and cutting JSON without changing it.
#include "serve/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace volley::serve {
namespace {

TEST(Utf8, AcceptsWellFormedSequences) {
  for (const std::string_view text : {"", "abc", "é", "€", "😀", "\xEF\xBF\xBF", "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF"}) {
    EXPECT_EQ(find_invalid_utf8(text), std::nullopt) << text;
  }
}

TEST(Utf8, FindsTheFirstBadByte) {
  const std::pair<std::string_view, size_t> cases[] = {
      {"ab\x80", 2},             // a lone continuation
      {"\xC0\xAF", 0},           // overlong, two bytes
      {"\xE0\x80\xAF", 0},       // overlong, three
      {"x\xF0\x80\x80\xAF", 1},  // overlong, four
      {"\xED\xA0\x80", 0},       // a surrogate
      {"\xF4\x90\x80\x80", 0},   // above U+10FFFF
      {"\xF5\x80\x80\x80", 0},   // no such first byte
      {"é\xE2\x82", 2},          // cut off
      {"\xC3", 0},
  };
  for (const auto& [text, offset] : cases) EXPECT_EQ(find_invalid_utf8(text), offset) << text;
}

TEST(Utf8, CountsCodePoints) {
  EXPECT_EQ(count_code_points(""), 0u);
  EXPECT_EQ(count_code_points("aé€😀"), 4u);
}

std::string parse_failure(const std::string& body) {
  const auto result = parse_json(body);
  const auto* error = std::get_if<ApiError>(&result);
  if (!error) return "";
  EXPECT_EQ(error->status, 400);
  EXPECT_EQ(error->type, "invalid_request_error");
  return error->message;
}

TEST(ParseJson, SaysWhereItBreaks) {
  EXPECT_NE(parse_failure("{\"a\": 1,\n \"b\": }").find("line 2, column 7"), std::string::npos);
  EXPECT_NE(parse_failure("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(parse_failure("{} x").find("not valid JSON"), std::string::npos);
  EXPECT_NE(parse_failure("{\"a\": NaN}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(parse_failure("{\"a\": \"\\ud800\"}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(parse_failure("{\"a\": \"\xFF\"}").find("byte 7"), std::string::npos);
  EXPECT_NE(parse_failure("\xEF\xBB\xBF{}").find("byte order mark"), std::string::npos);
  EXPECT_NE(parse_failure("{\"a\": 1e999}").find("too large"), std::string::npos);
  EXPECT_NE(parse_failure("{\"a\": -1e999}").find("too large"), std::string::npos);
}

TEST(ParseJson, NothingHidesBehindAZero) {
  using namespace std::string_view_literals;
  for (const std::string_view body : {"{\"a\": 1}\0\": {\"a\""sv, "{\"a\": 1}\0"sv, "{\"a\0\": 1}"sv, "\0"sv}) {
    const auto parsed = parse_json(body);
    ASSERT_TRUE(std::holds_alternative<ApiError>(parsed));
    EXPECT_NE(std::get<ApiError>(parsed).message.find("is 0."), std::string::npos);
  }
}

TEST(ParseJson, MessagesStayShort) {
  EXPECT_LT(parse_failure("{\"a\": " + std::string(100000, 'x') + "}").size(), 400u);
  EXPECT_LT(parse_failure("{\"a\": \"" + std::string(100000, 'x')).size(), 400u);
}

TEST(ParseJson, BoundsDepthAndIgnoresBracketsInStrings) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(parse_failure(nested(kMaxJsonDepth)), "");
  EXPECT_NE(parse_failure(nested(kMaxJsonDepth + 1)).find("deeper"), std::string::npos);
  EXPECT_NE(parse_failure(std::string(1000000, '[')).find("deeper"), std::string::npos);
  EXPECT_EQ(parse_failure("[\"" + std::string(1000, '[') + "\\\"{{\"]"), "");
}

TEST(Cut, KeepsEveryByteOfAValue) {
  const std::string object = R"( { "z" : 1.50 , "a":"x,}\"]" ,"l": [ 1, {"k": [2]} ] , "e":{}, "\u0061b": null } )";
  const auto members = object_members(object);
  ASSERT_EQ(members.size(), 5u);
  EXPECT_EQ(members[0], (std::pair<std::string, std::string_view>{"z", "1.50"}));
  EXPECT_EQ(members[1].second, R"("x,}\"]")");
  EXPECT_EQ(members[2].second, R"([ 1, {"k": [2]} ])");
  EXPECT_EQ(members[3].second, "{}");
  EXPECT_EQ(members[4].first, "ab");
  EXPECT_EQ(array_elements(members[2].second), (std::vector<std::string_view>{"1", R"({"k": [2]})"}));
  EXPECT_TRUE(array_elements("[ ]").empty());
  EXPECT_TRUE(object_members("{}").empty());
}

TEST(Cut, TheLastOfEqualKeysCounts) {
  const std::string object = R"({"a": 1, "b": 2, "a": 3})";
  EXPECT_EQ(find_member(object, "a"), "3");
  EXPECT_EQ(find_member(object, "c"), "");
  const auto parsed = parse_json(object);
  EXPECT_EQ(std::get<nlohmann::json>(parsed).at("a"), 3) << "the parsed value and the cut text must agree";
}

// What users and files name cannot steer the terminal.
TEST(EscapeControls, ControlCharactersAreShownNotSent) {
  EXPECT_EQ(escape_controls("plain \"text\" \\ ü 日本"), "plain \"text\" \\ ü 日本");
  EXPECT_EQ(escape_controls("a\x1b[2Jb\nc\x7f"), "a\\x1B[2Jb\\x0Ac\\x7F");
  EXPECT_EQ(escape_controls("\xc2\x9b"
                            "31m"),
            "\\xC2\\x9B31m")
      << "the control sequence introducer of Latin-1";
  EXPECT_EQ(escape_controls("\x9bü\xff"), "\\x9Bü\\xFF") << "not UTF-8";
  EXPECT_EQ(escape_controls(std::string("\0", 1)), "\\x00");
}

}  // namespace
}  // namespace volley::serve

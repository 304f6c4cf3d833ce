// Protects the checks that every body passes: UTF-8, depth, positions in messages, and splitting JSON unchanged.
#include "serve/json/json_text.h"

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
}

// A past call may hold them, and its conversation goes on.
TEST(ParseJson, NumbersBeyondDoubleAreTheLargestOnes) {
  const std::string huge(400, '7'), largest = "1.7976931348623157e+308";
  for (const std::string& number : {std::string("1e999"), std::string("1195858088e1678"), huge, huge + ".5e+7",
                                    "0." + huge + "E99999999999999999999"}) {
    const std::string text = R"({"1e999":"\"1e999","a":)" + number + ",\n\"b\":[-" + number + ",1.5e3]}";
    EXPECT_EQ(std::get<nlohmann::json>(parse_json(text)).dump(),
              R"({"1e999":"\"1e999","a":)" + largest + R"(,"b":[-)" + largest + ",1500.0]}");
    EXPECT_EQ(find_member(text, "a"), number);
    EXPECT_TRUE(is_json_text(text) && is_json_text(number) && is_json_text("-" + number));
    EXPECT_EQ(read_json("[" + number + "]")[0].dump(), largest);
  }
  EXPECT_EQ(read_json("[1e-999, -0." + huge + "]").dump(), "[0.0,-0.7777777777777778]");
  for (const char* text : {"[01e999]", "[1.e999]", "[.5e999]", "[+1e999]", "[1e999e1]", "[1e999, tru]", "[x1e999]",
                           "[1e999.5]", "[1e999-1]", "[--1e999]", "[1e999", "1e999 1", "\"1e999", ""}) {
    EXPECT_TRUE(std::holds_alternative<ApiError>(parse_json(text))) << text;
    EXPECT_TRUE(read_json(text).is_null() && !is_json_text(text)) << text;
  }
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

std::string list_of(size_t values, const std::string& value) {
  std::string text = "[";
  for (size_t i = 0; i < values; ++i) text.append(i > 0 ? "," : "").append(value);
  return text + "]";
}

TEST(ParseJson, BoundsTheNumberOfValues) {
  EXPECT_EQ(parse_failure(list_of(kMaxJsonValues - 1, "0")), "") << "the list is a value, too";
  for (const char* value : {"0", "\"\"", "null", "[]", "{}", "{\"\":1}", "1.5", "-1", "true"}) {
    EXPECT_NE(parse_failure(list_of(kMaxJsonValues, value)).find("more than 1048576 values"), std::string::npos)
        << value;
  }
  // Prompts of token ids: several of a long context each.
  EXPECT_EQ(parse_failure("{\"prompt\":" + list_of(7, list_of(131'072, "1")) + "}"), "");
  EXPECT_EQ(parse_failure("{\"prompt\":" + list_of(3, list_of(262'144, "1")) + "}"), "");
}

TEST(ParseJson, BuildsWhatTheTextSays) {
  const std::string text =
      R"({"a":[1,-2,2.5,true,false,null,"x",[],{}],"b":{"c":{"d":[[1],[2,[3]]]}},"":0,"e":18446744073709551615})";
  const auto parsed = parse_json(text);
  EXPECT_EQ(std::get<nlohmann::json>(parsed).dump(), nlohmann::json::parse(text).dump());
  EXPECT_EQ(read_json(text).dump(), nlohmann::json::parse(text).dump());
  EXPECT_EQ(read_json("7").dump(), "7");
  EXPECT_TRUE(read_json("[1").is_null());
  EXPECT_EQ(read_json(R"({"a":[[1],{"b":[2]}],"a":{"c":[3]}})").dump(), R"({"a":{"c":[3]}})");
}

// Long strings are read apart from the others.
TEST(ParseJson, LongStringsAreWhatTheTextSays) {
  const std::string letters(1 << 16, 'A'), mark = "\x7Fstring ", quoted = "\"" + letters + "\"";
  const std::vector<std::string> texts = {
      quoted,
      "[" + quoted + ",\"b\" , " + quoted + " ]",
      "{" + quoted + " : 1, \"b\": " + quoted + "}",
      "{\"a\": [{\"b\": " + quoted + "}, -1e999], \"a\": {\"c\":" + quoted + "}}",
      "[\"" + letters + "\\n\", \"" + letters + "\\\"\", \"" + letters + "\xC3\xA4\", " + quoted + "]",
      "[\"" + mark + "0\", " + quoted + "]",
      "[\"" + mark + "\", " + quoted + "]",
      "[\"\\u007Fstring 0\", \"\\u007fstring x\", " + quoted + "]",
      "[\"\x7F\\u0030\", \"\x7F\", \"\\u007F9\", " + quoted + "]",
      "[\"\x7Fstring\\u00200\", \"\x7Fstr\\u0069ng 9\", \"\x7Fstr\\u0069ng x\", " + quoted + "]"};
  for (const std::string& text : texts) {
    nlohmann::json whole;
    try {
      whole = nlohmann::json::parse(text);
    } catch (const nlohmann::json::out_of_range&) {
      continue;  // below
    }
    EXPECT_EQ(std::get<nlohmann::json>(parse_json(text)), whole) << text.substr(0, 30);
  }
  EXPECT_EQ(std::get<nlohmann::json>(parse_json(texts[3]))["a"]["c"], letters);
  for (const std::string& text : {"[" + quoted, "[" + quoted + ",]", "[" + quoted + " 1]", "[\"" + letters + "\n\"]",
                                  "[" + quoted.substr(0, quoted.size() - 1)}) {
    std::string message;
    try {
      const auto whole = nlohmann::json::parse(text);  // GCC warns of a result that is cast to void
    } catch (const nlohmann::json::exception& error) {
      message = error.what();
    }
    const auto parsed = parse_json(text);
    ASSERT_TRUE(std::holds_alternative<ApiError>(parsed)) << text.substr(0, 30);
    EXPECT_NE(message, "");
    EXPECT_NE(message.find(std::get<ApiError>(parsed).message.substr(28, 40)), std::string::npos)
        << message.substr(0, 99);
  }
}

// What a model writes has no bound of depth.
TEST(ReadJson, TakesAnyDepthBesideALongString) {
  const std::string letters(1 << 16, 'A');
  const auto read = read_json("[\"" + letters + "\", " + std::string(1000000, '[') + std::string(1000000, ']') + "]");
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0], letters);
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

// Names from users and files cannot steer the terminal.
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

// No character in a log line hides or changes its neighbours.
TEST(EscapeUnseen, WhatHidesOrReordersIsShown) {
  const auto bytes = [](std::string_view text) { return escape_unseen(text, Escapes::kBytes); };
  EXPECT_EQ(bytes("plain \"text\" \\ ü 日本 😀"), "plain \"text\" \\ ü 日本 😀");
  EXPECT_EQ(bytes("a\x1b\x7f\xc2\x9b\xff"), "a\\x1B\\x7F\\xC2\\x9B\\xFF");
  const char* const hidden[] = {"\u061C", "\u00AD", "\u180E", "\u200B",     "\u200D",     "\u200F",
                                "\u2028", "\u2029", "\u202A", "\u202E",     "\u2060",     "\u2066",
                                "\u2069", "\uFEFF", "\uFFF9", "\uFE0F",     "\u3164",     "\uFFA0",
                                "\u115F", "\u034F", "\u17B4", "\U000E0041", "\U0001D173", "\U000E01EF"};
  for (const std::string_view point : hidden) {
    std::string shown;
    for (const char c : point) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02X", static_cast<unsigned char>(c));
      shown += code;
    }
    EXPECT_EQ(bytes("a" + std::string(point) + "b"), "a" + shown + "b");
    const std::string json = escape_unseen(json_quote(point), Escapes::kJson);
    EXPECT_EQ(json.find(point), std::string::npos) << json;
    EXPECT_EQ(nlohmann::json::parse(json), point) << json;
  }
  EXPECT_EQ(bytes("\u2027\u202F\u2030\u205F\u206F"), "\u2027\u202F\u2030\u205F\\xE2\\x81\\xAF")
      << "the neighbours stay";
  EXPECT_EQ(escape_unseen("\"\x7f\xc2\x85\u202e\U000E0041\"", Escapes::kJson), R"("\u007f\u0085\u202e\udb40\udc41")");
  EXPECT_EQ(bytes("\xed\xa0\x80"), "\\xED\\xA0\\x80") << "half a surrogate pair";
  EXPECT_EQ(bytes(bytes("\u202e\x1b")), bytes("\u202e\x1b"));
}

}  // namespace
}  // namespace volley::serve

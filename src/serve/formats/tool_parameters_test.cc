#include "serve/formats/tool_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

namespace volley::serve {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::string kDefinitions = R"("$defs": {"n": {"type": "integer"}, "s": {"$ref": "#/$defs/t"},
                                 "t": {"enum": ["a", "b"]}, "loop": {"$ref": "#/$defs/loop"}})";

ToolParameter only(const std::string& schema) {
  ToolParameters all =
      tool_parameters(R"({"type": "object", "properties": {"p": )" + schema + "}, " + kDefinitions + "}");
  EXPECT_EQ(all.listed.size(), 1u);
  all.listed.at(0).schema_json = {};  // refers to a deleted text
  return all.listed.at(0);
}

TEST(ToolParameters, Types) {
  EXPECT_EQ(only(R"({"type": "string"})").types, kJsonString);
  EXPECT_EQ(only(R"({"type": ["integer", "null"]})").types, kJsonNumber | kJsonNull);
  EXPECT_EQ(only(R"({"anyOf": [{"type": "array"}, {"$ref": "#/$defs/n"}]})").types, kJsonArray | kJsonNumber);
  EXPECT_EQ(only(R"({"enum": ["a", 1, false]})").types, kJsonString | kJsonNumber | kJsonBoolean);
  EXPECT_EQ(only(R"({"const": {}})").types, kJsonObject);
  EXPECT_EQ(only(R"({"allOf": [{"description": "d"}, {"type": "number"}]})").types, kJsonNumber);
  EXPECT_EQ(only(R"({"properties": {}})").types, kJsonObject);
  EXPECT_EQ(only(R"({"oneOf": [{}, {"type": "number"}]})").types, kJsonString | kJsonNumber);
  for (const char* silent : {"{}", "true", R"({"$ref": "#/$defs/loop"})", R"({"$ref": "#/$defs/none"})"}) {
    EXPECT_EQ(only(silent).types, kNoJsonType) << silent;
    EXPECT_TRUE(only(silent).is_text()) << silent;
  }
}

TEST(ToolParameters, TextsAndDefinitions) {
  const ToolParameter letter = only(R"({"$ref": "#/$defs/s"})");
  EXPECT_EQ(letter.types, kJsonString);
  EXPECT_THAT(letter.texts, ElementsAre("a", "b"));
  const std::string tool = R"({"properties": {"p": {"$ref": "#/$defs/s"}}, )" + kDefinitions + "}";
  const ToolParameters all = tool_parameters(tool);
  EXPECT_THAT(with_definitions(all.listed.at(0).schema_json, tool),
              testing::StartsWith(R"({"$ref": "#/$defs/s", "$defs": {"n")"));
  EXPECT_EQ(with_definitions("true", tool), "true");
  EXPECT_THAT(only(R"({"enum": ["a", 1]})").texts, IsEmpty()) << "1 is not held to be text";
}

// Each schema is looked at once. Self-referring alternatives would else take the breadth to the power of the depth.
TEST(ToolParameters, SchemasThatReferToThemselvesEnd) {
  std::string alternatives;
  for (int i = 0; i < 50; ++i) alternatives += std::string(i == 0 ? "" : ", ") + R"({"$ref": "#/$defs/A"})";
  const ToolParameters all = tool_parameters(R"({"properties": {"p": {"$ref": "#/$defs/A"}, "q": {"$ref": "#/$defs/B"}},
      "$defs": {"A": {"anyOf": [)" + alternatives +
                                             R"(]}, "B": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/A"}]}}})");
  ASSERT_EQ(all.listed.size(), 2u);
  EXPECT_TRUE(all.listed[0].is_text());
  EXPECT_EQ(all.listed[1].types, kJsonNull | kJsonString);
}

TEST(ToolParameters, OrderAndWhichAreRequired) {
  const ToolParameters all =
      tool_parameters(R"({"properties": {"z": {}, "a": {"type": "string"}}, "required": ["a"]})");
  ASSERT_EQ(all.listed.size(), 2u);
  EXPECT_EQ(all.listed[0].name, "z");
  EXPECT_FALSE(all.listed[0].required);
  EXPECT_TRUE(all.listed[1].required);
  EXPECT_FALSE(all.any_other);
  EXPECT_TRUE(tool_parameters("{}").any_other);
  EXPECT_FALSE(tool_parameters(R"({"properties": {}, "additionalProperties": false})").any_other);
}

TEST(ToolParameters, BareValues) {
  EXPECT_EQ(json_of_bare_value("5", kNoJsonType), "\"5\"");
  EXPECT_EQ(json_of_bare_value("5", kJsonString), "\"5\"");
  EXPECT_EQ(json_of_bare_value("5", kJsonString | kJsonNull), "\"5\"");
  EXPECT_EQ(json_of_bare_value(" 5.0 ", kJsonString | kJsonNumber), "5.0");
  EXPECT_EQ(json_of_bare_value("\"a\"", kJsonString | kJsonNumber), "\"\\\"a\\\"\"") << "the quotes are the text's own";
  EXPECT_EQ(json_of_bare_value("\"a\"", kJsonObject), "\"a\"");
  EXPECT_EQ(json_of_bare_value("False", kJsonBoolean), "false");
  EXPECT_EQ(json_of_bare_value("None", kJsonString | kJsonNull), "null");
  for (const char* number : {"1e400", "-1195858088e1678", "1e-999", "0.12345678901234567890123456789e999"}) {
    EXPECT_EQ(json_of_bare_value(number, kJsonNumber | kJsonString), number);
    const std::string object = R"({"b":1, "a":[)" + std::string(number) + "]}";
    EXPECT_EQ(json_of_bare_value(object, kJsonObject), object) << "no double holds it";
    EXPECT_EQ(json_of_bare_value("{'b': " + std::string(number) + "}", kJsonObject),
              R"({"b": )" + std::string(number) + "}");
  }
  EXPECT_EQ(json_of_bare_value("{\"b\":1, \"a\" :2}", kJsonObject), "{\"b\":1, \"a\" :2}") << "the client's own bytes";
  EXPECT_EQ(json_of_bare_value("a\"\\\x01\n", kJsonNumber), R"("a\"\\\u0001\n")");
}

// Templates print lists and dicts as Python does, and models copy them.
TEST(ToolParameters, BareValuesInPythonsSpelling) {
  const std::tuple<const char*, unsigned, const char*> cases[] = {
      {"['a']", kJsonArray, R"(["a"])"},
      {"{'k': True}", kJsonObject, R"({"k": true})"},
      {" ['a', \"b's\", None, False,]\n", kJsonArray, R"(["a", "b's", null, false])"},
      {"{'a': {'b': [1, -2.5e3, {}]}, 'c': ()}", kJsonObject, R"({"a": {"b": [1, -2.5e3, {}]}, "c": []})"},
      {"('a', 1)", kJsonArray, R"(["a", 1])"},
      {"('a',)", kJsonArray, R"(["a"])"},
      {"(['a'])", kJsonArray, R"(["a"])"},
      {"{'a', 'b'}", kJsonArray, R"(["a", "b"])"},
      {"{1: 'x', None: 2, True: 3}", kJsonObject, R"({"1": "x", "null": 2, "true": 3})"},
      {R"(['it\'s', "\"q\"", '\\d+\n', '\x41\u00e9\U0001F600\ud83d\ude00\101', '\q'])", kJsonArray,
       "[\"it's\", \"\\\"q\\\"\", \"\\\\d+\\n\", \"A\u00e9\U0001F600\U0001F600A\", \"\\\\q\"]"},
      {"[1_000, .5, 5., +7]", kJsonArray, "[1000, 0.5, 5.0, 7]"},
      {"{'a': true, \"b\": null}", kJsonObject, R"({"a": true, "b": null})"},
      {"['a']", kJsonArray | kJsonString, R"(["a"])"},
      {"'a'", kJsonArray | kJsonString, R"("'a'")"},
      {"{'k': 1}", kJsonArray, R"({"k": 1})"},
      {"['a']", kJsonString, R"("['a']")"},
      // JSON has no such values.
      {"[nan]", kJsonArray, R"("[nan]")"},
      {"['a'", kJsonArray, R"("['a'")"},
      {"['a' 'b']", kJsonArray, R"("['a' 'b']")"},
      {"{'a': 1, 'b'}", kJsonObject, R"("{'a': 1, 'b'}")"},
      {"{(1, 2): 3}", kJsonObject, R"("{(1, 2): 3}")"},
      {"[,]", kJsonArray, R"("[,]")"},
      {"['\\x4']", kJsonArray, R"("['\\x4']")"},
      {"f(1)", kJsonObject, "\"f(1)\""},
      {"", kJsonArray, R"("")"},
  };
  for (const auto& [text, types, expected] : cases) EXPECT_EQ(json_of_bare_value(text, types), expected) << text;
  const std::string deep = std::string(5000, '[') + "'a'" + std::string(5000, ']');
  EXPECT_EQ(json_of_bare_value(deep, kJsonArray), '"' + deep + '"');
}

}  // namespace
}  // namespace volley::serve

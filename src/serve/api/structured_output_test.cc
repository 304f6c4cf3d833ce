// Protects constraints under their many names: each must hold, none may be lost, and two exclude each other.
#include "serve/api/structured_output.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace volley::serve {
namespace {

using nlohmann::json;
using Kind = GrammarSpec::Kind;

struct Read {
  std::optional<GrammarSpec> grammar;
  std::optional<ApiError> error;
  bool open_objects = false;
};

Read read(const std::string& body) {
  const json parsed = json::parse(body);
  FieldReader in(parsed);
  Read result;
  read_grammar(in, body, result.open_objects, result.grammar);
  result.error = in.error();
  return result;
}

TEST(StructuredOutput, EveryNameOfASchemaKeepsItsBytes) {
  const std::string schema = R"({"type":"object", "properties": {"z": {"type": "number"},"a":{}}})";
  const std::string text = json(schema).dump();
  const std::string bodies[] = {
      R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": )" +
          schema + "}}}",
      R"({"response_format": {"type": "json_object", "schema": )" + schema + "}}",
      R"({"response_format": {"type": "json_schema", "schema": )" + schema + "}}",
      R"({"structured_outputs": {"json": )" + schema + "}}",
      R"({"structured_outputs": {"json": )" + text + "}}",
      R"({"guided_json": )" + schema + "}",
      R"({"guided_json": )" + text + "}",
      R"({"json_schema": )" + text + "}",
  };
  for (const std::string& body : bodies) {
    const Read result = read(body);
    ASSERT_TRUE(result.grammar) << body;
    EXPECT_EQ(result.grammar->kind, Kind::kJsonSchema) << body;
    EXPECT_EQ(result.grammar->text, schema) << body;
  }
}

TEST(StructuredOutput, TheOtherConstraints) {
  const std::tuple<const char*, Kind, const char*> cases[] = {
      {R"({"response_format": {"type": "json_object"}})", Kind::kJsonObject, ""},
      {R"({"structured_outputs": {"json_object": true}})", Kind::kJsonObject, ""},
      {R"({"guided_json_object": true})", Kind::kJsonObject, ""},
      {R"({"structured_outputs": {"regex": "a+"}})", Kind::kRegex, "a+"},
      {R"({"guided_regex": "a+"})", Kind::kRegex, "a+"},
      {R"({"regex": "a+"})", Kind::kRegex, "a+"},
      {R"({"structured_outputs": {"grammar": "root ::= \"a\""}})", Kind::kEbnf, "root ::= \"a\""},
      {R"({"guided_grammar": "root ::= \"a\""})", Kind::kEbnf, "root ::= \"a\""},
      {R"({"grammar": "root ::= \"a\""})", Kind::kEbnf, "root ::= \"a\""},
      {R"({"guided_grammar": "start: \"a\""})", Kind::kLark, "start: \"a\""},
      {R"({"ebnf": "root ::= \"a\""})", Kind::kEbnf, "root ::= \"a\""},
  };
  for (const auto& [body, kind, text] : cases) {
    const Read result = read(body);
    ASSERT_TRUE(result.grammar) << body;
    EXPECT_EQ(result.grammar->kind, kind) << body;
    EXPECT_EQ(result.grammar->text, text) << body;
  }
  for (const char* body : {R"({"guided_choice": ["a", "b"]})", R"({"structured_outputs": {"choice": ["a", "b"]}})"}) {
    const Read result = read(body);
    ASSERT_TRUE(result.grammar) << body;
    EXPECT_EQ(result.grammar->kind, Kind::kChoice);
    EXPECT_EQ(result.grammar->choices, (std::vector<std::string>{"a", "b"}));
  }
}

TEST(StructuredOutput, NothingIsAskedFor) {
  for (const char* body : {"{}", R"({"response_format": {"type": "text"}})", R"({"response_format": null})",
                           R"({"guided_json": null, "structured_outputs": {}})", R"({"guided_json_object": false})"}) {
    const Read result = read(body);
    EXPECT_FALSE(result.grammar) << body;
    EXPECT_FALSE(result.error) << body;
  }
}

TEST(StructuredOutput, NamesWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"response_format": "json"})", "response_format"},
      {R"({"response_format": {}})", "response_format.type"},
      {R"({"response_format": {"type": "xml"}})", "response_format.type"},
      {R"({"response_format": {"type": "json_schema"}})", "response_format.json_schema"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}})",
       "response_format.json_schema.schema"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}})",
       "response_format.json_schema.schema"},
      {R"({"guided_json": "{"})", "guided_json"},
      {R"({"guided_json": 5})", "guided_json"},
      {R"({"guided_choice": []})", "guided_choice"},
      {R"({"guided_choice": ["a", 1]})", "guided_choice"},
      {R"({"guided_regex": ""})", "guided_regex"},
      {R"({"structured_outputs": {"regex": 1}})", "structured_outputs.regex"},
      {R"({"structured_outputs": {"whitespace_pattern": " "}})", "structured_outputs.whitespace_pattern"},
      {R"({"structured_outputs": {"lark": "start: \"a\""}})", "structured_outputs.lark"},
      {R"({"structured_outputs": {"regex": "a", "Json": {}}})", "structured_outputs.Json"},
      {R"({"structured_outputs": {"disable_any_whitespace": 1}})", "structured_outputs.disable_any_whitespace"},
      {R"({"structured_outputs": {"disable_additional_properties": 1}})",
       "structured_outputs.disable_additional_properties"},
      {R"({"grammar": ""})", "grammar"},
  };
  for (const auto& [body, param] : cases) {
    const Read result = read(body);
    ASSERT_TRUE(result.error) << body;
    EXPECT_EQ(result.error->status, 400) << body;
    EXPECT_EQ(result.error->param, param) << body;
  }
}

// White space is bounded by default, beside a constraint under any name.
TEST(StructuredOutput, WhiteSpaceIsAnOptionOfTheSchema) {
  const std::string option = R"("x-guidance":{"whitespace_flexible":true})",
                    free = R"({"disable_any_whitespace": false)";
  const std::string schema = R"({"z": {},"a": 1.0})";
  const auto text_of = [](const std::string& body) { return read(body).grammar.value().text; };
  EXPECT_EQ(text_of(R"({"structured_outputs": )" + free + R"(, "json": )" + schema + "}}"),
            "{" + option + R"(,"z": {},"a": 1.0})");
  EXPECT_EQ(text_of(R"({"guided_json": {}, "structured_outputs": )" + free + "}}"), "{" + option + "}");
  const Read object = read(R"({"response_format": {"type": "json_object"}, "structured_outputs": )" + free + "}}");
  EXPECT_EQ(object.grammar->kind, Kind::kJsonSchema);
  EXPECT_EQ(object.grammar->text, "{" + option + R"(,"type":"object"})");
  EXPECT_EQ(text_of(R"({"regex": "{", "structured_outputs": )" + free + "}}"), "{") << "only JSON has any";
  const std::string own = R"({"x-guidance": {"whitespace_pattern": "[ ]"}})";
  EXPECT_EQ(text_of(R"({"guided_json": )" + own + R"(, "structured_outputs": )" + free + "}}"), own);
  const std::string none = R"("x-guidance":{"whitespace_flexible":false})";
  EXPECT_EQ(text_of(R"({"guided_json": {}, "structured_outputs": {"disable_any_whitespace": true}})"),
            "{" + none + "}");
  EXPECT_EQ(text_of(R"({"structured_outputs": {"json_object": true, "disable_any_whitespace": true}})"),
            "{" + none + R"(,"type":"object"})");
  EXPECT_EQ(text_of(R"({"guided_json": {}, "structured_outputs": {"disable_any_whitespace": null}})"), "{}");
}

// Objects are closed unless a request opens them, for its schema, under any name, and for its tools.
TEST(StructuredOutput, ObjectsAreOpenedBesideTheSchema) {
  const std::string open = R"("structured_outputs": {"disable_additional_properties": false})";
  const Read named = read(R"({"guided_json": {"z": 1}, )" + open + "}");
  EXPECT_EQ(named.grammar.value().text, R"({"x-guidance":{"open_objects":true},"z": 1})");
  EXPECT_TRUE(named.open_objects);
  EXPECT_TRUE(read("{" + open + "}").open_objects) << "for tools";
  const Read both = read(R"({"json_schema": {}, "structured_outputs": {"disable_additional_properties": false,
                             "disable_any_whitespace": true}})");
  EXPECT_EQ(both.grammar.value().text, R"({"x-guidance":{"whitespace_flexible":false,"open_objects":true}})");
  const Read closed = read(R"({"json_schema": {}, "structured_outputs": {"disable_additional_properties": true}})");
  EXPECT_EQ(closed.grammar.value().text, "{}");
  EXPECT_FALSE(closed.open_objects);
}

// vLLM's clients also send the implementation that they chose.
TEST(StructuredOutput, TheChoiceOfAnImplementationChangesNothing) {
  const Read result =
      read(R"({"structured_outputs": {"regex": "a", "_backend": "xgrammar", "_backend_was_auto": true}})");
  ASSERT_FALSE(result.error);
  EXPECT_EQ(result.grammar.value().text, "a");
}

TEST(StructuredOutput, TwoConstraintsAreOneTooMany) {
  const Read result = read(R"({"guided_regex": "a", "response_format": {"type": "json_object"}})");
  ASSERT_TRUE(result.error);
  EXPECT_NE(result.error->message.find("response_format"), std::string::npos);
  EXPECT_NE(result.error->message.find("guided_regex"), std::string::npos);
  EXPECT_TRUE(read(R"({"structured_outputs": {"regex": "a", "choice": ["a"]}})").error);
}

}  // namespace
}  // namespace volley::serve

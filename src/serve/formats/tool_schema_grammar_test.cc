// Compiled tool schemas in every form of calls, on texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/formats/call_grammar.h"
#include "serve/formats/format_for_test.h"
#include "text/grammar_testing.h"

namespace volley::serve {
namespace {

using nlohmann::json;

class ToolSchemaTest : public text::GrammarTest {
 protected:
  static GrammarSpec grammar(const char* of, const std::string& parameters, bool open_objects = false) {
    ToolRequest request;
    request.tools = {{.name = "f", .parameters_json = parameters}};
    request.choice = ToolRequest::Choice::kRequired;
    request.constrained_by = "tool_choice";
    request.open_objects = open_objects;
    return grammar(format_named(of), request);
  }

  static GrammarSpec grammar(const OutputFormat& format, const ToolRequest& request) {
    const auto made = tool_grammar(request, format, ReasoningStart::kOff);
    EXPECT_TRUE(made.ok() && made->has_value());
    return made.ok() && *made ? **made : GrammarSpec{};
  }

  // A call with these arguments, in the format's form.
  static std::string call(const std::string& of, const json& arguments) {
    if (of == "qwen3_coder") {
      std::string text = "<tool_call>\n<function=f>\n";
      for (const auto& [name, value] : arguments.items()) {
        const std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
        text += "<parameter=" + name + ">\n" + shown + "\n</parameter>\n";
      }
      return text + "</function>\n</tool_call>";
    }
    std::string members;
    for (const auto& [name, value] : arguments.items()) {
      members += std::string(members.empty() ? "" : ", ") + json(name).dump() + ": " + value.dump();
    }
    return call_of(of, "{" + members + "}");
  }

  // The same with arguments as written.
  static std::string call_of(const std::string& of, const std::string& arguments) {
    if (of == "hermes") return "<tool_call>\n{\"name\": \"f\", \"arguments\": " + arguments + "}\n</tool_call>";
    if (of == "llama") return "{\"name\": \"f\", \"parameters\": " + arguments + "}";
    return "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": " + arguments + "}]";
  }

  static constexpr const char* kJsonFormats[] = {"hermes", "llama", "mistral"};
  static constexpr const char* kFormats[] = {"hermes", "llama", "mistral", "qwen3_coder"};
};

TEST_F(ToolSchemaTest, PatternsHoldForDecodedArguments) {
  const std::string schema = json({{"type", "object"},
                                   {"properties", {{"q", {{"type", "string"}, {"pattern", R"(^[^"\\]{2}$)"}}}}},
                                   {"required", {"q"}}})
                                 .dump();
  for (const char* format : kJsonFormats) {
    const GrammarSpec made = grammar(format, schema);
    EXPECT_TRUE(accepts(made, call_of(format, R"({"q": "ab"})"))) << made.text;
    EXPECT_TRUE(accepts(made, call_of(format, R"({"q": "\n."})")));
    for (const char* text : {R"({"q": "\\\\"})", R"({"q": "a\""})", R"({"q": "\u0022a"})", R"({"q": "a\\"})"}) {
      EXPECT_FALSE(accepts(made, call_of(format, text))) << text;
    }
  }
}

// A schema's root may refer to another one, or consist of several.
TEST_F(ToolSchemaTest, EveryKindOfRootHoldsTheArguments) {
  struct Case {
    const char* schema;
    std::vector<json> taken, refused;
  };
  const std::string a = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";
  const std::string reference = R"({"$ref":"#/$defs/A","$defs":{"A":)" + a + "}}";
  const std::string chain = R"({"$ref":"#/$defs/B","$defs":{"B":{"$ref":"#/$defs/A"},"A":)" + a + "}}";
  const std::string all =
      R"({"allOf":[{"$ref":"#/$defs/A"},{"properties":{"b":{"type":"boolean"}},"required":["b"]}],"$defs":{"A":)" + a +
      "}}";
  const std::string any =
      R"({"anyOf":[)" + a + R"(,{"type":"object","properties":{"b":{"type":"boolean"}},"required":["b"]}]})";
  const std::string either = R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"}},
                                 "anyOf":[{"required":["a"]},{"required":["b"]}]})";
  const std::string one =
      R"({"oneOf":[{"$ref":"#/$defs/A"},{"type":"object","properties":{"b":{"type":"boolean"}},"required":["b"]}],"$defs":{"A":)" +
      a + "}}";
  const json with_a = {{"a", 1}}, with_b = {{"b", true}}, with_both = {{"a", 1}, {"b", true}}, none = json::object();
  const std::vector<Case> cases = {
      {reference.c_str(), {with_a}, {none, with_b}},         {chain.c_str(), {with_a}, {none, with_b}},
      {all.c_str(), {with_both}, {none, with_a, with_b}},    {any.c_str(), {with_a, with_b}, {none}},
      {either.c_str(), {with_a, with_b, with_both}, {none}}, {one.c_str(), {with_a, with_b}, {none}},
  };
  for (const Case& one_case : cases) {
    for (const char* format : kFormats) {
      const GrammarSpec made = grammar(format, one_case.schema);
      for (const json& text : one_case.taken) EXPECT_TRUE(accepts(made, call(format, text))) << made.text << text;
      for (const json& text : one_case.refused) EXPECT_FALSE(accepts(made, call(format, text))) << made.text << text;
    }
  }
}

TEST_F(ToolSchemaTest, ArgumentsAreThoseThatTheSchemaNames) {
  const char* schema = R"({"type":"object","properties":{"a":{"type":"integer"}}})";
  for (const char* format : kJsonFormats) {
    const std::string more = call_of(format, R"({"a": 1, "c": 2})");
    EXPECT_TRUE(accepts(grammar(format, schema), call_of(format, R"({"a": 1})")));
    EXPECT_FALSE(accepts(grammar(format, schema), more));
    EXPECT_TRUE(accepts(grammar(format, schema, /*open_objects=*/true), more));
  }
}

// Our code and the engine cannot enforce these schemas.
const std::vector<std::string> kUnenforceable = {
    R"({"type":"object","properties":{"q":{"type":"array","items":{"type":"string","pattern":"^(?!x)a"}}}})",
    R"({"type":"object","properties":{"q":{"type":"array","items":{"type":"integer"},"uniqueItems":true}}})",
    R"({"type":"object","properties":{"q":{"type":"object","properties":{"a":true,"b":true,"c":true},
        "additionalProperties":false,"minProperties":2}}})",
    R"({"type":"object","properties":{"q":{"type":"object","patternProperties":{"^a":true,"^ab":{"type":"null"}}}}})",
    R"({"type":"object","properties":{"q":{"not":{"type":"string"},"type":"object"}}})",
};

ToolRequest good_and_bad(const std::string& schema) {
  ToolRequest request;
  request.tools = {
      {.name = "f", .parameters_json = R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]})"},
      {.name = "bad", .parameters_json = schema}};
  request.choice = ToolRequest::Choice::kAuto;
  request.parallel = false;
  request.constrained_by = "parallel_tool_calls";
  return request;
}

// That tool's arguments are free, the other one's are constrained.
TEST_F(ToolSchemaTest, OneToolsSchemaDoesNotRefuseTheRequest) {
  for (const char* of : kFormats) {
    const OutputFormat format = format_named(of);
    for (const std::string& schema : kUnenforceable) {
      const GrammarSpec made = grammar(format, good_and_bad(schema));
      EXPECT_TRUE(accepts(made, call(of, {{"n", 1}}))) << made.text;
      EXPECT_FALSE(accepts(made, call(of, {{"n", json::array({1})}}))) << made.text;
      std::string any = call(of, {{"q", json::array({"x"})}});
      const bool coder = of == std::string("qwen3_coder");
      any.replace(any.find(coder ? "=f" : "\"f\""), coder ? 2 : 3, coder ? "=bad" : "\"bad\"");
      EXPECT_TRUE(accepts(made, any)) << any << made.text;
      const auto notes = tokenizer_->grammars()->check(made);
      ASSERT_TRUE(notes.ok()) << notes.error().message;
      ASSERT_EQ(notes->size(), 1u) << made.text;
      EXPECT_THAT(notes->front(),
                  testing::AllOf(testing::HasSubstr("the tool \"bad\""), testing::HasSubstr("may be anything")));
    }
  }
}

TEST_F(ToolSchemaTest, AStrictToolAndOneThatIsAskedForAreRefusedByName) {
  for (const char* of : kFormats) {
    const OutputFormat format = format_named(of);
    for (const std::string& schema : kUnenforceable) {
      ToolRequest request = good_and_bad(schema);
      request.tools[1].strict = true;
      EXPECT_THAT(error_of(grammar(format, request)), testing::HasSubstr("the tool \"bad\""));
      request = good_and_bad(schema);
      request.choice = ToolRequest::Choice::kRequired;
      EXPECT_EQ(error_of(grammar(format, request)), "") << "the other one can be called";
      request.tools.erase(request.tools.begin());
      EXPECT_THAT(error_of(grammar(format, request)), testing::HasSubstr("the tool \"bad\""));
    }
  }
  ToolRequest strict = good_and_bad(kUnenforceable[0]);
  strict.tools[1].strict = true;
  const OutputFormat hermes = format_named("hermes");
  EXPECT_THAT(error_of(grammar(hermes, strict)), testing::HasSubstr("\"pattern\" at \"#/properties/q/items\""));
}

// The same holds beside an answer with a form of its own.
TEST_F(ToolSchemaTest, AnAnswerBesideToolsStaysWhatItIs) {
  const OutputFormat format = format_named("hermes");
  const GrammarSpec answer{GrammarSpec::Kind::kJsonSchema, R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", {}};
  const GrammarSpec made = calls_or(answer, good_and_bad(kUnenforceable[0]), format, ReasoningStart::kOff);
  EXPECT_TRUE(accepts(made, "3"));
  const auto notes = tokenizer_->grammars()->check(made);
  ASSERT_TRUE(notes.ok()) << notes.error().message;
  ASSERT_EQ(notes->size(), 2u);
  EXPECT_THAT(notes->back(), testing::HasSubstr("oneOf is taken as anyOf"));
}

}  // namespace
}  // namespace volley::serve

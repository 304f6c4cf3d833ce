#include "serve/api/tool_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/formats/call_grammar.h"
#include "serve/formats/format_for_test.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using Choice = ToolRequest::Choice;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters":
        {"type": "object", "properties": {"z_city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["z_city"]}}},
      {"type": "function", "function": {"name": "now"}}])";

std::string body(const std::string& fields) {
  return "{\"tools\": " + std::string(kTools) + (fields.empty() ? "" : ", ") + fields + "}";
}

struct Read {
  ToolRequest request;
  std::optional<ApiError> error;
};

Read read(const std::string& text) {
  const json parsed = json::parse(text);
  FieldReader in(parsed);
  Read result;
  read_tools(in, text, result.request);
  result.error = in.error();
  return result;
}

ToolRequest good(const std::string& text) {
  const Read result = read(text);
  EXPECT_FALSE(result.error) << result.error->message;
  return result.request;
}

std::string bad(const std::string& text, const std::string& field) {
  const Read result = read(text);
  EXPECT_TRUE(result.error) << "accepted: " << text;
  if (!result.error) return "";
  EXPECT_EQ(result.error->status, 400);
  EXPECT_EQ(result.error->param, field);
  return result.error->message;
}

std::vector<std::string> names(const ToolRequest& request) {
  std::vector<std::string> all;
  for (const Tool& tool : request.tools) all.push_back(tool.name);
  return all;
}

TEST(ReadTools, WithoutTools) {
  for (const char* text : {"{}", R"({"tools": null, "tool_choice": null})", R"({"tools": []})",
                           R"({"tools": [], "tool_choice": "auto"})", R"({"tool_choice": "none"})"}) {
    const ToolRequest request = good(text);
    EXPECT_EQ(request.choice, Choice::kNone) << text;
    EXPECT_EQ(request.tools_json, "") << text;
  }
}

// Templates print tools, and schemas are generated member by member, so both keep the client's order.
TEST(ReadTools, TextsAreTheClients) {
  const ToolRequest request = good(body(""));
  EXPECT_EQ(request.choice, Choice::kAuto);
  EXPECT_TRUE(request.parallel);
  EXPECT_EQ(request.constrained_by, "");
  EXPECT_EQ(request.tools_json, kTools);
  ASSERT_THAT(names(request), ElementsAre("weather", "now"));
  EXPECT_THAT(request.tools[0].parameters_json, HasSubstr(R"({"z_city": {"type": "string"}, "days")"));
  EXPECT_EQ(json::parse(request.tools[1].parameters_json)["additionalProperties"], false);
}

TEST(ReadTools, Choices) {
  EXPECT_EQ(good(body(R"("tool_choice": "auto")")).choice, Choice::kAuto);
  const ToolRequest required = good(body(R"("tool_choice": "required", "parallel_tool_calls": false)"));
  EXPECT_EQ(required.choice, Choice::kRequired);
  EXPECT_EQ(required.constrained_by, "tool_choice");

  const ToolRequest none = good(body(R"("tool_choice": "none")"));
  EXPECT_EQ(none.choice, Choice::kNone);
  EXPECT_EQ(good(body(R"("tool_choice": "none", "parallel_tool_calls": false)")).constrained_by, "");
  EXPECT_EQ(none.tools_json, "");

  const ToolRequest named = good(body(R"("tool_choice": {"type": "function", "function": {"name": "now"}})"));
  EXPECT_EQ(named.choice, Choice::kRequired);
  EXPECT_FALSE(named.parallel);
  EXPECT_THAT(names(named), ElementsAre("now"));
  EXPECT_EQ(named.tools_json, kTools) << "the model sees all tools";
}

TEST(ReadTools, AllowedTools) {
  const auto allowed = [](const std::string& mode, const std::string& list) {
    return body(R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": ")" + mode + R"(", "tools": [)" +
                list + "]}}");
  };
  const std::string now = R"({"type": "function", "function": {"name": "now"}})";
  const std::string weather = R"({"type": "function", "function": {"name": "weather"}})";
  const ToolRequest one = good(allowed("auto", now));
  EXPECT_EQ(one.choice, Choice::kAuto);
  EXPECT_EQ(one.constrained_by, "tool_choice") << "the model sees all tools and may call one";
  EXPECT_THAT(names(one), ElementsAre("now"));
  EXPECT_EQ(good(allowed("auto", now + "," + weather)).constrained_by, "");
  EXPECT_EQ(good(allowed("required", now)).choice, Choice::kRequired);
  EXPECT_THAT(bad(allowed("auto", ""), "tool_choice"), HasSubstr("allowed_tools"));
  EXPECT_THAT(bad(allowed("none", now), "tool_choice"), HasSubstr("allowed_tools"));
  EXPECT_THAT(bad(allowed("auto", "7"), "tool_choice"), HasSubstr("allowed_tools"));
  EXPECT_THAT(bad(allowed("auto", now + "," + now), "tool_choice"), HasSubstr("\"now\""));
}

TEST(ReadTools, StrictAndSingleCallsAreHeldToTheGrammar) {
  EXPECT_EQ(good(body(R"("parallel_tool_calls": false)")).constrained_by, "parallel_tool_calls");
  const ToolRequest strict =
      good(R"({"tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters": {}}}]})");
  EXPECT_EQ(strict.constrained_by, "tools");
  EXPECT_TRUE(strict.tools[0].strict);
}

TEST(ReadTools, CustomToolsAreFunctionsWithOneText) {
  const auto with = [](const std::string& format, const std::string& more = "") {
    return R"({"tools": [{"type": "function", "function": {"name": "f"}},
                         {"type": "custom", "custom": {"name": "run", "description": "Runs.")" +
           format + "}}]" + more + "}";
  };
  for (const char* format : {"", R"(, "format": null)", R"(, "format": {"type": "text"})"}) {
    const ToolRequest got = good(with(format));
    EXPECT_TRUE(got.tools[1].is_custom);
    EXPECT_FALSE(got.tools[1].input);
    EXPECT_FALSE(got.tools[0].is_custom);
    EXPECT_EQ(json::parse(got.tools_json)[1], json::parse(R"({"type": "function", "function":
        {"name": "run", "description": "Runs.", "parameters": {"type": "object", "properties":
         {"input": {"type": "string"}}, "required": ["input"], "additionalProperties": false}}})"));
    EXPECT_EQ(json::parse(got.tools_json)[0], json::parse(R"({"type": "function", "function": {"name": "f"}})"));
  }
  const ToolRequest lark =
      good(with(R"(, "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a+/"}})",
                R"(, "tool_choice": {"type": "custom", "custom": {"name": "run"}})"));
  EXPECT_EQ(lark.tools[0].input.value().definition, "start: /a+/");
  EXPECT_EQ(lark.choice, Choice::kRequired);
  EXPECT_THAT(names(lark), ElementsAre("run"));
  const ToolRequest allowed =
      good(with(R"(, "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}})",
                R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools":
          {"mode": "auto", "tools": [{"type": "custom", "custom": {"name": "run"}}]}})"));
  EXPECT_EQ(allowed.tools[0].input.value().syntax, TextGrammar::Syntax::kRegex);
  EXPECT_THAT(allowed.tools[0].parameters_json, HasSubstr(R"("pattern":"^(?:a+)$")"));

  for (const char* format : {R"({"type": "xml"})", "7", R"({"type": "grammar"})",
                             R"({"type": "grammar", "grammar": {"syntax": "ebnf", "definition": "x"}})",
                             R"({"type": "grammar", "grammar": {"syntax": "lark"}})"}) {
    EXPECT_THAT(bad(with(R"(, "format": )" + std::string(format)), "tools"), HasSubstr("tools[1].custom.format"));
  }
  EXPECT_THAT(bad(R"({"tools": [{"type": "custom", "custom": {}}]})", "tools"), HasSubstr("tools[0].custom must"));
  for (const char* choice :
       {R"({"type": "custom", "custom": {"name": "f"}})", R"({"type": "function", "function": {"name": "run"}})"}) {
    EXPECT_THAT(bad(with("", R"(, "tool_choice": )" + std::string(choice)), "tool_choice"), HasSubstr("of that name"));
  }
  EXPECT_THAT(bad(with("", R"(, "tool_choice": {"type": "custom"})"), "tool_choice"), HasSubstr("must be"));
}

TEST(ReadTools, Errors) {
  const auto tool = [](const std::string& function) {
    return R"({"tools": [{"type": "function", "function": )" + function + "}]}";
  };
  EXPECT_THAT(bad(R"({"tools": {}})", "tools"), HasSubstr("must be a list"));
  EXPECT_THAT(bad(R"({"tools": [7]})", "tools"), HasSubstr("tools[0]"));
  EXPECT_THAT(bad(R"({"tools": [{"type": "robot", "robot": {"name": "f"}}]})", "tools"), HasSubstr("not supported"));
  EXPECT_THAT(bad(tool("{}"), "tools"), HasSubstr("tools[0].function must be an object with a \"name\""));
  EXPECT_THAT(bad(tool(R"({"name": ""})"), "tools"), HasSubstr("\"name\""));
  EXPECT_THAT(bad(tool(R"({"name": "f", "strict": 1})"), "tools"), HasSubstr("strict"));
  EXPECT_THAT(bad(tool(R"({"name": "f", "parameters": []})"), "tools"), HasSubstr("parameters"));
  EXPECT_THAT(bad(tool(R"({"name": "f", "parameters": {"type": "string"}})"), "tools"), HasSubstr("of an object"));
  EXPECT_THAT(bad(R"({"tools": [{"type": "function", "function": {"name": "f"}},
                                {"type": "function", "function": {"name": "f"}}]})",
                  "tools"),
              HasSubstr("another tool named \"f\""));
  EXPECT_THAT(bad(R"({"tool_choice": "required"})", "tool_choice"), HasSubstr("no \"tools\""));
  EXPECT_THAT(bad(body(R"("tool_choice": "sometimes")"), "tool_choice"), HasSubstr("must be"));
  EXPECT_THAT(bad(body(R"("tool_choice": 7)"), "tool_choice"), HasSubstr("must be"));
  EXPECT_THAT(bad(body(R"("tool_choice": {"type": "function", "function": {"name": "g"}})"), "tool_choice"),
              HasSubstr("names \"g\""));
  EXPECT_THAT(bad(body(R"("tool_choice": {"type": "function"})"), "tool_choice"), HasSubstr("must be"));
  EXPECT_THAT(bad(body(R"("parallel_tool_calls": "no")"), "parallel_tool_calls"), HasSubstr("true or false"));
}

TEST(ToolFormatOfARequest, IsNoneWithoutCalls) {
  const OutputFormat format = format_named("llama");
  EXPECT_EQ(tool_format(good(body("")), format), format.answers);
  EXPECT_EQ(tool_format(good(body(R"("tool_choice": "none")")), format), plain_answers());
  EXPECT_EQ(tool_format(good("{}"), format), plain_answers());
}

TEST(ToolGrammar, OnlyWhereTheModelIsHeld) {
  const OutputFormat format = format_named("hermes");
  for (const char* fields : {"", R"("tool_choice": "auto")", R"("tool_choice": "none")"}) {
    const auto grammar = tool_grammar(good(body(fields)), format, ReasoningStart::kOff);
    ASSERT_TRUE(grammar.ok());
    EXPECT_FALSE(grammar->has_value()) << fields;
  }
  for (const char* fields : {R"("parallel_tool_calls": false)", R"("tool_choice": "required")"}) {
    const auto grammar = tool_grammar(good(body(fields)), format, ReasoningStart::kOff);
    ASSERT_TRUE(grammar.ok());
    ASSERT_TRUE(grammar->has_value()) << fields;
    EXPECT_EQ((*grammar)->kind, GrammarSpec::Kind::kLark);
  }
}

TEST(ToolGrammar, NoParserNoCalls) {
  const auto grammar =
      tool_grammar(good(body(R"("tool_choice": "required")")), format_named("none"), ReasoningStart::kOff);
  ASSERT_FALSE(grammar.ok());
  EXPECT_THAT(grammar.error().message, HasSubstr("--tool-call-parser"));
  EXPECT_TRUE(tool_grammar(good(body("")), format_named("none"), ReasoningStart::kOff).ok());
}

}  // namespace
}  // namespace volley::serve

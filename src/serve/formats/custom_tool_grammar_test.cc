// Inputs of custom tools under their grammars, in every format of calls.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/api/tool_choice.h"
#include "serve/formats/call_grammar.h"
#include "serve/formats/format_for_test.h"
#include "text/grammar_testing.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using Syntax = TextGrammar::Syntax;

constexpr const char* kAuto = R"("tool_choice": "auto")";
constexpr const char* kNamed = R"("tool_choice": {"type": "function", "function": {"name": "edit"}})";
constexpr const char* kRequired = R"("tool_choice": "required")";

// Lines that end, as in patches; braces and slashes are part of the grammar.
constexpr const char* kEdits = R"(start: begin line+ "end" LF?
begin: "edit " /[^\n]+/ LF -> head
line: ("+" | "-") /[^\n]*/ LF // one
%import common.LF)";

// The grammar for the tools "edit", whose input follows `input`, and "find", a function.
Result<std::optional<GrammarSpec>> grammar_of(const char* tools, const char* choice, TextGrammar input) {
  json schema = {{"type", "object"},
                 {"properties", {{"input", {{"type", "string"}}}}},
                 {"required", {"input"}},
                 {"additionalProperties", false}};
  if (input.syntax == Syntax::kRegex) schema["properties"]["input"]["pattern"] = "^(?:" + input.definition + ")$";
  const std::string body = R"({"tools": [{"type": "function", "function": {"name": "edit", "parameters": )" +
                           schema.dump() + R"(}}, {"type": "function", "function": {"name": "find"}}], )" + choice +
                           "}";
  const json parsed = json::parse(body);
  FieldReader in(parsed);
  ToolRequest request;
  read_tools(in, body, request);
  EXPECT_FALSE(in.error()) << in.error()->message;
  for (Tool& tool : request.tools) {
    if (tool.name == "edit") tool.input = input;
  }
  return tool_grammar(request, format_named(tools), ReasoningStart::kOff);
}

std::string hermes(const std::string& input) {
  return "<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"input\": " + json(input).dump() + "}}\n</tool_call>";
}
std::string coder(const std::string& input) {
  return "<tool_call>\n<function=edit>\n<parameter=input>\n" + input + "\n</parameter>\n</function>\n</tool_call>";
}

class CustomToolGrammar : public text::GrammarTest {
 protected:
  static GrammarSpec made(const char* tools, const char* choice, TextGrammar input) {
    const auto grammar = grammar_of(tools, choice, std::move(input));
    EXPECT_TRUE(grammar.ok() && grammar->has_value());
    return grammar.ok() && *grammar ? **grammar : GrammarSpec{};
  }
  static void expect(const GrammarSpec& grammar, bool accepted, const std::vector<std::string>& texts) {
    for (const std::string& text : texts) EXPECT_EQ(accepts(grammar, text), accepted) << text << "\n\n" << grammar.text;
  }
};

TEST_F(CustomToolGrammar, LarkHoldsTextsThatAreWrittenAsTheyAre) {
  for (const char* choice : {kAuto, kNamed, kRequired}) {
    const GrammarSpec grammar = made("qwen3_coder", choice, {Syntax::kLark, kEdits});
    expect(grammar, true,
           {coder("edit a.txt\n+x\nend"), coder("edit a b\n-\n+{\"/\"}\n+</parameter>\nend\n"),
            coder("edit é\n+<parameter=input>\nend")});
    expect(grammar, false,
           {coder(""), coder("edit a.txt\nend"), coder("edit \n+x\nend"), coder("x\n+x\nend"), coder("edit a\n+x"),
            coder("edit a\n*x\nend"), coder("edit a\n+x\nend\n\n")});
  }
  const GrammarSpec free = made("qwen3_coder", kAuto, {Syntax::kLark, kEdits});
  expect(free, true,
         {"", "Hello.", "So: " + coder("edit a\n+x\nend"), "<tool_call>\n<function=find>\n</function>\n</tool_call>"});
}

TEST_F(CustomToolGrammar, ExpressionsHoldTextsInEveryFormat) {
  const TextGrammar path{Syntax::kRegex, R"(/[a-z"\\]+(/\d{2}){1,2}|\n\.)"};
  const std::vector<std::string> right = {"/a/12", "/a\"\\b/12/34", "\n."};
  const std::vector<std::string> wrong = {"", "/a/1", "a/12", "/a/12/34/56", "/a/12\n", ".", "\n", " /a/12"};
  for (const char* choice : {kAuto, kNamed, kRequired}) {
    const GrammarSpec as_json = made("hermes", choice, path);
    const GrammarSpec as_text = made("qwen3_coder", choice, path);
    for (const std::string& text : right) {
      expect(as_json, true, {hermes(text)});
      expect(as_text, true, {coder(text)});
    }
    for (const std::string& text : wrong) {
      expect(as_json, false, {hermes(text)});
      expect(as_text, false, {coder(text)});
    }
  }
  const std::string called = R"({"name": "edit", "parameters": {"input": "/a/12"}})";
  expect(made("llama", kNamed, path), true, {called});
  expect(made("mistral", kNamed, path), true, {R"([TOOL_CALLS][{"name": "edit", "arguments": {"input": "/a/12"}}])"});
}

// A JSON string cannot follow one: the model is free unless the call is required, and then the client is told.
TEST_F(CustomToolGrammar, LarkInStringsIsForTheModelToFollow) {
  for (const char* tools : {"hermes", "llama", "mistral"}) {
    const TextGrammar edits{Syntax::kLark, kEdits};
    const auto free = grammar_of(tools, kAuto, edits);
    ASSERT_TRUE(free.ok());
    EXPECT_FALSE(free->has_value());
    EXPECT_TRUE(grammar_of(tools, kRequired, edits).ok()) << "it may call the other one";
    const auto forced = grammar_of(tools, kNamed, edits);
    ASSERT_FALSE(forced.ok());
    EXPECT_EQ(forced.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(forced.error().message.find("\"edit\""), std::string::npos) << forced.error().message;
  }
}

TEST_F(CustomToolGrammar, AGrammarThatIsNoneIsRefused) {
  EXPECT_NE(error_of(made("qwen3_coder", kAuto, {Syntax::kLark, "start: missing"})), "");
  EXPECT_NE(error_of(made("qwen3_coder", kAuto, {Syntax::kLark, "start: \"a\" }"})), "");
  EXPECT_NE(error_of(made("qwen3_coder", kAuto, {Syntax::kRegex, "a("})), "");
  EXPECT_NE(error_of(made("qwen3_coder", kAuto, {Syntax::kRegex, "a\\"})), "");
}

}  // namespace
}  // namespace volley::serve

#include "serve/formats/call_grammar.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "serve/formats/tool_parameters.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using Choice = ToolRequest::Choice;

std::string object_options(const ToolRequest& request) {
  return request.open_objects ? R"(, "open_objects": true)" : "";
}

// A schema with the call's own separators and `more` members; `options` are textkit's options beside a schema. With
// white space anywhere, a grammar could not continue from the schema's end in the middle of a token such as "}}".
std::string with_separators(const std::string& schema_json, const std::string& options, const std::string& more = "") {
  std::string schema =
      R"({"x-guidance": {"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ")" + options + "}" +
      more;
  for (const auto& [key, value] : object_members(schema_json)) {
    if (key == "x-guidance") continue;
    schema.append(", ").append(json_quote(key)).append(": ").append(value);
  }
  return schema + "}";
}

// In JSON's quotes a schema can apply a regular expression. A Lark grammar needs unquoted text.
bool holds(const TextGrammar& input, const AnswerFormat& format) {
  return format.calls() && (input.syntax == TextGrammar::Syntax::kRegex || format.writes_bare_text());
}

}  // namespace

CallGrammar::CallGrammar(const ToolRequest& tools, const OutputFormat& format, ReasoningStart start, Answer otherwise)
    : request(tools),
      answer(otherwise),
      think(format.answers->think_rules(start, format.think_tokens)),
      parallel(tools.parallel && format.several_calls),
      format_(*format.answers) {}

std::string CallGrammar::write() {
  rules = think.rules;
  const std::string start = format_.answer_rule(*this);
  std::string choices;
  for (size_t i = 0; i < request.tools.size(); ++i) {
    const std::string index = std::to_string(i);
    choices += (i > 0 ? " | tool_" : "tool_") + index;
    format_.add_tool(*this, request.tools[i], index);
  }
  rules += "object: " + choices + "\n";
  return think.start + start + "\n" + rules;
}

std::string CallGrammar::calls(const std::string& separator) const {
  return parallel ? "call (" + separator + " call)*" : "call";
}

void CallGrammar::text_without(std::string_view marker) {
  rules += "TEXT: /(?s:.+)/ & ~/(?s:.*)" + regex_escape(marker) + "(?s:.*)/\n";
}

void CallGrammar::text_up_to(std::string_view marker) {
  rules += "to_call[lazy]: /(?s:.*)" + regex_escape(marker) + "/\n";
}

std::string CallGrammar::arguments_schema(const Tool& tool) const {
  const auto members = object_members(tool.parameters_json);
  const bool typed = std::any_of(members.begin(), members.end(), [](const auto& m) { return m.first == "type"; });
  return schema(tool.parameters_json, tool, "the arguments", R"({"type": "object"})",
                typed ? "" : R"(, "type": "object")");
}

std::string CallGrammar::schema(const std::string& schema_json, const Tool& tool, const std::string& what,
                                const std::string& otherwise, const std::string& more) const {
  const bool forced = request.choice == Choice::kRequired && request.tools.size() == 1;
  std::string options =
      object_options(request) + R"(, "whose": )" + json_quote(what + " of the tool " + json_quote(tool.name));
  if (!tool.strict && !forced) options += R"(, "otherwise": )" + otherwise;
  return with_separators(schema_json, options, more);
}

std::string regex_escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c)) && c != '_' && c != '<' && c != '>') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string plain_schema(const std::string& schema_json, const ToolRequest& request) {
  return with_separators(schema_json, object_options(request));
}

std::shared_ptr<const AnswerFormat> tool_format(const ToolRequest& request, const OutputFormat& format) {
  return request.choice == Choice::kNone ? format.answers->without_calls() : format.answers;
}

std::shared_ptr<const ToolTypes> tool_types(const ToolRequest& request, const OutputFormat& format) {
  if (!format.answers->reads_types()) return nullptr;
  auto types = std::make_shared<ToolTypes>();
  for (const Tool& tool : request.tools) {
    auto& parameters = (*types)[tool.name];
    for (const ToolParameter& p : tool_parameters(tool.parameters_json).listed) parameters[p.name] = p.types;
  }
  return types;
}

Result<std::optional<GrammarSpec>> tool_grammar(const ToolRequest& request, const OutputFormat& format,
                                                ReasoningStart reasoning) {
  const bool custom = std::ranges::any_of(
      request.tools, [&](const Tool& tool) { return tool.input && holds(*tool.input, *format.answers); });
  if (request.constrained_by.empty() && !custom) return std::optional<GrammarSpec>();
  if (!format.answers->calls()) {
    return invalid_argument(
        "This server does not parse tool calls, so it cannot hold the model to one. Leave out \"tools\", or start it "
        "with --tool-call-parser.");
  }
  if (request.choice == Choice::kRequired && request.tools.size() == 1) {
    const Tool& forced = request.tools.front();
    if (forced.input && !holds(*forced.input, *format.answers)) {
      return invalid_argument(
          "The tool " + json_quote(forced.name) +
          " has a Lark grammar, and this model writes inputs as strings of JSON, which cannot be "
          "held to one. Leave \"tool_choice\" to the model, or give the tool a regular expression.");
    }
  }
  GrammarSpec grammar;
  grammar.kind = GrammarSpec::Kind::kLark;
  const auto answer = request.choice == Choice::kAuto ? CallGrammar::Answer::kFree : CallGrammar::Answer::kNone;
  grammar.text = "start: " + CallGrammar(request, format, reasoning, answer).write();
  return std::optional(std::move(grammar));
}

bool may_call_instead(const ToolRequest& request, const OutputFormat& format, ReasoningStart reasoning) {
  // In a format with marked messages, a message that the prompt has begun is the answer.
  const bool begun = !format.answers->marks().empty() && reasoning == ReasoningStart::kOff;
  return request.choice == Choice::kAuto && format.answers->calls() && !begun;
}

GrammarSpec calls_or(GrammarSpec answer, const ToolRequest& request, const OutputFormat& format,
                     ReasoningStart reasoning) {
  answer = format.answers->beside_calls(std::move(answer), request);
  answer.lead = "whole: " + CallGrammar(request, format, reasoning, CallGrammar::Answer::kRule).write();
  return answer;
}

bool may_hold_calls(const GrammarSpec& grammar) {
  return grammar.kind != GrammarSpec::Kind::kJsonObject && grammar.kind != GrammarSpec::Kind::kJsonSchema &&
         grammar.kind != GrammarSpec::Kind::kChoice;
}

GrammarSpec after_reasoning(GrammarSpec grammar, const OutputFormat& format, ReasoningStart reasoning) {
  // The prompt holds the answer's beginning, so no thoughts come before it.
  if (reasoning == ReasoningStart::kOff) return grammar;
  const ThinkRules think = format.answers->think_rules(reasoning, format.think_tokens);
  const bool own = grammar.kind == GrammarSpec::Kind::kLark || grammar.kind == GrammarSpec::Kind::kEbnf;
  if (!own) grammar.lead = "lead: " + think.start + think.answer + "\n" + think.rules;
  return grammar;
}

}  // namespace volley::serve

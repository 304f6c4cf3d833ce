#include "serve/formats/tagged_calls.h"

#include <algorithm>

#include "serve/formats/call_grammar.h"
#include "serve/formats/tool_parameters.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

// Writes a regular expression between a Lark terminal's slashes.
std::string between_slashes(std::string_view expression) {
  std::string escaped;
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression[i] == '/') escaped += '\\';
    escaped += expression[i];
    if (expression[i] == '\\' && i + 1 < expression.size()) escaped += expression[++i];
  }
  return escaped;
}

constexpr int kDeepest = 8;  // values deeper inside a schema are free, because schemas may be recursive
constexpr size_t kMostRules = size_t{1} << 18;  // textkit refuses longer grammars: no more is written then

// A schema of any value of these types.
std::string schema_of(unsigned types) {
  std::string names;
  for (const auto& [type, name] :
       {std::pair{kJsonString, "string"}, {kJsonNumber, "number"}, {kJsonBoolean, "boolean"}, {kJsonNull, "null"}}) {
    if ((types & type) != 0) names += std::string(names.empty() ? "\"" : ", \"") + name + "\"";
  }
  return R"({"type": [)" + names + "]}";
}

}  // namespace

TaggedCalls::TaggedCalls(const FormatProbe& probe, const CallMarks& marks,
                         std::initializer_list<std::string_view> others)
    : AnswerFormat(true), marks_(marks) {
  const ThinkTags think;  // these are no marks of calls, but grammars ask for them, too
  std::vector<std::string_view> all = {marks.section,  marks.section_end, marks.call,
                                       marks.call_end, think.begin,       think.end};
  all.insert(all.end(), others);
  for (const std::string_view mark : all) {
    // Ends of names and keys, such as ">", are letters like others.
    const bool is_mark = mark.starts_with('<') && mark.ends_with('>');
    const auto token = is_mark ? probe.token(mark) : std::nullopt;
    if (!token || !tokens_.emplace(mark, *token).second) continue;
    if (!probe.shows(mark)) hidden_.push_back(*token);
  }
}

// Thoughts between marks that text hides are still told from content.
std::shared_ptr<const AnswerFormat> TaggedCalls::without_calls() const {
  if (hidden_.empty()) return AnswerFormat::without_calls();
  auto same = std::make_shared<TaggedCalls>(*this);
  same->calls_ = false;
  return same;
}

CallTags TaggedCalls::call_tags() const {
  if (!calls_) return {};
  if (!marks_.section.empty()) return {marks_.section, marks_.section_end};
  return {marks_.call, marks_.call_end};
}

bool TaggedCalls::hides(std::string_view mark) const {
  const auto token = tokens_.find(mark);
  return token != tokens_.end() && std::ranges::count(hidden_, token->second) > 0;
}

void TaggedCalls::plan(bool, GenerateRequest& request, OutputParser::Options&) const {
  if (!hidden_.empty()) request.parts.emplace().marks = hidden_;
}

std::string_view TaggedCalls::spelling(TokenId token) const {
  const auto found = std::ranges::find(tokens_, token, [](const auto& mark) { return mark.second; });
  return found == tokens_.end() ? std::string_view() : found->first;
}

std::string TaggedCalls::spelt(std::initializer_list<std::string_view> parts) const {
  std::string symbols, letters;
  const auto end_letters = [&] {
    if (!letters.empty()) symbols += json_quote(std::exchange(letters, {})) + " ";
  };
  for (const std::string_view part : parts) {
    if (const auto token = tokens_.find(part); token != tokens_.end()) {
      end_letters();
      symbols += token_terminal(token->second) + " ";
    } else {
      letters += part;
    }
  }
  end_letters();
  return symbols;
}

std::string TaggedCalls::ends_text(const std::string& rule, std::string_view expression, std::string_view mark) const {
  // A mark that text hides has no letters.
  if (hides(mark)) {
    const std::string text = expression == kAnyText ? "/(?s:.+)/?" : "/" + std::string(expression) + "/";
    return rule + ": " + text + " " + spelt({mark}) + "\n";
  }
  return rule + "[lazy]: /" + std::string(expression) + regex_escape(mark) + "/\n";
}

std::string TaggedCalls::input_rule(const std::string& rule, const TextGrammar& input, std::string_view line,
                                    std::string_view mark) const {
  if (input.syntax == TextGrammar::Syntax::kLark) {
    return rule + ": %lark {\n" + input.definition + "\n} " + spelt({line, mark}) + "\n";
  }
  return ends_text(rule, "(?:" + between_slashes(input.definition) + ")" + (line.empty() ? "" : "\\n"), mark);
}

std::string TaggedCalls::calls_rule(CallGrammar& grammar, bool free) const {
  const std::string_view first = marks_.section.empty() ? marks_.call : marks_.section;
  const std::string_view last = marks_.section.empty() ? marks_.call_end : marks_.section_end;
  // Allows any text, but a mark must be followed by a call. Without a token for it, the mark ends the text.
  const bool lazy = free && !tokens_.contains(first);
  if (free) grammar.text_without(first);
  if (lazy) grammar.text_up_to(first);
  // `trail` is a symbol of its own: the lexer could not tell one that begins with `between` from it.
  const std::string between = spelt({marks_.between});
  const bool more = marks_.several && grammar.parallel;
  grammar.rules += "call: " + (lazy ? "to_call " + spelt({marks_.lead}) : spelt({first, marks_.lead})) + "object " +
                   (more ? "(" + between + "object)* " : "") + spelt({marks_.trail}) + spelt({last}) + "\n";
  if (!free) return marks_.several ? "call" : grammar.calls(between);
  if (lazy) return grammar.parallel ? "call* TEXT?" : "(call | TEXT)?";
  return grammar.parallel ? "TEXT? (call TEXT?)*" : "TEXT? call?";
}

std::string LiteralCalls::calls_rule(CallGrammar& grammar, bool free) const {
  if (style_) add_values(grammar);
  return TaggedCalls::calls_rule(grammar, free);
}

void LiteralCalls::add_values(CallGrammar& grammar) const {
  const bool python = style_->is_python();
  const std::string comma = json_quote(style_->comma), colon = json_quote(style_->colon);
  const auto list = [&](const char* open, const std::string& item, const char* close) {
    return "\"" + std::string(open) + "\" (" + item + " (" + comma + " " + item + ")*)? \"" + close + "\"";
  };
  if (!python) {
    grammar.rules += "quoted: " + spelt({style_->quote}) + "quoted_text\n";
    grammar.rules += ends_text("quoted_text", kAnyText, style_->quote);
  } else {
    grammar.rules += "keywords: " + list("(", "keyword", ")") + "\n";
    grammar.rules += "keyword: /[A-Za-z_][A-Za-z0-9_]*/ \"=\" any\n";
    grammar.rules += "key: %json {\"type\": \"string\"}\n";
  }
  grammar.rules += "any: scalar | members | " + list("[", "any", "]") +
                   (python ? R"( | "True" | "False" | "None")" : " | quoted") + "\n";
  grammar.rules += "members: " + list("{", "member", "}") + "\n";
  grammar.rules += "member: " + std::string(python ? "key " : "/[^{}\\[\\],:<\"]+/ ") + colon + " any\n";
  grammar.rules += "scalar: %json " + schema_of(style_->json) + "\n";
}

void LiteralCalls::add_tool(CallGrammar& grammar, const Tool& tool, const std::string& index) const {
  if (!style_) return AnswerFormat::add_tool(grammar, tool, index);
  const std::string rule = "arguments_" + index;
  grammar.rules += "tool_" + index + ": " + spelt({style_->prefix, tool.name}) + rule + "\n";
  add_members(grammar, tool, tool.parameters_json, rule, 0);
}

// Adds the rule for an object of the schema, or (depth 0) for the arguments.
void LiteralCalls::add_members(CallGrammar& grammar, const Tool& tool, const std::string& schema,
                               const std::string& rule, int depth) const {
  const bool keywords = style_->is_python() && depth == 0;
  std::string objects;
  int number = 0;
  for (const ToolParameters& signature : tool_signatures(schema)) {
    objects += objects.empty() ? "" : " | ";
    if (signature.any_other) {
      objects += keywords ? "keywords" : "members";
      continue;
    }
    const std::string prefix = rule + "_" + std::to_string(number++) + "_";
    const size_t count = signature.listed.size();
    // Rule N has what follows member N - 1; `first` has what may come first.
    std::string first;
    bool may_be_first = true;
    for (size_t i = 0; i < count; ++i) {
      const ToolParameter& parameter = signature.listed[i];
      const std::string member = prefix + std::to_string(i), more = prefix + "behind_";
      const std::string comma = i == 0 ? "" : json_quote(style_->comma) + " " + member;
      add_member(grammar, tool, parameter, member, depth);
      const std::string next = i + 1 < count ? " " + more + std::to_string(i + 1) : "";
      if (i > 0) {
        grammar.rules +=
            more + std::to_string(i) + ": " + (parameter.required ? comma : "(" + comma + ")?") + next + "\n";
      }
      if (may_be_first) first += (first.empty() ? "" : " | ") + member + next;
      may_be_first = may_be_first && !parameter.required;
    }
    objects += (keywords ? "\"(\" " : "\"{\" ") +
               (first.empty() ? "" : "(" + first + ")" + (may_be_first ? "? " : " ")) + (keywords ? "\")\"" : "\"}\"");
  }
  grammar.rules += rule + ": " + objects + "\n";
}

void LiteralCalls::add_member(CallGrammar& grammar, const Tool& tool, const ToolParameter& parameter,
                              const std::string& rule, int depth) const {
  const std::string key = !style_->is_python() ? parameter.name + std::string(style_->colon)
                          : depth == 0         ? parameter.name + "="
                                               : json_quote(parameter.name) + std::string(style_->colon);
  grammar.rules += rule + ": " + spelt({key}) + "value_" + rule + "\n";
  if (tool.input && depth == 0 && !style_->is_python()) {
    grammar.rules += "value_" + rule + ": " + spelt({style_->quote}) + "input_" + rule + "\n" +
                     input_rule("input_" + rule, *tool.input, "", style_->quote);
  } else {
    add_value(grammar, tool, parameter, "value_" + rule, depth);
  }
}

void LiteralCalls::add_value(CallGrammar& grammar, const Tool& tool, const ToolParameter& parameter,
                             const std::string& rule, int depth) const {
  const std::string schema = with_definitions(parameter.schema_json, tool.parameters_json);
  const bool is_free = depth > kDeepest || grammar.rules.size() > kMostRules;
  const unsigned types = is_free ? unsigned{kNoJsonType} : parameter.types;
  const unsigned words = types & ~style_->json;  // JSON would write them otherwise
  std::string values;
  const auto add = [&](const std::string& value) { values += (values.empty() ? "" : " | ") + value; };
  if ((words & kJsonString) != 0) {
    if (parameter.texts.empty()) add("quoted");
    for (const std::string& text : parameter.texts) add(spelt({style_->quote, text, style_->quote}));
  }
  if ((words & kJsonBoolean) != 0) add(R"("True" | "False")");
  if ((words & kJsonNull) != 0) add("\"None\"");
  if ((types & style_->json) != 0) {
    add("scalar_" + rule);
    const std::string of_types = schema_of(types & style_->json);
    const std::string scalars = words == 0 ? schema
                                           : with_definitions(of_types.substr(0, of_types.size() - 1) +
                                                                  R"(, "allOf": [)" + parameter.schema_json + "]}",
                                                              tool.parameters_json);
    grammar.rules +=
        "scalar_" + rule + ": %json " +
        grammar.schema(scalars, tool, "the parameter " + json_quote(parameter.name), words == 0 ? "{}" : of_types) +
        "\n";
  }
  if ((types & kJsonObject) != 0) {
    add("object_" + rule);
    add_members(grammar, tool, schema, "object_" + rule, depth + 1);
  }
  if ((types & kJsonArray) != 0) {
    const std::string item = "item_" + rule;
    add("\"[\" (" + item + " (" + json_quote(style_->comma) + " " + item + ")*)? \"]\"");
    const std::string_view items = find_member(schema, "items");
    const std::string holder = with_definitions(
        R"({"properties": {"item": )" + std::string(items.empty() ? "true" : items) + "}}", tool.parameters_json);
    add_value(grammar, tool, tool_signatures(holder).front().listed.front(), item, depth + 1);
  }
  grammar.rules += rule + ": " + (values.empty() ? "any" : values) + "\n";
}

}  // namespace volley::serve

#include "serve/api/custom_tool.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

// Length of the escape at the start of `text`, with both halves of a surrogate pair. 0: it is not complete.
size_t escape_length(std::string_view text) {
  constexpr size_t kShort = 2, kUnicode = 6;  // \n, \u00e9
  constexpr std::string_view kMark = "\\u";
  if (text.size() < kShort) return 0;
  if (text[1] != 'u') return kShort;
  if (text.size() < kUnicode) return 0;
  const auto is_one_of = [&](size_t at, std::string_view letters) { return letters.find(text[at]) != letters.npos; };
  if (!is_one_of(2, "dD") || !is_one_of(3, "89abAB")) return kUnicode;
  const std::string_view next = text.substr(kUnicode, kMark.size());
  if (next != kMark) return kMark.starts_with(next) ? 0 : kUnicode;
  return text.size() < 2 * kUnicode ? 0 : 2 * kUnicode;
}

bool read_format(const json& format, std::optional<TextGrammar>& grammar) {
  if (format.is_null()) return true;
  const std::string type = text_member(format, "type");
  if (type == "text") return true;
  if (type != "grammar") return false;
  const json inner = format.value("grammar", json());
  const json& members = inner.is_object() ? inner : format;
  const std::string syntax = text_member(members, "syntax"), definition = text_member(members, "definition");
  if ((syntax != "lark" && syntax != "regex") || definition.empty()) return false;
  grammar = {syntax == "lark" ? TextGrammar::Syntax::kLark : TextGrammar::Syntax::kRegex, definition};
  return true;
}

ShownTool shown(std::string name, std::string_view description, std::string_view parameters, bool strict) {
  constexpr const char* kNoParameters = R"({"type": "object", "properties": {}, "additionalProperties": false})";
  std::string text = R"({"type":"function","function":{"name":)" + json_quote(name);
  if (!description.empty()) text.append(R"(,"description":)").append(description);
  if (!parameters.empty()) text.append(R"(,"parameters":)").append(parameters);
  if (strict) text.append(R"(,"strict":true)");
  return {{std::move(name), std::string(parameters.empty() ? kNoParameters : parameters), strict}, text + "}}"};
}

}  // namespace

std::variant<ShownTool, std::string> function_tool(std::string name, std::string_view description, const json& tool,
                                                   std::string_view raw, const char* schema) {
  const json& parameters = member_of(tool, schema);
  const json& strict = member_of(tool, "strict");
  const bool of_object = parameters.is_object() && parameters.value("type", json("object")) == "object";
  if (!parameters.is_null() && !of_object) return "." + std::string(schema) + " must be a JSON schema of an object.";
  if (!strict.is_boolean() && !strict.is_null()) return ".strict must be true or false.";
  return shown(std::move(name), description, parameters.is_null() ? "" : find_member(raw, schema), strict == true);
}

std::optional<ShownTool> custom_tool(std::string name, std::string description, const json& format) {
  std::optional<TextGrammar> grammar;
  if (!read_format(format, grammar)) return std::nullopt;
  std::string pattern;
  if (grammar) {
    const bool lark = grammar->syntax == TextGrammar::Syntax::kLark;
    if (!description.empty()) description += "\n\n";
    description += (lark ? "\"input\" follows this Lark grammar:\n" : "\"input\" matches this regular expression: ") +
                   grammar->definition;
    if (!lark) pattern = R"(,"pattern":)" + json_quote("^(?:" + grammar->definition + ")$");
  }
  ShownTool out = shown(std::move(name), description.empty() ? "" : json_quote(description),
                        R"({"type":"object","properties":{"input":{"type":"string")" + pattern +
                            R"(}},"required":["input"],"additionalProperties":false})",
                        false);
  out.tool.input = std::move(grammar);
  out.tool.is_custom = true;
  return out;
}

std::string CustomInput::push(std::string_view arguments) {
  std::string out;
  if (state_ == State::kOver) return out;
  pending_ += arguments;
  if (state_ == State::kHead) read_head();
  if (state_ == State::kText) read_text(out);
  return out;
}

// Matches {"input": " with white space anywhere.
void CustomInput::read_head() {
  static constexpr std::string_view kTokens[] = {"{", "\"input\"", ":", "\""};
  std::string_view rest = pending_;
  for (const std::string_view token : kTokens) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
    if (!rest.starts_with(token)) {
      if (!token.starts_with(rest)) state_ = State::kOther;
      return;
    }
    rest.remove_prefix(token.size());
  }
  pending_.erase(0, pending_.size() - rest.size());
  state_ = State::kText;
}

// Reads up to the closing quote, and leaves an incomplete escape.
void CustomInput::read_text(std::string& out) {
  size_t at = 0;
  while (at < pending_.size() && pending_[at] != '"') {
    if (pending_[at] != '\\') {
      out += pending_[at++];
      continue;
    }
    const size_t length = escape_length(std::string_view(pending_).substr(at));
    if (length == 0) break;
    const std::string escape = pending_.substr(at, length);
    const json decoded = json::parse("\"" + escape + "\"", nullptr, /*allow_exceptions=*/false);
    out += decoded.is_string() ? decoded.get<std::string>() : escape;
    at += length;
  }
  if (at < pending_.size() && pending_[at] == '"') state_ = State::kOver;
  pending_.erase(0, at);
}

std::string CustomInput::finish() {
  const State state = std::exchange(state_, State::kOver);
  if (state == State::kOver) return {};
  if (state == State::kText) return {};  // half of an escape is no text
  const json whole = read_json(pending_);
  if (whole.is_object()) {
    if (const auto input = whole.find("input"); input != whole.end() && input->is_string())
      return input->get<std::string>();
    if (whole.size() == 1 && whole.front().is_string()) return whole.front().get<std::string>();
    if (whole.empty()) return {};
  }
  return std::exchange(pending_, {});
}

std::string custom_arguments(std::string_view input) {
  return R"({"input":)" + json_quote(input) + "}";
}

}  // namespace volley::serve

#include "serve/reasoning_grammar.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace volley::serve {
namespace {

using nlohmann::json;
using Kind = GrammarSpec::Kind;

// A regular expression as Lark writes it, between slashes and on one line.
std::string lark_regex(const std::string& regex) {
  std::string out = "/";
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\' && i + 1 < regex.size()) {
      out += c;
      out += regex[++i];
    } else if (c == '/') {
      out += "\\/";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "/";
}

std::string lark_choice(const std::vector<std::string>& choices) {
  std::string out;
  for (const std::string& choice : choices) {
    if (!out.empty()) out += " | ";
    out += json(choice).dump(-1, ' ', false, json::error_handler_t::replace);
  }
  return out;
}

}  // namespace

ThinkRules think_rules(const OutputFormat& format, ReasoningStart reasoning) {
  if (reasoning == ReasoningStart::kOff) return {};
  const bool open = reasoning == ReasoningStart::kOpen;
  ThinkRules think;
  think.start = open ? "think " : "think? ";
  if (format.think_tokens) {
    think.rules = std::string("think: ") + (open ? "" : "<think> ") + "/(?s:.+)/? </think> SPACE?\n";
  } else {
    think.rules = "think: thought SPACE?\n";
    think.rules += std::string("thought[lazy]: /") + (open ? "" : "<think>") + "(?s:.*)<\\/think>/\n";
  }
  think.rules += "SPACE: /[ \\t\\r\\n]+/\n";
  return think;
}

GrammarSpec after_reasoning(GrammarSpec grammar, const OutputFormat& format, ReasoningStart reasoning) {
  const ThinkRules think = think_rules(format, reasoning);
  if (think.start.empty()) return grammar;
  std::string answer;
  switch (grammar.kind) {
    case Kind::kJsonObject:
      answer = R"(%json {"type": "object"})";
      break;
    case Kind::kJsonSchema:
      answer = "%json " + grammar.text;
      break;
    case Kind::kRegex:
      answer = lark_regex(grammar.text);
      break;
    case Kind::kChoice:
      answer = lark_choice(grammar.choices);
      break;
    case Kind::kLark:
    case Kind::kEbnf:
      return grammar;
  }
  GrammarSpec whole;
  whole.kind = Kind::kLark;
  whole.text = "start: " + think.start + "answer\n" + think.rules + "answer: " + answer + "\n";
  return whole;
}

}  // namespace volley::serve

#include "serve/reasoning_grammar.h"

namespace volley::serve {

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
  const bool own = grammar.kind == GrammarSpec::Kind::kLark || grammar.kind == GrammarSpec::Kind::kEbnf;
  if (!own && !think.start.empty()) grammar.lead = "lead: " + think.start + "\n" + think.rules;
  return grammar;
}

}  // namespace volley::serve

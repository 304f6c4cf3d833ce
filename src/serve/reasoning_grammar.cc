#include "serve/reasoning_grammar.h"

#include "serve/harmony.h"

namespace volley::serve {
namespace {

// Messages of thoughts, then the next message's head. Where the prompt ended in a body (kOpen: of thoughts, kOff: of
// the answer), that ends first.
ThinkRules harmony_rules(const HarmonyTokens& tokens, ReasoningStart reasoning) {
  const auto token = [&](HarmonyMark mark) { return "<[" + std::to_string(tokens.id_of(mark)) + "]> "; };
  const std::string body = token(HarmonyMark::kMessage) + "/(?s:.+)/? ";
  const std::string next = token(HarmonyMark::kEnd) + token(HarmonyMark::kStart) + "\"assistant\" ";
  ThinkRules think;
  think.start = reasoning == ReasoningStart::kClosed ? "thought* " : "/(?s:.+)/? " + next + "thought* ";
  think.rules = "thought: " + token(HarmonyMark::kChannel) + "\"analysis\" " + body + next + "\n";
  think.answer = token(HarmonyMark::kChannel) + "\"final\" " + token(HarmonyMark::kMessage);
  return think;
}

}  // namespace

ThinkRules think_rules(const OutputFormat& format, ReasoningStart reasoning) {
  if (format.harmony) return harmony_rules(*format.harmony, reasoning);
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

bool may_hold_calls(const GrammarSpec& grammar) {
  return grammar.kind != GrammarSpec::Kind::kJsonObject && grammar.kind != GrammarSpec::Kind::kJsonSchema &&
         grammar.kind != GrammarSpec::Kind::kChoice;
}

GrammarSpec after_reasoning(GrammarSpec grammar, const OutputFormat& format, ReasoningStart reasoning) {
  // An answer of which the prompt holds the beginning has no thoughts before it.
  if (format.harmony && reasoning == ReasoningStart::kOff) return grammar;
  const ThinkRules think = think_rules(format, reasoning);
  const bool own = grammar.kind == GrammarSpec::Kind::kLark || grammar.kind == GrammarSpec::Kind::kEbnf;
  if (!own && !think.start.empty()) grammar.lead = "lead: " + think.start + think.answer + "\n" + think.rules;
  return grammar;
}

}  // namespace volley::serve

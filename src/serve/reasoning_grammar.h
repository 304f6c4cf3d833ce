// Grammars in llguidance's Lark dialect for models that think before they answer. Pure functions.
#pragma once

#include <volley/engine.h>

#include <string>

#include "serve/output_format.h"
#include "serve/output_parser.h"

namespace volley::serve {

// The part of a grammar that lets the model think first.
struct ThinkRules {
  std::string start;  // what stands at the beginning of the rule `start`; empty: the model does not think
  std::string rules;  // the rules that it needs
  // Behind the thoughts: what leads to the text of the answer, where a message of its own does.
  std::string answer = {};
};
ThinkRules think_rules(const OutputFormat& format, ReasoningStart reasoning);

// Whether an answer under the grammar may have tool calls in it. A client's own grammar (Lark, EBNF) may be one of
// calls. JSON and one of a few texts are what the answer must be, and nothing else.
bool may_hold_calls(const GrammarSpec& grammar);

// Holds what follows the reasoning to `grammar`, and the reasoning to nothing. Grammars that are a client's own (Lark,
// EBNF) come back as they are: they are on all of the text.
GrammarSpec after_reasoning(GrammarSpec grammar, const OutputFormat& format, ReasoningStart reasoning);

}  // namespace volley::serve

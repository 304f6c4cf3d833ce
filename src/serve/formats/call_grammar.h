// Grammars that constrain a model to calls of a request's tools, and that let it think first. Pure functions.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/api/tool_choice.h"
#include "serve/formats/answer_format.h"

namespace volley::serve {

// The format for this request's answers: one without calls if no tool may be called.
std::shared_ptr<const AnswerFormat> tool_format(const ToolRequest& request, const OutputFormat& format);

// OutputParser's facts of the tools in this format; null if it needs none.
std::shared_ptr<const ToolTypes> tool_types(const ToolRequest& request, const OutputFormat& format);

// A kLark grammar over the whole generated text, reasoning included; arguments follow the tools' schemas. Nothing where
// the model is free: no tools, or kAuto without `constrained_by` and without a custom tool whose input can be
// constrained. With one of these, kAuto leaves text free, and a call that the model begins must have its form. Members
// are written with ", " and ": ", as Python prints JSON and as these models were trained. Bare text values follow an
// "enum" or a "const" of their schema, but no pattern or length. Inputs of custom tools follow their regular
// expressions, and Lark if the format writes unquoted text.
// kInvalidArgument: calls are required but the server's format has none, or a required custom tool's input cannot be
// constrained. A schema that cannot be enforced fails at submit if its tool is strict or the only one of a request that
// requires a call; otherwise that tool's arguments are any object.
Result<std::optional<GrammarSpec>> tool_grammar(const ToolRequest& request, const OutputFormat& format,
                                                ReasoningStart reasoning);

// Whether this request's answer may be calls, or a text of the form that the request has beside the tools.
bool may_call_instead(const ToolRequest& request, const OutputFormat& format, ReasoningStart reasoning);

// `answer`, JSON or one of a few texts, or calls in its place; arguments follow the tools' schemas. Where calls are
// bare JSON, all JSON is written with ", " and ": " and no other white space. REQUIRES: may_call_instead().
GrammarSpec calls_or(GrammarSpec answer, const ToolRequest& request, const OutputFormat& format,
                     ReasoningStart reasoning);

// Whether an answer under the grammar may have tool calls. A client's own grammar (Lark, EBNF) may describe calls. JSON
// and one of a few texts must be the whole answer.
bool may_hold_calls(const GrammarSpec& grammar);

// Applies `grammar` behind the reasoning, which stays free. A client's own grammars (Lark, EBNF) are returned
// unchanged, because they apply to the whole text.
GrammarSpec after_reasoning(GrammarSpec grammar, const OutputFormat& format, ReasoningStart reasoning);

// Writes one grammar in llguidance's Lark dialect, with the rules that formats share: each call is the rule `call`, and
// a call's object, by tool, is the rule `object`.
class CallGrammar {
 public:
  // An answer without calls is not allowed, any text, or the rule `text`.
  enum class Answer { kNone, kFree, kRule };

  // The request and the format must outlive it.
  CallGrammar(const ToolRequest& tools, const OutputFormat& format, ReasoningStart start, Answer otherwise);

  // The first rule without its name, and all others.
  std::string write();

  std::string calls(const std::string& separator) const;  // one call, or several with `separator` between them
  void text_without(std::string_view marker);             // adds TEXT, which is not empty
  void text_up_to(std::string_view marker);               // adds to_call, which ends with the marker
  std::string arguments_schema(const Tool& tool) const;   // a schema of an object
  // A schema of the tool for %json. what: names the schema in errors. otherwise: replaces a schema that cannot be
  // enforced if its tool is one of several. more: additional members.
  std::string schema(const std::string& schema_json, const Tool& tool, const std::string& what,
                     const std::string& otherwise, const std::string& more = "") const;

  const ToolRequest& request;
  const Answer answer;
  const ThinkRules think;
  const bool parallel;  // several calls in one answer
  std::string rules;

 private:
  const AnswerFormat& format_;
};

inline std::string token_terminal(TokenId token) {
  return "<[" + std::to_string(token) + "]>";
}
// The text as a regular expression between slashes.
std::string regex_escape(std::string_view text);
// Any schema, with the white space of calls.
std::string plain_schema(const std::string& schema_json, const ToolRequest& request);

}  // namespace volley::serve

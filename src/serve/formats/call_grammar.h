// The grammars that hold a model to the calls of a request's tools, and that let it think first. Pure functions.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/api/tool_choice.h"
#include "serve/formats/answer_format.h"

namespace volley::serve {

// The format of the answers to this request: one without calls if no tool may be called.
std::shared_ptr<const AnswerFormat> tool_format(const ToolRequest& request, const OutputFormat& format);

// What OutputParser must know of the tools in this format; null where it need not.
std::shared_ptr<const ToolTypes> tool_types(const ToolRequest& request, const OutputFormat& format);

// A kLark grammar over the whole generated text, reasoning included; arguments follow the tools' schemas. Nothing where
// the model is free: no tools, or kAuto without `constrained_by` and without a custom tool whose input can be held;
// kAuto with one of them leaves text free and holds a call that the model begins to its form. Members are written with
// ", " and ": ", as Python prints JSON and as these models were trained. Text values that stand bare are held to an
// "enum" or a "const" of their schema, not to a pattern or a length. Inputs of custom tools follow their expressions,
// and Lark where the format writes texts as they are. kInvalidArgument: calls are asked for and the server's format has
// none, or a custom tool is forced whose input it cannot hold. A schema that cannot be enforced fails when the request
// is submitted, if its tool is strict or the only one of a request that asks for a call; else that tool's arguments are
// any object.
Result<std::optional<GrammarSpec>> tool_grammar(const ToolRequest& request, const OutputFormat& format,
                                                ReasoningStart reasoning);

// Whether an answer of this request may be calls or a text of the form that the request asks for beside the tools.
bool may_call_instead(const ToolRequest& request, const OutputFormat& format, ReasoningStart reasoning);

// `answer`, JSON or one of a few texts, or calls in its place; arguments follow the tools' schemas. Where calls
// are bare JSON, the JSON is written as they are, with ", " and ": " and no other white space. REQUIRES:
// may_call_instead().
GrammarSpec calls_or(GrammarSpec answer, const ToolRequest& request, const OutputFormat& format,
                     ReasoningStart reasoning);

// Whether an answer under the grammar may have tool calls in it. A client's own grammar (Lark, EBNF) may be one of
// calls. JSON and one of a few texts are what the answer must be, and nothing else.
bool may_hold_calls(const GrammarSpec& grammar);

// Holds what follows the reasoning to `grammar`, and the reasoning to nothing. Grammars that are a client's own (Lark,
// EBNF) come back as they are: they are on all of the text.
GrammarSpec after_reasoning(GrammarSpec grammar, const OutputFormat& format, ReasoningStart reasoning);

// One grammar in llguidance's Lark dialect while it is written: what formats have in common. Its answer has calls, each
// the rule `call`; the object of one, by its tool, is the rule `object`.
class CallGrammar {
 public:
  // What an answer without calls is: there is none, any text, or what the rule `text` says.
  enum class Answer { kNone, kFree, kRule };

  // The request and the format must outlive it.
  CallGrammar(const ToolRequest& tools, const OutputFormat& format, ReasoningStart start, Answer otherwise);

  // The first rule without its name, and all others.
  std::string write();

  // --- For formats ---
  std::string calls(const std::string& separator) const;  // one call, or several with that between them
  void text_without(std::string_view marker);             // adds TEXT, which is not empty
  void text_up_to(std::string_view marker);               // adds to_call, which ends with the marker
  std::string arguments_schema(const Tool& tool) const;   // always of an object
  // A schema of the tool's for %json. what: it is the schema of, for errors. otherwise: what takes its place where it
  // cannot be enforced and its tool is one of several. more: members that it has beside its own.
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
// Any schema with the white space of calls.
std::string plain_schema(const std::string& schema_json, const ToolRequest& request);

}  // namespace volley::serve

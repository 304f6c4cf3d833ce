// What a chat request says about tools, and the grammar that holds the model to it. Pure functions.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/fields.h"
#include "serve/output_format.h"
#include "serve/output_parser.h"

namespace volley::serve {

struct Tool {
  std::string name;
  std::string parameters_json;  // the schema of its arguments, as the client wrote it
  bool strict = false;
};

struct ToolRequest {
  enum class Choice { kNone, kAuto, kRequired };

  std::string tools_json;   // for the chat template: the client's own text; empty without tools and with "none"
  std::vector<Tool> tools;  // those that may be called: all, or the ones that tool_choice names
  Choice choice = Choice::kNone;
  bool parallel = true;  // more than one call in an answer; false for a named tool
  // The field that holds the model to a form: "tool_choice" (a call, or some of the tools), "tools" (one is strict) or
  // "parallel_tool_calls" (false). Empty: the model is free, or sees no tools.
  std::string constrained_by;
};

// Reads "tools", "tool_choice" ("none", "auto", "required", a named function, or OpenAI's allowed_tools) and
// "parallel_tool_calls". `body` is the text that `in` reads. Fails for tools that are not functions, for names that are
// missing or doubled, and for a choice that names no tool of the request.
void read_tools(FieldReader& in, std::string_view body, ToolRequest& out);

// The parser's format for this request: kNone if no tool may be called.
ToolFormat tool_format(const ToolRequest& request, const OutputFormat& format);

// What OutputParser must know of the tools in this format; null where it need not.
std::shared_ptr<const ToolTypes> tool_types(const ToolRequest& request, const OutputFormat& format);

// A kLark grammar over the whole generated text, reasoning included; arguments follow the tools' schemas. Nothing where
// the model is free: no tools, or kAuto without `constrained_by`; kAuto with it leaves text free and holds a call that
// the model begins to its form. Members are written with ", " and ": ", as Python prints JSON and as these models were
// trained. Text values of kQwenCoder are held to an "enum" or a "const" of their schema, not to a pattern or a length.
// kInvalidArgument: calls are asked for and the server's format is kNone. A schema that llguidance cannot compile fails
// when the request is submitted.
Result<std::optional<GrammarSpec>> tool_grammar(const ToolRequest& request, const OutputFormat& format,
                                                ReasoningStart reasoning);

// Whether an answer of this request may be calls or a text of the form that the request asks for beside the tools.
bool may_call_instead(const ToolRequest& request, const OutputFormat& format, ReasoningStart reasoning);

// `answer`, JSON or one of a few texts, or calls in its place; arguments follow the tools' schemas. With kLlama the
// JSON is written as its calls are, with ", " and ": " and no other white space. REQUIRES: may_call_instead().
GrammarSpec calls_or(GrammarSpec answer, const ToolRequest& request, const OutputFormat& format,
                     ReasoningStart reasoning);

}  // namespace volley::serve

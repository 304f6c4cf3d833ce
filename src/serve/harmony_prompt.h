// A chat's prompt: rendered, and as token ids. Most formats take the template's text as it is. In Harmony's
// (serve/harmony.h) a control token is one only where the template printed it: the same characters in a message, a
// tool or an argument stay text, whoever wrote them. Pure functions; take long for long prompts.
#pragma once

#include <volley/engine.h>

#include <string>
#include <string_view>
#include <vector>

#include "serve/output_format.h"

namespace volley::serve {

// Harmony knows three levels of `reasoning_effort`, but its templates print whatever they are given. kInvalidArgument.
Status check_reasoning_effort(const OutputFormat& format, const ChatMessages& chat);

// The template's text, for encode_chat() alone: what looks like a control token and is none is marked in it. In
// Harmony all instructions are in it: those at the start as one, later ones as developer messages of their own.
// kInvalidArgument where a template does not let these in.
Result<std::string> render_chat_prompt(const Engine& engine, const OutputFormat& format, ChatMessages chat);

Result<std::vector<TokenId>> encode_chat(const Engine& engine, const OutputFormat& format, std::string_view rendered,
                                         bool add_special_tokens, const EncodeLimits& limits);

// Parts of the above, for tests.

// Messages as Harmony's templates take them: instructions at the start as one message; thoughts as "thinking"; one call
// a message, followed by its results, because templates name a result by the call before it. `preambles`: a message may
// have content beside its thoughts and a call; else both become its thoughts. In arguments that are text what looks
// like a control token is marked.
std::string harmony_messages(std::string_view messages_json, bool preambles);
// Tools as those templates take them: each has a description, if an empty one; the default of a parameter with "enum"
// or "oneOf" is a string. Text that is no list stays as it is.
std::string harmony_tools(std::string_view tools_json);
// Strings of JSON text in which nothing looks like a control token; unmarked() undoes it.
std::string mark_lookalikes(std::string_view json_text);
std::string unmarked(std::string_view text);

}  // namespace volley::serve

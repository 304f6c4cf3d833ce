// Prompts in Harmony (serve/formats/harmony.h): rendered, and as token ids. A control token is one only where the
// template printed it: the same characters in a message, a tool or an argument stay text, whoever wrote them. Pure
// functions; take long for long prompts.
#pragma once

#include <volley/engine.h>

#include <string>
#include <string_view>
#include <vector>

#include "serve/api/conversation.h"
#include "serve/formats/harmony.h"

namespace volley::serve {

// Harmony knows three levels of `reasoning_effort`, but its templates print whatever they are given. kInvalidArgument.
Status check_harmony(const Conversation& chat);

// The template's text: what looks like a control token and is none is marked in it. All instructions are in it: those
// at the start as one, later ones as developer messages of their own. kInvalidArgument where a template does not let
// these in. `preambles`: see harmony_messages(). `cancelled` may be null.
Result<std::string> render_harmony(const Engine& engine, Conversation chat, bool preambles,
                                   const std::atomic<bool>* cancelled);
Result<std::vector<TokenId>> encode_harmony(const Engine& engine, const HarmonyTokens& tokens,
                                            std::string_view rendered, EncodeLimits limits);

// Parts of the above, for tests.

// Messages as Harmony's templates take them: instructions at the start as one message; thoughts as "thinking"; one call
// a message, followed by its results, because templates name a result by the call before it. `preambles`: a message may
// have content beside its thoughts and a call; else both become its thoughts.
std::vector<ChatMessage> harmony_messages(std::vector<ChatMessage> messages, bool preambles);
// Tools as those templates take them: each has a description, if an empty one; the default of a parameter with "enum"
// or "oneOf" is a string. Text that is no list stays as it is.
std::string harmony_tools(std::string_view tools_json);
// Strings of JSON text in which nothing looks like a control token; unmarked() undoes it.
std::string mark_lookalikes(std::string_view json_text);
std::string unmarked(std::string_view text);

}  // namespace volley::serve

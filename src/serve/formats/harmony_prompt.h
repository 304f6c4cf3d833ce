// Prompts in Harmony (serve/formats/harmony.h), rendered and as token ids. A control token counts only where the
// template printed it: the same characters in a message, a tool or an argument stay text. Pure functions, slow for long
// prompts.
#pragma once

#include <volley/engine.h>

#include <string>
#include <string_view>
#include <vector>

#include "serve/api/conversation.h"
#include "serve/formats/harmony.h"

namespace volley::serve {

// Harmony has three levels of `reasoning_effort`, but its templates print any value. kInvalidArgument for others.
Status check_harmony(const Conversation& chat);

// The template's text, in which text that only looks like a control token is marked. It has all instructions: those at
// the start as one, later ones as developer messages. kInvalidArgument if a template does not print these. `preambles`:
// see harmony_messages(). `cancelled` may be null.
Result<std::string> render_harmony(const Engine& engine, Conversation chat, bool preambles,
                                   const std::atomic<bool>* cancelled);
Result<std::vector<TokenId>> encode_harmony(const Engine& engine, const HarmonyTokens& tokens,
                                            std::string_view rendered, EncodeLimits limits);

// Parts of the above, for tests.

// Messages in the form of Harmony's templates: instructions at the start as one message; thoughts as "thinking"; one
// call a message, followed by its results, because templates name a result by the call before it. `preambles`: a
// message may have content beside its thoughts and a call; otherwise both become thoughts.
std::vector<ChatMessage> harmony_messages(std::vector<ChatMessage> messages, bool preambles);
// Tools in the templates' form: each has a description, perhaps empty; the default of a parameter with "enum" or
// "oneOf" is a string. Text that is no list stays unchanged.
std::string harmony_tools(std::string_view tools_json);
// Marks strings of JSON text, so that none looks like a control token; unmarked() undoes it.
std::string mark_lookalikes(std::string_view json_text);
std::string unmarked(std::string_view text);

}  // namespace volley::serve

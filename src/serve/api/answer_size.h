// Estimates the size of answers, so that no answer takes the server's memory. Pure.
#pragma once

#include <volley/engine.h>

#include <cstddef>

#include "serve/api/openai_request.h"

namespace volley::serve {

// Estimates an event's JSON, without its prompt's log-probabilities.
size_t event_json_bytes(const Event& event);
// Estimates the JSON of an event's prompt log-probabilities.
size_t prompt_logprobs_json_bytes(const Event& event);

// Estimates what an answer holds of a prompt, in all choices: log-probabilities, echo and ids. Known before any
// generation. `echo_bytes`: size of the prompt's text.
size_t shown_prompt_bytes(const ApiRequest& request, size_t prompt_tokens, size_t echo_bytes);

// Bytes of the request that each waiting choice copies.
size_t choice_bytes(const GenerateRequest& request);

}  // namespace volley::serve

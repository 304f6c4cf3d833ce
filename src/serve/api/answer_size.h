// How large answers become, so that no request can make one that takes the server's memory. Pure.
#pragma once

#include <volley/engine.h>

#include <cstddef>

#include "serve/api/openai_request.h"

namespace volley::serve {

// About what the JSON of an event takes, its prompt's log-probabilities left out.
size_t event_json_bytes(const Event& event);
// About what they take.
size_t prompt_logprobs_json_bytes(const Event& event);

// About what an answer holds of one of its prompts, in all choices: log-probabilities, echo and ids. Known before
// anything is generated. `echo_bytes`: of the prompt's text.
size_t shown_prompt_bytes(const ApiRequest& request, size_t prompt_tokens, size_t echo_bytes);

// What a choice holds of the request while it waits: each has a copy.
size_t choice_bytes(const GenerateRequest& request);

}  // namespace volley::serve

// The bodies of POST /tokenize and POST /detokenize, in vLLM's shapes. Any thread.
#pragma once

#include <string_view>

#include "serve/errors.h"
#include "serve/http.h"
#include "serve/openai_request.h"

namespace volley::serve {

// {"prompt"} or {"messages"} → {"count", "max_model_len", "tokens", "token_strs"}.
HttpResponse tokenize(const Engine& engine, std::string_view body, const RequestRules& rules);
// {"tokens"} → {"prompt"}.
HttpResponse detokenize(const Engine& engine, std::string_view body, const RequestRules& rules);

// The fields that each of them looks at: what openapi.json must describe.
std::set<std::string_view> tokenize_fields(const RequestRules& rules);

}  // namespace volley::serve

// The bodies of POST /tokenize and POST /detokenize, in vLLM's shapes. Any thread.
#pragma once

#include <string_view>

#include "serve/errors.h"
#include "serve/http.h"
#include "serve/openai_request.h"
#include "serve/output_format.h"

namespace volley::serve {

// {"prompt"} or {"messages"} → {"count", "max_model_len", "tokens", "token_strs"}.
// Once `cancelled` is true, which may be null, the answer does not matter any more, and comes soon.
HttpResponse tokenize(const Engine& engine, const OutputFormat& format, std::string_view body,
                      const RequestRules& rules, const std::atomic<bool>* cancelled);
// {"tokens"} → {"prompt"}.
HttpResponse detokenize(const Engine& engine, std::string_view body, const RequestRules& rules);

// The fields that each of them looks at: what openapi.json must describe.
std::set<std::string_view> tokenize_fields(const RequestRules& rules);

}  // namespace volley::serve

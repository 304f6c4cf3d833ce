// The answers that need no generation: models, POST /tokenize and /detokenize, GET /openapi.json. Any thread.
#pragma once

#include <volley/engine.h>

#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "serve/api/openai_request.h"
#include "serve/formats/output_format.h"
#include "serve/http/http.h"

namespace volley::serve {

// What GET /v1/models says of a model: OpenAI's fields, vLLM's max_model_len, and under "volley" what a client needs to
// show its defaults as values: {"block_size", "tensor_parallel_size", "expert_parallel", "default_sampling",
// "chat_sampling", "thinking", "reasoning_effort"}. `created`: Unix seconds. `chat_sampling`: what a chat should ask
// for; nothing: the defaults.
nlohmann::ordered_json model_card(const std::string& name, std::time_t created, const EngineInfo& info,
                                  const OutputFormat& format, const std::optional<SamplingParams>& chat_sampling);

// In vLLM's shapes: {"prompt"} or {"messages"} → {"count", "max_model_len", "tokens", "token_strs"}.
// Once `cancelled` is true, which may be null, the answer does not matter any more, and comes soon.
HttpResponse tokenize(const Engine& engine, const OutputFormat& format, std::string_view body,
                      const RequestRules& rules, const std::atomic<bool>* cancelled);
// {"tokens"} → {"prompt"}.
HttpResponse detokenize(const Engine& engine, std::string_view body, const RequestRules& rules);

// The fields that each of the two looks at: what openapi.json must describe.
std::set<std::string_view> tokenize_fields(const RequestRules& rules);

// openapi.json beside this header, embedded, with the version of the program.
std::string_view openapi_text();

// The same with the fields of other servers (foreign_fields.h), which openapi.json leaves out: GET /openapi.json.
std::string_view openapi_document();

}  // namespace volley::serve

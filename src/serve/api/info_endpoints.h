// Answers without generation: models, POST /tokenize and /detokenize, GET /openapi.json; and for routers in front of
// several servers load, and the model served. Any thread.
#pragma once

#include <volley/engine.h>

#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "serve/api/chat_input.h"
#include "serve/api/metrics.h"
#include "serve/api/openai_request.h"
#include "serve/formats/output_format.h"
#include "serve/http/server.h"

namespace volley::serve {

// A model in GET /v1/models: OpenAI's fields, vLLM's max_model_len, and under "volley" what a client needs to show its
// defaults: {"block_size", "tensor_parallel_size", "expert_parallel", "default_sampling", "chat_sampling", "thinking",
// "reasoning_effort"}. `created`: Unix seconds. `chat_sampling`: for chats; nothing: the defaults.
nlohmann::ordered_json model_card(const std::string& name, std::time_t created, const EngineInfo& info,
                                  const OutputFormat& format, const std::optional<SamplingParams>& chat_sampling);

// In vLLM's form: {"prompt"} or {"messages"} → {"count", "max_model_len", "tokens", "token_strs"}. Once `cancelled`
// (may be null) is true, the answer is not needed and comes soon.
HttpResponse tokenize(const Engine& engine, const OutputFormat& format, std::string_view body,
                      const RequestRules& rules, const std::atomic<bool>* cancelled, ReadNamed read_named);
// {"tokens"} → {"prompt"}.
HttpResponse detokenize(const Engine& engine, std::string_view body, const RequestRules& rules);

// Fields that each of the two reads, for openapi.json.
std::set<std::string_view> tokenize_fields(const RequestRules& rules);

// GET /load, as vLLM answers it: {"server_load": open client requests, whatever their number of choices}.
nlohmann::ordered_json load_json(const Load& load);
// GET /get_load, as SGLang answers it: [{dp_rank, num_reqs, num_waiting_reqs, num_tokens}], one entry for all replicas
// together. Its requests are the engine's: one for each choice.
nlohmann::ordered_json replica_loads_json(const Load& load, const EngineStats& stats);
// GET /server_info and /model_info: the SGLang fields that sglang-router reads and that exist here. There is no
// model_path, because the router would look for a tokenizer there.
nlohmann::ordered_json server_info_json(const ServerOptions& options, const EngineInfo& info);
nlohmann::ordered_json model_info_json(const ServerOptions& options, const EngineInfo& info);

// The embedded openapi.json beside this header, with the program's version.
std::string_view openapi_text();

// GET /openapi.json: the same with other servers' fields (foreign_fields.h).
std::string_view openapi_document();

}  // namespace volley::serve

// Answers for routers in front of several servers: load, and the model served. Any thread.
#pragma once

#include <volley/engine.h>

#include <nlohmann/json.hpp>

#include "serve/api/metrics.h"
#include "serve/http/server.h"

namespace volley::serve {

// GET /load, as vLLM answers it: {"server_load": open client requests, whatever their number of choices}.
nlohmann::ordered_json load_json(const Load& load);
// GET /get_load, as SGLang answers it: [{dp_rank, num_reqs, num_waiting_reqs, num_tokens}], one entry for all replicas
// together. Its requests are the engine's: one for each choice.
nlohmann::ordered_json replica_loads_json(const Load& load, const EngineStats& stats);
// GET /server_info and /model_info: the SGLang fields that sglang-router reads and that exist here. There is no
// model_path, because the router would look for a tokenizer there.
nlohmann::ordered_json server_info_json(const ServerOptions& options, const EngineInfo& info);
nlohmann::ordered_json model_info_json(const ServerOptions& options, const EngineInfo& info);

}  // namespace volley::serve

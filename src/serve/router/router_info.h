// What routers before several servers ask them: how much there is to do, and what they serve. Any thread.
#pragma once

#include <volley/engine.h>

#include <nlohmann/json.hpp>

#include "serve/api/metrics.h"
#include "serve/http/server.h"

namespace volley::serve {

// GET /load, as vLLM answers it: {"server_load": open requests of clients, however many choices they have}.
nlohmann::ordered_json load_json(const Load& load);
// GET /get_load, as SGLang answers it: [{dp_rank, num_reqs, num_waiting_reqs, num_tokens}], one entry for all replicas
// of this server together. Its requests are those of the engine: each choice is one.
nlohmann::ordered_json replica_loads_json(const Load& load, const EngineStats& stats);
// GET /server_info and /model_info: of SGLang's fields those that sglang-router reads, as far as they are facts here.
// There is no model_path: the router would look for a tokenizer there.
nlohmann::ordered_json server_info_json(const ServerOptions& options, const EngineInfo& info);
nlohmann::ordered_json model_info_json(const ServerOptions& options, const EngineInfo& info);

}  // namespace volley::serve

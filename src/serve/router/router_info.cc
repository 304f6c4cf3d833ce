#include "serve/router/router_info.h"

namespace volley::serve {

using Json = nlohmann::ordered_json;

Json load_json(const Load& load) {
  return {{"server_load", load.requests}};
}

Json replica_loads_json(const Load& load, const EngineStats& stats) {
  return Json::array({Json{{"dp_rank", 0},
                           {"num_reqs", load.choices},
                           {"num_waiting_reqs", stats.requests_waiting},
                           {"num_tokens", load.tokens}}});
}

Json server_info_json(const ServerOptions& options, const EngineInfo& info) {
  return {{"served_model_name", options.served_model_names.front()},
          {"version", options.version},
          {"max_running_requests", info.max_num_seqs},
          {"max_total_tokens", info.kv_pages * info.page_size},
          {"max_model_len", info.max_model_len}};
}

Json model_info_json(const ServerOptions& options, const EngineInfo& info) {
  return {{"served_model_name", options.served_model_names.front()},
          {"is_generation", true},
          {"architectures", Json::array({info.architecture})}};
}

}  // namespace volley::serve

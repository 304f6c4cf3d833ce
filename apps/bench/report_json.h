// JSON that both reports share.
#pragma once

#include <volley/engine.h>

#include <nlohmann/json.hpp>

#include "apps/bench/stats_window.h"

namespace volley::apps {

inline void append_engine(const EngineInfo& engine, nlohmann::ordered_json& json) {
  json["dtype"] = engine.dtype;
  json["instruction_set"] = engine.instruction_set;
  json["threads"] = engine.threads;
  json["tensor_parallel_size"] = engine.tensor_parallel_size;
  if (engine.expert_parallel) json["expert_parallel"] = true;
}

// A window of the engine's counters.
inline nlohmann::ordered_json window_json(const StatsWindow& window) {
  nlohmann::ordered_json json;
  json["steps"] = window.steps;
  json["probes"] = window.probes;
  json["plain"] = window.plain;
  json["tok_s"] = window.tok_s();
  json["step_ms"] = window.step_ms();
  json["seconds"] = window.seconds;
  json["tokens"] = window.tokens;
  json["draft"] = window.draft;
  json["rows"] = window.rows;
  json["idle_s"] = window.idle_s;
  json["predicted_tokens"] = window.predicted_tokens;
  json["predicted_s"] = window.predicted_s;
  json["measured_s"] = window.measured_s;
  json["survival"] = nlohmann::ordered_json::array();
  for (const PositionSurvival& position : window.survival) {
    json["survival"].push_back(
        {{"verified", position.verified}, {"predicted", position.predicted}, {"survived", position.survived}});
  }
  return json;
}

}  // namespace volley::apps

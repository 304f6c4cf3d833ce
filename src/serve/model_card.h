// What GET /v1/models says of a model: OpenAI's fields, vLLM's max_model_len, and under "volley" what a client needs to
// show its defaults as values: {"block_size", "tensor_parallel_size", "expert_parallel", "default_sampling",
// "thinking", "reasoning_effort"}. Any thread.
#pragma once

#include <volley/engine.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "serve/output_format.h"

namespace volley::serve {

// `created`: Unix seconds.
nlohmann::ordered_json model_card(const std::string& name, std::time_t created, const EngineInfo& info,
                                  const OutputFormat& format);

}  // namespace volley::serve

// From a parsed request to what the engine is asked for: chat template, tokenizer, context length, output format.
#pragma once

#include <volley/engine.h>

#include <string>

#include "serve/api/generation.h"
#include "serve/api/openai_request.h"
#include "serve/formats/output_format.h"
#include "serve/json/errors.h"

namespace volley::serve {

// Borrowed for the length of a call, but for the engine, to which the plan refers.
struct PlanContext {
  const Engine& engine;
  const OutputFormat& format;
  size_t max_response_bytes = 0;
  const std::atomic<bool>* cancelled = nullptr;  // once true the work is given up, with some error
};

// Calls the engine's tokenizer and template: takes long for long prompts. `id`: of the response. Errors name the field.
// A request that is certain to have a larger answer than max_response_bytes is refused.
ApiResult<Generation::Plan> plan_generation(const PlanContext& context, ApiRequest request, std::string id);

}  // namespace volley::serve

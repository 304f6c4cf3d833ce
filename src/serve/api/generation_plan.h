// Turns a parsed request into engine requests: chat template, tokenizer, context length, output format.
#pragma once

#include <volley/engine.h>

#include <string>

#include "serve/api/chat_input.h"
#include "serve/api/generation.h"
#include "serve/api/openai_request.h"
#include "serve/formats/output_format.h"
#include "serve/json/errors.h"

namespace volley::serve {

// Borrowed for a call; the plan keeps referring to the engine.
struct PlanContext {
  const Engine& engine;
  const OutputFormat& format;
  size_t max_response_bytes = 0;
  const std::atomic<bool>* cancelled = nullptr;  // once true, the work is given up with some error
  ReadNamed read_named = {};
  std::string space = {};  // what comes before the request's own cache_namespace
};

// Calls the engine's tokenizer and template, which takes long for long prompts. `id`: the response's. Errors name the
// field. Refuses a request whose answer is certain to exceed max_response_bytes.
ApiResult<Generation::Plan> plan_generation(const PlanContext& context, ApiRequest request, std::string id);

}  // namespace volley::serve

// From a parsed request to what the engine is asked for: chat template, tokenizer, context length, output format.
#pragma once

#include <volley/engine.h>

#include <string>

#include "serve/errors.h"
#include "serve/generation.h"
#include "serve/openai_request.h"
#include "serve/output_format.h"

namespace volley::serve {

// Calls the engine's tokenizer and template: takes long for long prompts. `id`: of the response. Errors name the field.
// The plan refers to the engine.
ApiResult<Generation::Plan> plan_generation(const Engine& engine, const OutputFormat& format, ApiRequest request,
                                            std::string id);

}  // namespace volley::serve

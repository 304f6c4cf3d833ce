// Finds tool calls in Mistral's forms; see ToolFormat::kMistral.
#pragma once

#include <memory>

#include "serve/output_parser.h"

namespace volley::serve {

std::unique_ptr<OutputStage> mistral_stage(const OutputParser::Options& options);

}  // namespace volley::serve

// Loads a model's tokenizer and chat template, or stand-ins: token ids need none, and with dummy weights a folder may
// hold only config.json.
#pragma once

#include <volley/engine_options.h>

#include <string>
#include <vector>

#include "families/family.h"
#include "text/text.h"

namespace volley::engine {

struct TextModels {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;
};

// Where the tokenizer's files lie: a folder, or a GGUF file.
std::string tokenizer_dir(const EngineOptions& options);

// Loads tokenizer and template. With options.skip_tokenizer, or with `optional` and no tokenizer.json, returns
// stand-ins that decode to nothing and answer all else with an error that says to use token ids.
Result<TextModels> load_text(const EngineOptions& options, bool optional);

// Adds the tokenizer's end token to target.eos_ids where it counts. Returns sentences about an end token that the model
// cannot produce, and about a model without any. A tokenizer without a vocabulary gives none.
std::vector<std::string> add_end_token(const text::Tokenizer& tokenizer, families::TargetConfig& target);

}  // namespace volley::engine

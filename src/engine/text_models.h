// Tokenizer and chat template of a model, also of one that has none: with dummy weights a folder may hold nothing but
// config.json.
#pragma once

#include "text/text.h"

namespace volley::engine {

struct TextModels {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;
};

// The tokenizer and template of `dir`. With `optional`, a folder without tokenizer.json gives ones that decode to
// nothing and answer everything else with an error that says to use token ids.
Result<TextModels> load_text(const std::string& dir, bool optional);

}  // namespace volley::engine

// Tokenizer and chat template of a model, also of one that has none: token ids need none, and with dummy weights a
// folder may hold nothing but config.json.
#pragma once

#include <string>
#include <vector>

#include "families/family.h"
#include "text/text.h"

namespace volley::engine {

struct TextModels {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;
};

// The tokenizer and template of `dir`. With `skip`, or with `optional` and a folder without tokenizer.json, they decode
// to nothing and answer everything else with an error that says to use token ids.
Result<TextModels> load_text(const std::string& dir, bool skip, bool optional);

// Adds the tokenizer's end token to target.eos_ids where it counts. Returned are sentences for people: of a token that
// the model cannot make, and of a model that nothing ends. tokenizer: one without a vocabulary knows no tokens, and
// nothing is said of them.
std::vector<std::string> add_end_token(const text::Tokenizer& tokenizer, families::TargetConfig& target);

}  // namespace volley::engine

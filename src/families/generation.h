// generation_config.json: how a model's makers want it to be sampled.
#pragma once

#include "families/family.h"
#include "families/fields.h"

namespace volley::families {

// "eos_token_id": one id or a list, each once and below `vocab`; empty if there is none.
Result<std::vector<TokenId>> read_eos_ids(const ConfigFields& fields, int32_t vocab);

// Reads DIR/generation_config.json, if there is one, into target.eos_ids and target.default_sampling. What the file
// does not say stays as it is; end-of-sequence ids that it names replace all others, as in transformers; do_sample
// false means temperature 0, whatever temperature it names beside it.
Status read_generation_config(const std::string& dir, TargetConfig& target);

}  // namespace volley::families

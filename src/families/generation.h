// generation_config.json: how a model's makers want it to be sampled.
#pragma once

#include "families/family.h"
#include "families/fields.h"

namespace volley::families {

// Appends the end-of-sequence ids of `fields` (one id or a list) that target.eos_ids lacks. They must be below
// its vocabulary.
Status add_eos_ids(const ConfigFields& fields, TargetConfig& target);

// Reads DIR/generation_config.json, if there is one, into target.eos_ids and target.default_sampling. What the file
// does not say stays as it is; do_sample false means temperature 0, whatever temperature it names beside it.
Status read_generation_config(const std::string& dir, TargetConfig& target);

}  // namespace volley::families

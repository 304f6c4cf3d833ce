// generation_config.json: how a model's makers want it to be sampled.
#pragma once

#include "model/config_fields.h"
#include "model/spec.h"

namespace volley::model {

// Appends the end-of-sequence ids of `fields` (one id or a list) that spec.eos_ids lacks. They must be below
// spec.vocab.
Status add_eos_ids(const ConfigFields& fields, DecoderSpec& spec);

// Reads DIR/generation_config.json, if there is one, into spec.eos_ids and spec.default_sampling. What the file does
// not say stays as it is; do_sample false means temperature 0, whatever temperature it names beside it.
Status read_generation_config(const std::string& dir, DecoderSpec& spec);

}  // namespace volley::model

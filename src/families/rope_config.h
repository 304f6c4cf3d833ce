// The rotary embedding of a config.json, in both spellings that transformers has written.
#pragma once

#include "families/fields.h"
#include "model/spec.h"

namespace volley::families {

// From rope_theta and rope_scaling (transformers 4) or rope_parameters (transformers 5). `factor` and
// `original_max_position` of the result are set wherever the scaling needs them. kUnimplemented names a scaling that is
// not built, kInvalidArgument a field that is wrong.
Result<model::RopeSpec> read_rope(const ConfigFields& config, int32_t max_positions);

}  // namespace volley::families

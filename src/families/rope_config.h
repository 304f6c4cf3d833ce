// The rotary embedding of a config.json, in both spellings that transformers has written.
#pragma once

#include <optional>

#include "families/fields.h"
#include "model/spec.h"

namespace volley::families {

inline constexpr int32_t kMaxPositions = 1 << 28;

// From rope_theta and rope_scaling (transformers 4) or rope_parameters (transformers 5). `factor` and
// `original_max_position` of the result are set wherever the scaling needs them. kUnimplemented names a scaling that is
// not built, kInvalidArgument a field that is wrong. max_positions: max_position_embeddings; YaRN that states the
// length before the stretch raises it to factor times that length, which is how contexts are extended by config.json
// alone.
//
// partial: for families that rotate the first part of a head alone, "partial_rotary_factor" where the file does not
// say it; the result's `rotated` is set from that part of head_dim then. In a text of such a family the three positions
// of multimodal RoPE are the same, which makes it this one.
Result<model::RopeSpec> read_rope(const ConfigFields& config, int32_t head_dim, std::optional<double> partial,
                                  int32_t& max_positions);

}  // namespace volley::families

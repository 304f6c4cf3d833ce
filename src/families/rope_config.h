// The rotary embedding of a config.json, in both spellings that transformers has written.
#pragma once

#include <optional>

#include "families/fields.h"
#include "model/spec.h"

namespace volley::families {

inline constexpr int32_t kMaxPositions = 1 << 28;
inline constexpr NumberRange kTheta{.min = 1, .max = 1e18, .min_excluded = true};

// From rope_theta and rope_scaling (transformers 4) or rope_parameters (transformers 5). A fact may stand in several of
// these places if the values agree. `factor` and `original_max_position` of the result are set wherever the scaling
// needs them. kUnimplemented names a scaling that is not built, kInvalidArgument a field that is wrong. max_positions:
// max_position_embeddings; YaRN that states the length before the stretch raises it to factor times that length, which
// is how contexts are extended by config.json alone.
//
// partial: the default of "partial_rotary_factor", for families that rotate only the first part of a head; the result's
// `rotated` is that part of head_dim (`turning` if the type is "proportional"). Such families may have M-RoPE
// ("mrope_section"), too: RopeSpec::axes. In text a token's three positions are equal.
Result<model::RopeSpec> read_rope(const ConfigFields& config, int32_t head_dim, std::optional<double> partial,
                                  int32_t& max_positions);

}  // namespace volley::families

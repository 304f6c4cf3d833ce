// Converts DFlash drafters from the speculators library's format, which has the decoder's fields in
// transformer_layer_config, the drafter's own at the top, and feature layers counted from the embedding.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "families/fields.h"

namespace volley::decode::dflash {

inline constexpr int32_t kMaxTargetLayers = 1 << 12;

bool is_speculators_format(const families::ConfigFields& config);

// Returns the fields of the DFlash format. kUnimplemented for an unknown field; kInvalidArgument for a wrong value.
Result<nlohmann::json> from_speculators_format(const families::ConfigFields& config);

}  // namespace volley::decode::dflash

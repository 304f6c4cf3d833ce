// DFlash drafters as the speculators library writes them: the decoder's fields in transformer_layer_config, the
// drafter's own at the top, feature layers counted from the embedding.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "families/fields.h"

namespace volley::decode::dflash {

inline constexpr int32_t kMaxTargetLayers = 1 << 12;

bool is_speculators_format(const families::ConfigFields& config);

// The same in the DFlash format. kUnimplemented for a field that nobody here knows; kInvalidArgument for a field that
// is wrong.
Result<nlohmann::json> from_speculators_format(const families::ConfigFields& config);

}  // namespace volley::decode::dflash

// The findings of `volley inspect`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "apps/cli/options.h"

namespace volley::apps {

// The output of `--json`. Errors: no such model, or a wrong configuration.
Result<nlohmann::ordered_json> inspect_models(const InspectCommand& command);

}  // namespace volley::apps

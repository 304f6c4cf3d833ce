// What `volley inspect` finds.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "apps/cli/options.h"

namespace volley::apps {

// What its `--json` prints. Errors: there is no such model, or its configuration is wrong.
Result<nlohmann::ordered_json> inspect_models(const InspectCommand& command);

}  // namespace volley::apps

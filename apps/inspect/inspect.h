// `volley inspect`: what a model is, what memory it takes, and whether a drafter fits it. Reads configurations and the
// headers of weight files, which must name every tensor that loading would ask for; no weights.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "apps/console.h"
#include "apps/options.h"

namespace volley::apps {

// The process's exit status (exit_codes.h): kExitModel when something cannot be read or does not fit.
int run_inspect(const InspectCommand& command, Console* console);

// What `--json` prints. Errors: there is no such model, or its configuration is wrong.
Result<nlohmann::ordered_json> inspect_models(const InspectCommand& command);

}  // namespace volley::apps

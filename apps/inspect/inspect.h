// `volley inspect`: what a model is, what memory it takes, and whether a drafter fits it. Reads configurations and the
// headers of weight files, which must name every tensor that loading would ask for; no weights.
#pragma once

#include "apps/console.h"
#include "apps/options.h"

namespace volley::apps {

// The process's exit status (exit_codes.h): kExitModel when something cannot be read or does not fit.
int run_inspect(const InspectCommand& command, Console* console);

}  // namespace volley::apps

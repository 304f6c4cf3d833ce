// `volley collect-env`: what a report of a problem should say of program, machine, model and options.
#pragma once

#include "apps/console.h"
#include "apps/options.h"

namespace volley::apps {

// The process's exit status (exit_codes.h).
int run_collect_env(const CollectEnvCommand& command, Console* console);

}  // namespace volley::apps

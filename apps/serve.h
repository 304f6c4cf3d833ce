// `volley serve`: the HTTP server until SIGTERM or Ctrl-C, which let running requests end first.
#pragma once

#include "apps/console.h"
#include "apps/interrupt.h"
#include "apps/options.h"

namespace volley::apps {

// The process's exit status (exit_codes.h).
int run_serve(const ServeCommand& command, InterruptWatch* interrupt, Console* console);

}  // namespace volley::apps

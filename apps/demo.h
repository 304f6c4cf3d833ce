// `volley demo`: three answers of the pocket models, then the same answers without speculation.
#pragma once

#include "apps/console.h"
#include "apps/interrupt.h"
#include "apps/options.h"

namespace volley::apps {

// The process's exit status (exit_codes.h).
int run_demo(const DemoCommand& command, InterruptWatch* interrupt, Console* console);

}  // namespace volley::apps

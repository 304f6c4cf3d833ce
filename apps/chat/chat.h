// `volley chat`: a conversation in the terminal, with a model in this process or with an endpoint.
#pragma once

#include "apps/console.h"
#include "apps/interrupt.h"
#include "apps/options.h"

namespace volley::apps {

// The process's exit status (exit_codes.h). Where stdin is no terminal, all of it is one message, and stdout gets the
// answer alone.
int run_chat(const ChatCommand& command, InterruptWatch* interrupt, Console* console);

}  // namespace volley::apps

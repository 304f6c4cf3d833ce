// `volley bench serving`: a dataset's prompts against an OpenAI-compatible endpoint, at several loads, with and without
// speculation. docs/bench-serving.md is for users.
#pragma once

#include "apps/console.h"
#include "apps/interrupt.h"
#include "apps/options.h"

namespace volley::apps {

// The process's exit status (exit_codes.h).
int run_bench_serving(const BenchServingCommand& command, InterruptWatch* interrupt, Console* console);

}  // namespace volley::apps

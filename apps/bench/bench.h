// `volley bench`: throughput over concurrency, with and without speculation, beside what the machine could do.
#pragma once

#include "apps/console.h"
#include "apps/interrupt.h"
#include "apps/options.h"

namespace volley::apps {

// The process's exit status (exit_codes.h).
int run_bench(const BenchCommand& command, InterruptWatch* interrupt, Console* console);

}  // namespace volley::apps

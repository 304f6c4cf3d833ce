// `volley bench serving`: another name for volley-suite, the Python program in suite/.
#pragma once

#include "apps/console.h"
#include "apps/options.h"

namespace volley::apps {

// Becomes that program, with the same arguments, signals and streams. Returns, with the process's exit status
// (exit_codes.h), only if there is none on the PATH; the console then says how to install it. Call it before the
// process has threads or blocked signals: the program inherits what is blocked.
int run_bench_serving(const BenchServingCommand& command, Console* console);

}  // namespace volley::apps

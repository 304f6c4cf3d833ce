// The command lines of `volley bench` and `volley bench serving`. Like option_groups.h, for the files that build the
// command line.
#pragma once

#include <CLI/CLI.hpp>

#include "apps/options.h"

namespace volley::apps {

void add_bench(CLI::App* root, BenchCommand* command, BenchServingCommand* serving);

// What no single option's check can see. `bench`: the subcommand before `serving`.
Status check_bench(const BenchCommand& command);
Status check_bench_serving(const CLI::App& bench, const BenchServingCommand& command);

}  // namespace volley::apps

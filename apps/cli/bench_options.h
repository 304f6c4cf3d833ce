// The command line of `volley bench`. Like option_groups.h, for files that build the command line.
#pragma once

#include <CLI/CLI.hpp>

#include "apps/cli/options.h"

namespace volley::apps {

void add_bench(CLI::App* root, BenchCommand* command);

// Checks options against each other.
Status check_bench(const BenchCommand& command);

}  // namespace volley::apps

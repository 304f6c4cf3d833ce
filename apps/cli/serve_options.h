// The options of `volley serve`.
#pragma once

#include <CLI/CLI.hpp>

#include "apps/cli/options.h"

namespace volley::apps {

void add_serve_options(CLI::App* app, ServeCommand* command);

}  // namespace volley::apps

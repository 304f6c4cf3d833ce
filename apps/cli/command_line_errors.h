// Explains a command line that cannot be read in one sentence: the word, the likely intention, and the right help.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/options.h"

namespace volley::apps {

// The subcommand that was parsed last, and its name: "volley bench".
template <typename App>
App& innermost(App& root, std::string* name) {
  App* app = &root;
  *name = root.get_name();
  for (auto chosen = app->get_subcommands(); !chosen.empty(); chosen = app->get_subcommands()) {
    app = chosen.front();
    *name += " " + app->get_name();
  }
  return *app;
}

// Adds where to read on: "…; see volley bench --help".
Error usage_error(const std::string& sentence, const std::string& name);

// Explains what CLI11 threw while it parsed for `root`. An unknown word comes first: other errors may follow from it.
Error parse_error(const CLI::App& root, std::string message);

Status check_command(const CLI::App& root, const std::vector<std::string>& words);

// CLI11 reads llama.cpp's "-hf" as "-h". No value: the user asked for help.
std::optional<Error> swallowed_by_help(const CLI::App& root, const std::vector<std::string>& words);

}  // namespace volley::apps

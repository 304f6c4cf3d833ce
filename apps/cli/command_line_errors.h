// What a command line that cannot be read is answered with: one sentence that names the word, what was meant by it, and
// the help that has it.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/options.h"

namespace volley::apps {

// The subcommand that was parsed last, and how it is called: "volley bench".
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

// The sentence and where to read on: "…; see volley bench --help".
Error usage_error(const std::string& sentence, const std::string& name);

// What CLI11 threw while it parsed for `root`. An unknown word comes first, for what else is wrong may follow from it.
Error parse_error(const CLI::App& root, std::string message);

// That the first word, if there is one, is a command.
Status check_command(const CLI::App& root, const std::vector<std::string>& words);

// CLI11 reads llama.cpp's "-hf" as "-h". Nothing: help was asked for.
std::optional<Error> swallowed_by_help(const CLI::App& root, const std::vector<std::string>& words);

}  // namespace volley::apps

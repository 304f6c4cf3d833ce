// Options from outside the command line: the environment's VOLLEY_* variables, and the file of --config.
#pragma once

#include <volley/result.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "apps/cli/options.h"

namespace volley::apps {

struct OptionSetting {
  std::string option;               // "--max-num-seqs"
  std::vector<std::string> values;  // empty for a flag
  std::string source;               // "VOLLEY_MAX_NUM_SEQS", "volley.yaml:3", "command line"
  bool from_variable = false;
};

// Every option of `app` and its groups, except --help and --version.
std::vector<const CLI::Option*> options_of(const CLI::App& app);
std::vector<std::string> option_names(const CLI::App& app);

// "--max-num-seqs" to "VOLLEY_MAX_NUM_SEQS".
std::string variable_of(const std::string& option);

// The settings that variables and file add to the command line of `app`, called `name`. Of options that exclude one
// another only the strongest source counts. The app's own options check the values, and hold them afterwards.
// kInvalidArgument, with the source: a wrong value, or an unknown key in the file.
Result<std::vector<OptionSetting>> settings_beside(CLI::App& app, const std::string& name, const Variables& variables);

// Whether another part of this repository reads this variable, which is no option.
bool is_read_elsewhere(const std::string& variable);

// A sentence for each unknown variable that begins with VOLLEY_. `root`: with all subcommands.
std::vector<std::string> unknown_variables(const CLI::App& root, const Variables& variables);

// The settings as words of a command line.
std::vector<std::string> words_of(const std::vector<OptionSetting>& settings);

}  // namespace volley::apps

// Options that do not come from the command line: the environment's VOLLEY_* variables, and the file of --config.
#pragma once

#include <volley/result.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "apps/cli/options.h"

namespace volley::apps {

struct OptionSetting {
  std::string option;               // "--max-num-seqs"
  std::vector<std::string> values;  // of a flag: none
  std::string source;               // "VOLLEY_MAX_NUM_SEQS", "volley.yaml:3", "command line"
  bool from_variable = false;
};

// Every option of `app`, those of its groups too, but for --help and --version.
std::vector<const CLI::Option*> options_of(const CLI::App& app);
std::vector<std::string> option_names(const CLI::App& app);

// "--max-num-seqs" to "VOLLEY_MAX_NUM_SEQS".
std::string variable_of(const std::string& option);

// What variables and file add to the command line that `app`, called `name`, has parsed; of a group whose options
// exclude one another, only the strongest source counts. Values are checked with the app's own options, which hold
// them afterwards. kInvalidArgument, with the source: a value is wrong, or the file has an unknown key.
Result<std::vector<OptionSetting>> settings_beside(CLI::App& app, const std::string& name, const Variables& variables);

// Whether this variable, which is no option, is read by something else of this repository.
bool is_read_elsewhere(const std::string& variable);

// A sentence for each variable that begins with VOLLEY_ and that nothing reads. `root`: has all subcommands.
std::vector<std::string> unknown_variables(const CLI::App& root, const Variables& variables);

// As words of a command line.
std::vector<std::string> words_of(const std::vector<OptionSetting>& settings);

}  // namespace volley::apps

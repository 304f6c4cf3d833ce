// Options of several subcommands, and checks of single values. Only files that build the command line include this,
// because CLI11 is large.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/options.h"

namespace volley::apps {

inline constexpr const char* kExitCodes =
    "Exit status: 0 all went well, for serve also after a signal; 1 some requests failed; 2 an option, an input or an "
    "output is wrong; 3 the models could not be loaded; 4 the device failed or memory ran out; 130 ended by Ctrl-C, "
    "143 by SIGTERM. The "
    "first signal lets the program end in order (serve: running requests too), a second one ends it at once.";

inline constexpr const char* kOptionSources =
    "Every option may come from a variable (--max-num-seqs from VOLLEY_MAX_NUM_SEQS) or from --config FILE. The "
    "command "
    "line counts before a variable, a variable before the file.";

// Checks whose messages say what the value must be. `description`: "a port from 0 to 65535". Unlike CLI::Range,
// between() refuses numbers that are not finite.
CLI::Validator between(double low, double high, const std::string& description);
CLI::Validator positive();      // 32-bit integers from 1
CLI::Validator not_negative();  // from 0
CLI::Validator seed();          // 64 bits, more than a double holds
CLI::Validator not_empty();     // CLI11 takes an empty text for a missing option
CLI::Validator web_origin();    // in a browser's form
CLI::Validator host_name();     // as requests name the server
CLI::Validator some_text();     // a text for the model: not empty, and UTF-8

// Takes exactly one value each time, unchanged: for a list CLI11 would also take the following words, and split "[a,
// b]".
CLI::Option* one_value_each(CLI::Option* option);
// Takes the following words as values, each unchanged.
CLI::Option* values_as_written(CLI::Option* option);

// Options added during its life get a heading of their own in --help.
class GroupOfHelp {
 public:
  GroupOfHelp(CLI::App* app, std::string name);
  ~GroupOfHelp();
  GroupOfHelp(const GroupOfHelp&) = delete;
  GroupOfHelp& operator=(const GroupOfHelp&) = delete;

 private:
  CLI::App* app_;
  const std::string name_;
  const size_t first_;
};

Speculation speculation_of(const std::string& name);  // "off", "dflash"
VerifyPolicy verify_option(const std::string& text);  // throws CLI::ValidationError

// --model also works without its name, as in `volley serve DIR`.
void add_model_options(CLI::App* app, std::optional<std::string>* model, std::optional<std::string>* draft);
// Adds rows of the engine's table of options: those of `group`, or only the `names` among them.
void add_table_options(CLI::App* app, EngineOptions* options, OptionGroup group,
                       const std::vector<std::string_view>& names = {});
// Adds options for the models, their devices and their memory. `slots`: words for the default of --max-num-seqs, if it
// is not the engine's.
void add_main_options(CLI::App* app, EngineFlags* flags, const std::string& slots = "");
// Adds options for the chat template and the sampling defaults.
void add_text_options(CLI::App* app, EngineFlags* flags);
// Adds the engine's other options, most of them only for --help-all.
void add_engine_options(CLI::App* app, EngineFlags* flags);
// Adds one engine's speculation; bench has lists of the same options.
void add_speculation_options(CLI::App* app, EngineFlags* flags);
// Checks options against each other.
Status check_engine(const EngineFlags& flags);
// `group`: their heading in --help.
void add_sampling_options(CLI::App* app, RequestSettings* settings, const std::string& group);

}  // namespace volley::apps

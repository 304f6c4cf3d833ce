// Options that several subcommands have, and the checks of single values. Only the files that build the command line
// include this: CLI11 is large.
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

// Checks that say what the value must be. `description`: "a port from 0 to 65535". Unlike CLI::Range, between() refuses
// what is not a finite number.
CLI::Validator between(double low, double high, const std::string& description);
const CLI::Validator& positive();      // whole numbers of 32 bits, from 1
const CLI::Validator& not_negative();  // from 0
const CLI::Validator& seed();          // of 64 bits, which a double does not hold
const CLI::Validator& not_empty();     // CLI11 takes an empty text for an option that was not given
const CLI::Validator& web_origin();    // as browsers send it
const CLI::Validator& host_name();     // as requests call the server
const CLI::Validator& some_text();     // for the model to read: not empty, and UTF-8

// Each time this option is given it has one value, as it is written: of options with lists CLI11 takes the words that
// follow, too, and "[a, b]" for two values.
CLI::Option* one_value_each(CLI::Option* option);
// The words that follow are values, too, but a value stays as it is written.
CLI::Option* values_as_written(CLI::Option* option);

// The options that are added while it lives have a heading of their own in --help.
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

// --model may also stand without its name, as in `volley serve DIR`.
void add_model_options(CLI::App* app, std::optional<std::string>* model, std::optional<std::string>* draft);
// Rows of the engine's table of options: those of `group`, or of these the ones that `names` has.
void add_table_options(CLI::App* app, EngineOptions* options, OptionGroup group,
                       const std::vector<std::string_view>& names = {});
// The models, where they run and how much they may take. `slots`: the default of --max-num-seqs in words, where it is
// not the engine's.
void add_main_options(CLI::App* app, EngineFlags* flags, const std::string& slots = "");
// The chat template, and what is sampled where a request does not say.
void add_text_options(CLI::App* app, EngineFlags* flags);
// What else the engine takes. Most of it is listed by --help-all alone.
void add_engine_options(CLI::App* app, EngineFlags* flags);
// One engine's mode; bench has lists of the same options instead.
void add_speculation_options(CLI::App* app, EngineFlags* flags);
// What no single option's check can see.
Status check_engine(const EngineFlags& flags);
// `group`: their heading in --help.
void add_sampling_options(CLI::App* app, RequestSettings* settings, const std::string& group);

}  // namespace volley::apps

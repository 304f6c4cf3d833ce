// The command line of `volley`, parsed: plain values, one struct for each subcommand.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "apps/cli/request_settings.h"
#include "apps/cli/verify_spec.h"
#include "serve/events/cache_event_publisher.h"
#include "serve/files/file_store.h"
#include "serve/http/server.h"

namespace volley::apps {

// In place of the model's own; see text_defaults.h.
struct TextFlags {
  std::optional<std::string> chat_template;  // a file
  std::string template_kwargs;               // a JSON object, or empty
  std::string generation_config = "auto";    // or "none", or a folder
  std::string sampling_overrides;            // a JSON object, or empty
};

// The options that generate, serve and bench share, as given. engine_setup.h turns them into EngineOptions.
struct EngineFlags {
  std::optional<std::string> model;        // empty: the embedded default pair
  std::optional<std::string> draft;        // a folder, or "none"
  bool offline = false;                    // what is not on this machine is not fetched
  std::optional<Speculation> speculation;  // empty: DFlash where there is a drafter
  std::vector<Simulation> simulations;     // at most one with one entry, but for bench
  double confidence_odds = 1;              // of all of them
  TextFlags text;                          // of generate, chat, serve and batch
  EngineOptions base;                      // everything else, straight from the command line
};

struct GenerateCommand {
  EngineFlags engine;
  RequestSettings settings;
  std::optional<std::string> prompt, chat, input;  // exactly one
  std::optional<std::string> output;
  bool json = false;
  int concurrency = 1;
};

struct ChatCommand {
  EngineFlags engine;              // with `url` its model alone counts: the name of one that the endpoint serves
  std::optional<std::string> url;  // of an endpoint; empty: a model in this process
  std::optional<std::string> api_key;
  RequestSettings settings;
  std::optional<bool> thinking, show_reasoning;
  std::optional<std::string> system;
  std::optional<std::string> history;  // a file, or "none"; empty: below the user's state folder
};

struct ServeCommand {
  EngineFlags engine;
  serve::ServerOptions server;  // as given; names, keys, log and version are filled in by run_serve
  serve::TlsOptions tls;        // becomes the server's where it names a certificate
  std::vector<std::string> api_keys;
  std::optional<std::string> api_key_file;  // keys, one a line
  std::optional<std::string> files_dir;     // of /v1/files and /v1/batches; empty: there are none
  serve::FileStore::Limits files;
  serve::CacheEventOptions cache_events;
  std::string log_level = "info";
  int drain_timeout_s = 30;  // what still runs so long after a signal is cancelled
};

struct BatchCommand {
  EngineFlags engine;
  std::string input, output;
  std::vector<std::string> served_model_names;  // empty: the name of the model's folder
  int concurrency = 32;
};

struct BenchCommand {
  EngineFlags engine;
  RequestSettings settings;
  std::vector<int> concurrency = {1, 8};
  std::vector<Speculation> speculation;  // empty: off, and dflash where there is a drafter
  std::vector<int> block_sizes = {0};    // 0: the drafter's own
  std::vector<VerifyPolicy> verify;      // empty: auto
  int repeat = 0;                        // runs of each measurement; 0: one, with --rounds three
  std::optional<int> rounds;             // measure so many at full occupancy, instead of whole answers
  int warm_rounds = 50;
  std::vector<int> schedule;         // with --rounds: loads that follow one another, into `trace`
  std::optional<std::string> trace;  // with --rounds
  int prompt_tokens = 128, output_tokens = 128;
  bool random_prompts = false;  // asked for, although the model may have prompts of its own
  int requests = 0;             // a measurement; 0: as many as the concurrency, at least 4
  uint64_t prompt_seed = 1;
  std::optional<std::string> input, output;
  bool json = false;
};

struct BenchServingCommand {
  std::vector<std::string> arguments;  // of volley-suite, as they were given
};

struct InspectCommand {
  std::optional<std::string> model, draft;
  EngineOptions base;  // what the drafter's fit and the memory depend on
  bool json = false;
};

struct PullCommand {
  std::optional<std::string> model, draft;  // names of the hub; of the drafter also "auto", the default, and "none"
};

struct DemoCommand {
  int threads = 0;
};

// A word of the command line, a variable or a line of a file that counts.
struct GivenOption {
  std::string name;                 // "--port", or a variable that is no option
  std::vector<std::string> values;  // of a flag: none
  std::string source;               // "command line", "VOLLEY_PORT", "volley.yaml:3"
};

struct CollectEnvCommand {
  ServeCommand serve;
  std::vector<GivenOption> options;
  bool json = false;
};

struct PrintAndExit {
  std::string text;  // help, version or a script for a shell
};

using Command =
    std::variant<GenerateCommand, ChatCommand, ServeCommand, BatchCommand, BenchCommand, BenchServingCommand,
                 InspectCommand, PullCommand, DemoCommand, CollectEnvCommand, PrintAndExit>;

using Variables = std::vector<std::pair<std::string, std::string>>;  // name and value

// What the command line says; where it says nothing, `variables` (base/environment.h); then the file of --config.
// `warnings`, unless null: a sentence for each variable that nothing reads. kInvalidArgument with one sentence for an
// unknown option, a value out of range, or options that exclude each other.
Result<Command> parse_command_line(int argc, const char* const* argv, const Variables& variables = {},
                                   std::vector<std::string>* warnings = nullptr);

}  // namespace volley::apps

// The parsed command line of `volley`: plain values, one struct for each subcommand.
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

// Replacements for the model's own settings; see text_defaults.h.
struct TextFlags {
  std::optional<std::string> chat_template;  // a file
  std::string template_kwargs;               // a JSON object; may be empty
  std::string generation_config = "auto";    // or "none", or a folder
  std::string sampling_overrides;            // a JSON object; may be empty
};

// Options that generate, serve and bench share, as given. engine_setup.h turns them into EngineOptions.
struct EngineFlags {
  std::optional<std::string> model;        // empty: the embedded pocket pair
  std::optional<std::string> draft;        // a folder, or two with a comma between, or "none"
  bool offline = false;                    // missing models are not downloaded
  std::optional<Speculation> speculation;  // empty: DFlash if there is a drafter
  std::vector<Simulation> simulations;     // at most one with one entry, except for bench
  double confidence_odds = 1;              // for all of them
  TextFlags text;                          // for generate, chat, serve and batch
  EngineOptions base;                      // all other options
};

struct GenerateCommand {
  EngineFlags engine;
  RequestSettings settings;
  std::optional<std::string> prompt, chat, input;  // exactly one is set
  std::optional<std::string> output;
  bool json = false;
  int concurrency = 1;
};

struct ChatCommand {
  EngineFlags engine;              // with `url`, only the model counts: a name that the endpoint serves
  std::optional<std::string> url;  // an endpoint's; empty: a model in this process
  std::optional<std::string> api_key;
  RequestSettings settings;
  std::optional<bool> thinking, show_reasoning;
  std::optional<std::string> system;
  std::optional<std::string> history;  // a file, or "none"; empty: in the user's state folder
};

struct ServeCommand {
  EngineFlags engine;
  serve::ServerOptions server;  // as given; run_serve adds names, keys, log and version
  serve::TlsOptions tls;        // becomes the server's if it names a certificate
  std::vector<std::string> api_keys;
  std::optional<std::string> api_key_file;  // keys, one a line
  std::optional<std::string> files_dir;     // for /v1/files and /v1/batches; empty: neither exists
  serve::FileStore::Limits files;
  std::vector<std::string> image_hosts;  // whose pictures are fetched
  serve::CacheEventOptions cache_events;
  std::string log_level = "info";
  int drain_timeout_s = 30;  // requests that run this long after a signal are cancelled
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
  std::vector<Speculation> speculation;  // empty: off, and dflash if there is a drafter
  std::vector<int> block_sizes = {0};    // 0: the drafter's own
  std::vector<VerifyPolicy> verify;      // empty: auto
  int repeat = 0;                        // runs of each measurement; 0: one, or three with --rounds
  std::optional<int> rounds;             // measure this many rounds at full occupancy, instead of whole answers
  int warm_rounds = 50;
  std::vector<int> schedule;         // with --rounds: successive loads, recorded in `trace`
  std::optional<std::string> trace;  // with --rounds
  int prompt_tokens = 128, output_tokens = 128;
  bool random_prompts = false;  // random prompts, even if the model has its own
  int requests = 0;             // for each measurement; 0: the concurrency, at least 4
  uint64_t prompt_seed = 1;
  std::optional<std::string> input, output;
  bool json = false, kernel_times = false;
};

struct BenchServingCommand {
  std::vector<std::string> arguments;  // volley-suite's, as given
};

struct InspectCommand {
  std::optional<std::string> model, draft;
  EngineOptions base;  // for the drafter's fit and the memory
  bool json = false;
};

struct PullCommand {
  std::optional<std::string> model, draft;  // hub names; the drafter's may be "auto", the default, or "none"
};

struct DemoCommand {
  int threads = 0;
};

// A setting from the command line, a variable or a file.
struct GivenOption {
  std::string name;                 // "--port", or the name of an unknown variable
  std::vector<std::string> values;  // empty for a flag
  std::string source;               // "command line", "VOLLEY_PORT", "volley.yaml:3"
};

struct CollectEnvCommand {
  ServeCommand serve;
  std::vector<GivenOption> options;
  bool json = false;
};

struct PrintAndExit {
  std::string text;  // help, the version or a script for a shell
};

using Command =
    std::variant<GenerateCommand, ChatCommand, ServeCommand, BatchCommand, BenchCommand, BenchServingCommand,
                 InspectCommand, PullCommand, DemoCommand, CollectEnvCommand, PrintAndExit>;

using Variables = std::vector<std::pair<std::string, std::string>>;  // name and value

// Reads the command line; options missing there come from `variables` (base/environment.h), then from the file of
// --config. `warnings`, unless null, gets a sentence for each unknown variable. kInvalidArgument with one sentence for
// an unknown option, a value out of range, or options that exclude each other.
Result<Command> parse_command_line(int argc, const char* const* argv, const Variables& variables = {},
                                   std::vector<std::string>* warnings = nullptr);

}  // namespace volley::apps

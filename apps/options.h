// The command line of `volley`, parsed: plain values, one struct for each subcommand.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "apps/request_settings.h"

namespace volley::apps {

// The options that generate, serve and bench share, as given. engine_setup.h turns them into EngineOptions.
struct EngineFlags {
  std::optional<std::string> model;        // empty: the embedded default pair
  std::optional<std::string> draft;        // a folder, or "none"
  std::optional<Speculation> speculation;  // empty: DFlash where there is a drafter
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

struct ServeCommand {
  EngineFlags engine;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::vector<std::string> served_model_names;
};

struct BenchCommand {
  EngineFlags engine;
  RequestSettings settings;
  std::vector<int> concurrency = {1, 8};
  std::vector<Speculation> speculation;  // empty: off, and dflash where there is a drafter
  std::vector<int> block_sizes = {0};    // 0: the drafter's own
  int prompt_tokens = 128, output_tokens = 128;
  int requests = 0;  // a measurement; 0: as many as the concurrency, at least 4
  uint64_t prompt_seed = 1;
  std::optional<std::string> input, output;
  bool json = false;
};

struct InspectCommand {
  std::optional<std::string> model, draft;
  bool json = false;
};

struct DemoCommand {
  int threads = 0;
};

struct PrintAndExit {
  std::string text;  // help or version
};

using Command = std::variant<GenerateCommand, ServeCommand, BenchCommand, InspectCommand, DemoCommand, PrintAndExit>;

// kInvalidArgument with one sentence for an unknown option, a value out of range, or options that exclude each other.
Result<Command> parse_command_line(int argc, const char* const* argv);

// "geometric:P", P in [0, 1].
Result<double> parse_simulated_acceptance(const std::string& text);

}  // namespace volley::apps

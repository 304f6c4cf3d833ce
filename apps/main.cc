// The program `volley`: parses the command line and runs one subcommand.
#include <unistd.h>

#include <cstdio>
#include <new>
#include <string_view>
#include <variant>

#include "apps/cli/options.h"
#include "apps/commands.h"
#include "apps/compute.h"
#include "apps/console.h"
#include "apps/exit_codes.h"
#include "apps/hub/pull.h"
#include "apps/interrupt.h"
#include "apps/lost_file.h"
#include "apps/standard_streams.h"
#include "base/environment.h"

namespace volley::apps {
namespace {

struct Dispatch {
  InterruptWatch* interrupt;
  Console* console;

  // Commands with an engine first download missing models.
  template <typename C>
  int start(const C& command) const {
    [[maybe_unused]] bool elsewhere = false;  // the model is on another server
    if constexpr (requires { command.url; }) elsewhere = command.url.has_value();
    if constexpr (requires { command.engine; }) {
      if (elsewhere) return (*this)(command);
      if (const Status pulled = pull_missing(command.engine, console); !pulled.ok()) {
        return console->fail(pulled.error().message, kExitModel);
      }
    }
    return (*this)(command);
  }

  int operator()(const GenerateCommand& command) const { return run_generate(command, interrupt, console); }
  int operator()(const ChatCommand& command) const { return run_chat(command, interrupt, console); }
  int operator()(const ServeCommand& command) const { return run_serve(command, interrupt, console); }
  int operator()(const BatchCommand& command) const { return run_batch(command, interrupt, console); }
  int operator()(const BenchCommand& command) const { return run_bench(command, interrupt, console); }
  int operator()(const BenchServingCommand& command) const { return run_bench_serving(command, console); }
  int operator()(const InspectCommand& command) const { return run_inspect(command, console); }
  int operator()(const PullCommand& command) const { return run_pull(command, console); }
  int operator()(const DemoCommand& command) const { return run_demo(command, interrupt, console); }
  int operator()(const CollectEnvCommand& command) const { return run_collect_env(command, console); }
  int operator()(const PrintAndExit& command) const {
    std::fputs(command.text.c_str(), stdout);
    const Status written = flush_standard_output();
    if (!written.ok()) console->error(written.error().message);
    return written.ok() ? kExitOk : kExitUsage;
  }
};

int run(int argc, char** argv) {
  prepare_standard_streams();
  report_lost_files();
  if (const auto descriptor = compute_for(argc, argv)) return run_compute(*descriptor);
  Console console;
  std::vector<std::string> warnings;
  auto command = parse_command_line(argc, argv, env_volley_variables(), &warnings);
  for (const std::string& warning : warnings) console.note(warning);
  if (!command.ok()) return console.fail(command.error().message, kExitUsage);
  // Must come before the watch blocks signals, because the new program inherits that.
  if (const auto* suite = std::get_if<BenchServingCommand>(&*command)) return run_bench_serving(*suite, &console);
  InterruptWatch interrupt;
  const Dispatch dispatch{&interrupt, &console};
  return std::visit([&dispatch](const auto& chosen) { return dispatch.start(chosen); }, *command);
}

// A handler of `new`: on any thread, the process ends here if memory is missing.
[[noreturn]] void end_without_memory() {
  constexpr std::string_view kSentence = "volley: The process has no memory left: give it more.\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kSentence.data(), kSentence.size());
  ::_exit(kExitDevice);
}

}  // namespace
}  // namespace volley::apps

int main(int argc, char** argv) {
  std::set_new_handler(volley::apps::end_without_memory);
  return volley::apps::run(argc, argv);
}

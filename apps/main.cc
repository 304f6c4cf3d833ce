// The program `volley`: parses the command line and hands over to one subcommand.
#include <cstdio>
#include <new>
#include <variant>

#include "apps/batch/batch.h"
#include "apps/bench/bench.h"
#include "apps/bench/serving.h"
#include "apps/chat/chat.h"
#include "apps/collect_env.h"
#include "apps/compute.h"
#include "apps/console.h"
#include "apps/demo.h"
#include "apps/exit_codes.h"
#include "apps/generate/generate.h"
#include "apps/inspect/inspect.h"
#include "apps/interrupt.h"
#include "apps/lost_file.h"
#include "apps/options.h"
#include "apps/serve.h"
#include "apps/standard_streams.h"
#include "base/environment.h"

namespace volley::apps {
namespace {

struct Dispatch {
  InterruptWatch* interrupt;
  Console* console;

  int operator()(const GenerateCommand& command) const { return run_generate(command, interrupt, console); }
  int operator()(const ChatCommand& command) const { return run_chat(command, interrupt, console); }
  int operator()(const ServeCommand& command) const { return run_serve(command, interrupt, console); }
  int operator()(const BatchCommand& command) const { return run_batch(command, interrupt, console); }
  int operator()(const BenchCommand& command) const { return run_bench(command, interrupt, console); }
  int operator()(const BenchServingCommand& command) const { return run_bench_serving(command, console); }
  int operator()(const InspectCommand& command) const { return run_inspect(command, console); }
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
  if (!command.ok()) {
    console.error(command.error().message);
    return kExitUsage;
  }
  // Before the watch blocks signals for whatever this process becomes.
  if (const auto* suite = std::get_if<BenchServingCommand>(&*command)) return run_bench_serving(*suite, &console);
  InterruptWatch interrupt;
  return std::visit(Dispatch{&interrupt, &console}, *command);
}

}  // namespace
}  // namespace volley::apps

int main(int argc, char** argv) {
  try {
    return volley::apps::run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("volley: The process has no memory left: give it more.\n", stderr);
    return volley::apps::kExitDevice;
  }
}

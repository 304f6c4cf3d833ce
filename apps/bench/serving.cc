#include "apps/commands.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "apps/exit_codes.h"

namespace volley::apps {

int run_bench_serving(const BenchServingCommand& command, Console* console) {
  std::string name = "volley-suite";
  std::vector<std::string> arguments = command.arguments;
  std::vector<char*> argv{name.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  // Signals that prepare_standard_streams() ignores would stay ignored in the new program.
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  execvp(name.c_str(), argv.data());
  const std::string reason = errno == ENOENT ? "is not on the PATH" : std::string("cannot start: ") + strerror(errno);
  console->error("volley bench serving is the Python program volley-suite, which " + reason +
                 "; install it with `pip install ./suite` in Volley's sources (docs/bench-serving.md).");
  return kExitUsage;
}

}  // namespace volley::apps

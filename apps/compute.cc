#include "apps/compute.h"

#include <signal.h>
#include <volley/engine.h>

#include <charconv>
#include <string_view>

#include "apps/exit_codes.h"

namespace volley::apps {

std::optional<int> compute_for(int argc, const char* const* argv) {
  if (argc != 3 || std::string_view(argv[1]) != kComputeFor) return std::nullopt;
  const std::string_view text = argv[2];
  int descriptor = -1;
  std::from_chars(text.data(), text.data() + text.size(), descriptor);
  return descriptor;
}

int run_compute(int descriptor) {
  // The process lives as long as the engine, which finishes its last requests after a signal to both. A background
  // group may still write to the terminal.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGTTOU}) ::signal(number, SIG_IGN);
  const Status end = Engine::compute(descriptor);  // the engine reports its own failures
  return end.ok() ? kExitOk : kExitDevice;
}

}  // namespace volley::apps

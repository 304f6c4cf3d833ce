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
  // It lives as long as the engine: whoever gets a signal together with that one waits for its last requests.
  // Its group is not the terminal's, to which it may write all the same.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGTTOU}) ::signal(number, SIG_IGN);
  const Status end = Engine::compute(descriptor);  // the engine says what it fails of
  return end.ok() ? kExitOk : kExitDevice;
}

}  // namespace volley::apps

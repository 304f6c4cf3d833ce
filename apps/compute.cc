#include "apps/compute.h"

#include <signal.h>

#include "apps/engine_setup.h"
#include "apps/exit_codes.h"

namespace volley::apps {

int run_compute(const EngineFlags& flags, Console* console) {
  // It lives as long as the engine: whoever gets a signal together with that one waits for its last requests.
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_IGN);
  auto setup = resolve_engine(flags, 0);
  if (!setup.ok()) {
    console->error(setup.error().message);
    return kExitUsage;
  }
  const Status end = Engine::compute(setup->options, *flags.compute_for);  // the engine says what it fails of
  return end.ok() ? kExitOk : kExitDevice;
}

}  // namespace volley::apps

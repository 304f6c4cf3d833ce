// The process that has the device for another one (EngineOptions::device_command): the same program with the same
// arguments, and --compute-for.
#pragma once

#include "apps/console.h"
#include "apps/options.h"

namespace volley::apps {

int run_compute(const EngineFlags& flags, Console* console);

}  // namespace volley::apps

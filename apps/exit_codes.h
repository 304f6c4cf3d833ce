// The process's exit statuses; `volley --help` prints the same table.
#pragma once

#include <volley/result.h>

namespace volley::apps {

enum ExitCode : int {
  kExitOk = 0,
  kExitRequestsFailed = 1,  // some requests failed
  kExitUsage = 2,           // an option, an input file or an output is wrong
  kExitModel = 3,           // the models could not be loaded
  kExitDevice = 4,          // the device failed or hangs, another node is gone, or no memory is left
  kExitInterrupted = 130,   // Ctrl-C
  kExitTerminated = 143,    // SIGTERM
};

// For an engine that cannot be set up.
inline ExitCode setup_exit_code(const Error& error) {
  return error.code == ErrorCode::kNotFound ? kExitModel : kExitUsage;
}

}  // namespace volley::apps

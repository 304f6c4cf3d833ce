// What an exception says that leaves the start of an engine, or of a process that computes for one.
#pragma once

#include <volley/result.h>

namespace volley::engine {

// Describes the exception that is being handled, and throws one on that it does not know. REQUIRES: called in a
// handler.
Error start_error();

}  // namespace volley::engine

// Turns an exception of an engine's start, or of a process that computes for one, into an Error.
#pragma once

#include <volley/result.h>

namespace volley::engine {

// Describes the exception in flight, and rethrows one that it does not know. REQUIRES: called in a handler.
Error start_error();

}  // namespace volley::engine

// What an exception says that leaves the start of an engine, or of a process that computes for one.
#pragma once

#include <volley/result.h>

namespace volley::engine {

// Of the exception that is being handled; one that is not known is thrown on. REQUIRES: called in a handler.
Error start_error();

}  // namespace volley::engine

// EngineOptions for a process that this program starts. Both are the same program, so that numbers of enumerations mean
// the same.
#pragma once

#include <volley/engine.h>

#include "net/bytes.h"

namespace volley::nodes {

// All but the callbacks and device_command.
void put_options(net::ByteWriter& w, const EngineOptions& options);
EngineOptions take_options(net::ByteReader& r);

}  // namespace volley::nodes

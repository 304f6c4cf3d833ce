// EngineOptions for a process that this program starts. Both are the same program, so enumerators have the same
// numbers.
#pragma once

#include <volley/engine.h>

#include "net/bytes.h"

namespace volley::nodes {

// All options but the callbacks and device_command.
void put_options(net::ByteWriter& w, const EngineOptions& options);
EngineOptions take_options(net::ByteReader& r);

}  // namespace volley::nodes

// What numbers among the options may be. One sentence for each that may not, kInvalidArgument. Threads: any.
#pragma once

#include <volley/engine.h>

#include "engine/start/models.h"

namespace volley::engine {

// The most rows of a pass.
int32_t most_rows(DeviceKind device);

Status check_ranges(const EngineOptions& options);
// Rows of a pass, where their number follows from several options.
Status check_rows(const ResolvedModels& models);

}  // namespace volley::engine

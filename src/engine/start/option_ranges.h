// Checks the ranges of numeric options. Each fault has its sentence, kInvalidArgument. Threads: any.
#pragma once

#include <volley/engine.h>

#include "engine/start/models.h"

namespace volley::engine {

int32_t most_rows(DeviceKind device);

Status check_ranges(const EngineOptions& options);
// Checks the rows of a pass where they follow from several options.
Status check_rows(const ResolvedModels& models);

}  // namespace volley::engine

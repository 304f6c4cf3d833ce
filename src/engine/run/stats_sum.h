// What several replicas counted, as one.
#pragma once

#include <volley/engine.h>

#include <vector>

namespace volley::engine {

// Sums, with the parts in EngineStats::replicas. REQUIRES: at least one, and none has replicas itself.
EngineStats sum(std::vector<EngineStats> replicas);

}  // namespace volley::engine

// Adds the counters of several replicas.
#pragma once

#include <volley/engine.h>

#include <vector>

namespace volley::engine {

// Sums, with the parts in EngineStats::replicas. REQUIRES: at least one; none has replicas itself.
EngineStats sum(std::vector<EngineStats> replicas);

}  // namespace volley::engine

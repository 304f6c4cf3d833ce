// Measures the cost of a round before the first request, and keeps it in a file for the next start.
#pragma once

#include <volley/engine.h>

#include <optional>
#include <string>

#include "decode/budget/cost_model.h"
#include "decode/step_executor.h"
#include "engine/start/models.h"

namespace volley::engine {

// Identifies everything that a round's time depends on: device, model shapes, numeric types, sizes, and the build.
// Pages count only where they hold fewer made-up requests than there are slots.
std::string cost_key(const ResolvedModels& models, const EngineOptions& options, const EngineInfo& info);

// One file for each key. Several processes may share the folder: a file appears whole or not at all.
class CostCache {
 public:
  // dir: created at the first write; empty: no cache.
  CostCache(std::string dir, std::string key);

  // Nothing if the file is missing, unreadable or of another key.
  std::optional<decode::CostModel> read() const;
  // kUnavailable names the file that could not be written, and the reason.
  Status write(const decode::CostModel& costs) const;

  const std::string& path() const { return path_; }  // empty: no cache

 private:
  std::string dir_, key_, path_;
};

// Reads the costs from the cache, or measures and writes them; a cache that cannot be written adds a sentence to
// `warnings`. REQUIRES: the round has had no requests.
Result<decode::CostModel> round_costs(decode::StepExecutor& round, const ResolvedModels& models, const CostCache& cache,
                                      const Progress& progress, std::vector<std::string>& warnings);

}  // namespace volley::engine

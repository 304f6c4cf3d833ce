// What a round costs: measured before the first request, and kept in a file, so that the next start need not measure.
#pragma once

#include <volley/engine.h>

#include <optional>
#include <string>

#include "decode/budget/cost_model.h"
#include "decode/step_executor.h"
#include "engine/start/models.h"

namespace volley::engine {

// Everything that a round's time depends on: device, model shapes, numeric types, sizes, and the build. Pages count
// only where they hold fewer made-up requests than there are slots.
std::string cost_key(const ResolvedModels& models, const EngineOptions& options, const EngineInfo& info);

// One file for each key. Several processes may use one folder: files appear whole or not at all.
class CostCache {
 public:
  // dir: made when something is written; empty: nothing is kept.
  CostCache(std::string dir, std::string key);

  // Nothing where there is no file, or one that cannot be read or was written for another key.
  std::optional<decode::CostModel> read() const;
  // kUnavailable says which file could not be written, and why.
  Status write(const decode::CostModel& costs) const;

  const std::string& path() const { return path_; }  // empty: nothing is kept

 private:
  std::string dir_, key_, path_;
};

// From the cache, or measured now and put there; a cache that cannot be written adds a sentence to `warnings`.
// REQUIRES: the round has had no requests.
Result<decode::CostModel> round_costs(decode::StepExecutor& round, const ResolvedModels& models, const CostCache& cache,
                                      const Progress& progress, std::vector<std::string>& warnings);

}  // namespace volley::engine

// Makes the round of a rank, and measures its memory.
#pragma once

#include <memory>

#include "decode/round.h"
#include "engine/start/models.h"

namespace volley::engine {

// Takes loaded.drafters; the rest of `loaded`, the device and `place` must outlive the round. Errors as
// Round::create().
Result<std::unique_ptr<decode::Round>> make_round(Device& device, const EngineOptions& options,
                                                  const ResolvedModels& models, LoadedModels& loaded,
                                                  const Progress& progress, const RankPlace& place = {});

// Memory that the rounds of all ranks take, measured on devices that have neither memory nor kernels; no weight is
// read. models: all but `memory`. Errors as load_models() and make_round().
struct StepBytes {
  int64_t memory = 0;    // sum over ranks that share a memory; to the byte
  int64_t graphs = 0;    // upper bound on the driver's memory for recorded graphs
  int64_t exchange = 0;  // see ResolvedModels::exchange_bytes; not included in `memory`
};
Result<StepBytes> measure_step(const EngineOptions& options, const ResolvedModels& models);

}  // namespace volley::engine

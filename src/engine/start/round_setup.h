// The round that a rank of an engine of these models runs, and the memory that it takes.
#pragma once

#include <memory>

#include "decode/round.h"
#include "engine/start/models.h"

namespace volley::engine {

// Takes loaded.proposer; the rest of `loaded`, the device and what `place` refers to must outlive the round. Errors as
// Round::create().
Result<std::unique_ptr<decode::Round>> make_round(Device& device, const EngineOptions& options,
                                                  const ResolvedModels& models, LoadedModels& loaded,
                                                  const Progress& progress, const RankPlace& place = {});

// Memory that the round of every rank takes, found by making them on devices that have neither memory nor kernels; no
// weight is read. models: all but `memory`. Errors as load_models() and make_round().
struct StepBytes {
  int64_t memory = 0;    // of ranks that share a memory, together; to the byte
  int64_t graphs = 0;    // that the driver takes for recorded graphs, at most
  int64_t exchange = 0;  // ResolvedModels::exchange_bytes, which is not among `memory`
};
Result<StepBytes> measure_step(const EngineOptions& options, const ResolvedModels& models);

}  // namespace volley::engine

// The round that an engine of these models runs.
#pragma once

#include <memory>

#include "engine/models.h"
#include "spec/round.h"

namespace volley::engine {

// Takes loaded.proposer; the rest of `loaded`, and the device, must outlive the round. Errors as Round::create().
Result<std::unique_ptr<spec::Round>> make_round(Device& device, const EngineOptions& options,
                                                const ResolvedModels& models, LoadedModels& loaded,
                                                const Progress& progress);

}  // namespace volley::engine

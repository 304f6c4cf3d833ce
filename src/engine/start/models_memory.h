// The memory of models of which all else is resolved: weights, states, pages and a step.
#pragma once

#include "engine/start/models.h"

namespace volley::engine {

// Rows of a pass that has room for every slot's whole block and a prompt's chunk beside them: neither waits for the
// other.
int32_t default_rows(const ResolvedModels& models);

// Fills in the weights, the layout of KV and the plan; where that was not asked for, slots are as many as their states
// leave room for. Errors as plan_memory(), measure_step() and model::read_kv_scales().
Status plan_models_memory(const EngineOptions& options, ResolvedModels& models);

}  // namespace volley::engine

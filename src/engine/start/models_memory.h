// Plans weights, states, pages and a step's memory, after all other facts are resolved.
#pragma once

#include "engine/start/models.h"

namespace volley::engine {

// Rows of a pass for every slot's whole block with a prompt's chunk beside them, so that neither waits for the other.
int32_t default_rows(const ResolvedModels& models);

// Fills in the weights, the layout of KV and the plan; by default the slots are as many as their states leave room for.
// Errors as plan_memory(), measure_step() and model::read_kv_scales().
Status plan_models_memory(const EngineOptions& options, ResolvedModels& models);

}  // namespace volley::engine

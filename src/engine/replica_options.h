// What each replica of an engine runs with.
#pragma once

#include <volley/engine.h>

#include <vector>

namespace volley::engine {

// One for each of options.data_parallel_size: on GPUs the next device each, on the CPU their part of the threads, at
// least one. Errors as resolve_device().
Result<std::vector<EngineOptions>> replica_options(const EngineOptions& options);

// What the engine says of itself, from what its replicas do. shared_weights: bytes that all but one do not have.
EngineInfo describe_together(const std::vector<EngineInfo>& replicas, int64_t shared_weights);

}  // namespace volley::engine

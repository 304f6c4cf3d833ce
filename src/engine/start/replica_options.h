// What each replica of an engine runs with.
#pragma once

#include <volley/engine.h>

#include <optional>
#include <string>
#include <vector>

#include "device/device.h"

namespace volley::engine {

// Whether kernels on one GPU wait for those of others: ranks, or replicas that divide the experts.
bool gpus_wait_for_one_another(const EngineOptions& options);

// One for each of options.data_parallel_size: on GPUs the next tensor_parallel_size devices each, on the CPU their part
// of the threads, at least one. Errors as resolve_device().
Result<std::vector<EngineOptions>> replica_options(const EngineOptions& options);

// Each rank of each replica takes at least one thread. A sentence where these are more than the options, or the cores
// where they leave the number open, have; nothing on GPUs. options: the engine's.
std::optional<std::string> too_few_threads(const EngineOptions& options, DeviceKind device);

// Launchers of several nodes bind a process to one core unless they are told otherwise. A sentence where one of several
// nodes computes on the CPU and may run on less than a quarter of its machine's cores, and nobody has said how many
// threads to use.
std::optional<std::string> bound_to_few_cores(const EngineOptions& options, DeviceKind device, int may_run_on,
                                              int of_machine);
// The same of this process.
std::optional<std::string> bound_to_few_cores(const EngineOptions& options, DeviceKind device);

// What the engine says of itself, from what its replicas do. shared_weights: bytes that all but one do not have.
EngineInfo describe_together(const std::vector<EngineInfo>& replicas, int64_t shared_weights);

}  // namespace volley::engine

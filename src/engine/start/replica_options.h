// Derives the options of each replica of an engine.
#pragma once

#include <volley/engine.h>

#include <optional>
#include <string>
#include <vector>

#include "device/device.h"

namespace volley::engine {

// Whether kernels on one GPU wait for other GPUs' kernels: those of ranks, or of replicas that divide the experts.
bool gpus_wait_for_one_another(const EngineOptions& options);

// Options for each of options.data_parallel_size: on GPUs the next tensor_parallel_size devices each, on the CPU an
// equal part of the threads, at least one. Errors as resolve_device().
Result<std::vector<EngineOptions>> replica_options(const EngineOptions& options);

// A sentence if the ranks of all replicas, with a thread each, need more threads than the options give, or than there
// are cores if the options leave the number open. Nothing on GPUs. options: the engine's.
std::optional<std::string> too_few_threads(const EngineOptions& options, DeviceKind device);

// A sentence if one of several nodes computes on the CPU, may run on less than a quarter of its machine's cores, and
// has no given number of threads: launchers bind a process to one core by default.
std::optional<std::string> bound_to_few_cores(const EngineOptions& options, DeviceKind device, int may_run_on,
                                              int of_machine);
// The same, for this process's cores.
std::optional<std::string> bound_to_few_cores(const EngineOptions& options, DeviceKind device);

// Describes the engine by its replicas. shared_weights: bytes that only one replica holds.
EngineInfo describe_together(const std::vector<EngineInfo>& replicas, int64_t shared_weights);

}  // namespace volley::engine

#include "engine/start/replica_options.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/environment.h"
#include "engine/start/models.h"

namespace volley::engine {

bool gpus_wait_for_one_another(const EngineOptions& options) {
  const bool replicas = options.enable_expert_parallel && options.data_parallel_size > 1;
  return options.device != "cpu" && (options.tensor_parallel_size > 1 || replicas);
}

Result<std::vector<EngineOptions>> replica_options(const EngineOptions& options) {
  std::vector<EngineOptions> replicas = {options};
  const int count = options.data_parallel_size;
  if (count <= 1 || count > kMaxReplicas || options.tensor_parallel_size > kMaxRanks) {
    return replicas;  // resolve_models() reports what is out of range
  }
  replicas.resize(static_cast<size_t>(count), options);
  if (gpus_wait_for_one_another(options)) load_gpu_code_early();
  VOLLEY_ASSIGN(const DeviceChoice device, resolve_device(options.device));
  const int threads = options.threads > 0 ? options.threads : usable_cores();
  for (int i = 0; i < count; ++i) {
    EngineOptions& replica = replicas[static_cast<size_t>(i)];
    if (device.kind == DeviceKind::kCpu) {
      replica.threads = std::max(1, threads / count + (i < threads % count ? 1 : 0));
    } else {
      replica.device = "cuda:" + std::to_string(device.ordinal + i * options.tensor_parallel_size);
    }
  }
  return replicas;
}

std::optional<std::string> too_few_threads(const EngineOptions& options, DeviceKind device) {
  const int ranks = options.tensor_parallel_size / options.nnodes * options.data_parallel_size;
  const int threads = options.threads > 0 ? options.threads : usable_cores();
  if (device != DeviceKind::kCpu || threads >= ranks) return std::nullopt;
  const std::string have = options.threads > 0 ? "--threads is " + std::to_string(threads)
                                               : "There are " + std::to_string(threads) + " cores";
  return have + ", fewer than the " + std::to_string(ranks) +
         " ranks of all replicas. Each has a thread all the same, and they take turns: fewer ranks or replicas are "
         "faster.";
}

std::optional<std::string> bound_to_few_cores(const EngineOptions& options, DeviceKind device, int may_run_on,
                                              int of_machine) {
  const bool asked = options.nnodes == 1 || options.threads > 0 || device != DeviceKind::kCpu;
  if (asked || int64_t{4} * may_run_on >= of_machine) return std::nullopt;
  return "This process may run on " + std::to_string(may_run_on) + " of " + std::to_string(of_machine) +
         " cores. If whoever started it has bound it: Open MPI takes --bind-to none, Slurm --cpus-per-task.";
}

// Looks at the affinity alone: a cgroup's quota is deliberate.
std::optional<std::string> bound_to_few_cores(const EngineOptions& options, DeviceKind device) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return std::nullopt;
  return bound_to_few_cores(options, device, CPU_COUNT(&set), static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

EngineInfo describe_together(const std::vector<EngineInfo>& replicas, int64_t shared_weights) {
  EngineInfo all = replicas.front();
  all.data_parallel_size = static_cast<int>(replicas.size());
  for (size_t i = 1; i < replicas.size(); ++i) {
    const EngineInfo& more = replicas[i];
    if (more.device != all.device) all.device += ", " + more.device;
    all.max_model_len = std::min(all.max_model_len, more.max_model_len);
    all.kv_pages += more.kv_pages;
    all.kv_bytes += more.kv_bytes;
    all.weight_bytes += more.weight_bytes - shared_weights;
    all.max_num_seqs += more.max_num_seqs;
    all.threads += more.threads;
    for (const std::string& warning : more.warnings) {
      if (std::ranges::count(all.warnings, warning) == 0) all.warnings.push_back(warning);
    }
  }
  return all;
}

}  // namespace volley::engine

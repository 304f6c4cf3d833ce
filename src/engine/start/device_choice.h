// Where the engine runs: --device, and the devices of its ranks.
// Threads: any.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"

namespace volley::engine {

struct DeviceChoice {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;              // of the GPU, or the first rank's
  int64_t available_bytes = 0;  // memory that can be had now, on the GPU of several that has least
  GpuInfo gpu;                  // not looked at on the CPU
  std::string warning;          // why "auto" is not the GPU that this build is for; empty: nothing to say
};
// --device, and what "auto" means on this machine. kInvalidArgument for what names no device; a GPU that was asked for
// and cannot be used has the errors of examine_cuda_device().
Result<DeviceChoice> resolve_device(const std::string& device);
// What "auto" means: the GPU where it can be used, else the CPU.
DeviceChoice automatic_device(const Result<GpuFacts>& gpu, int64_t cpu_bytes);
// Where a rank of a tensor-parallel group runs whose first one runs on `first`: on GPUs the next ones each.
DeviceChoice device_of_rank(const DeviceChoice& first, int rank);
// Errors as make_cpu_device() and make_cuda_device().
Result<std::unique_ptr<Device>> make_device(const DeviceChoice& choice, int threads);
// Threads of a rank's device, at least one, where all `ranks` of a process are to have `threads` (0: the usable cores).
int threads_of_rank(int threads, int rank, int ranks);

}  // namespace volley::engine

// Resolves --device, and the devices of an engine's ranks. Threads: any.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"

namespace volley::engine {

struct DeviceChoice {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;              // the GPU's, or the first rank's
  int64_t available_bytes = 0;  // free memory now; of several GPUs the least
  GpuInfo gpu;                  // unset on the CPU
  std::string warning;          // why "auto" is not the GPU that this build is for; may be empty
};
// Resolves --device, "auto" included. kInvalidArgument: not a device; a GPU that cannot be used gives the errors of
// examine_cuda_device().
Result<DeviceChoice> resolve_device(const std::string& device);
// Resolves "auto": the GPU if it can be used, else the CPU.
DeviceChoice automatic_device(const Result<GpuFacts>& gpu, int64_t cpu_bytes);
// The device of a rank whose group begins on `first`: on GPUs each rank has the next one.
DeviceChoice device_of_rank(const DeviceChoice& first, int rank);
// Errors as make_cpu_device() and make_cuda_device().
Result<std::unique_ptr<Device>> make_device(const DeviceChoice& choice, int threads);
// Threads of a rank's device, at least one, when all `ranks` of a process share `threads` (0: the usable cores).
int threads_of_rank(int threads, int rank, int ranks);

}  // namespace volley::engine

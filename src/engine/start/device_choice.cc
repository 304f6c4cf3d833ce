#include "engine/start/device_choice.h"

#include <algorithm>
#include <charconv>

#include "engine/start/memory_plan.h"

namespace volley::engine {
namespace {

DeviceChoice on_cpu(int64_t available_bytes) {
  DeviceChoice choice;
  choice.available_bytes = available_bytes;
  return choice;
}

DeviceChoice on_gpu(int ordinal, const GpuFacts& gpu) {
  DeviceChoice choice;
  choice.kind = DeviceKind::kCuda;
  choice.ordinal = ordinal;
  choice.available_bytes = gpu.free_bytes;
  choice.gpu = gpu.info;
  return choice;
}

}  // namespace

Result<DeviceChoice> resolve_device(const std::string& device) {
  if (device == "cpu") return on_cpu(available_memory_bytes());
  int ordinal = 0;
  if (device.starts_with("cuda:")) {
    const char* end = device.data() + device.size();
    const auto [stop, error] = std::from_chars(device.data() + 5, end, ordinal);
    if (error != std::errc() || stop != end || ordinal < 0) {
      return invalid_argument("Unknown device \"" + device + "\": use cuda:0 for the first GPU.");
    }
  } else if (device != "auto" && device != "cuda") {
    return invalid_argument("Unknown device \"" + device + "\": use auto, cpu, cuda or cuda:N.");
  }
  const Result<GpuFacts> gpu = examine_cuda_device(ordinal);
  if (device == "auto") return automatic_device(gpu, available_memory_bytes());
  if (!gpu.ok()) return gpu.error();
  return on_gpu(ordinal, *gpu);
}

// A build without CUDA needs no explanation.
DeviceChoice automatic_device(const Result<GpuFacts>& gpu, int64_t cpu_bytes) {
  if (gpu.ok()) return on_gpu(0, *gpu);
  DeviceChoice cpu = on_cpu(cpu_bytes);
  if (gpu.error().code != ErrorCode::kUnimplemented) cpu.warning = gpu.error().message + " Running on the CPU.";
  return cpu;
}

DeviceChoice device_of_rank(const DeviceChoice& first, int rank) {
  DeviceChoice choice = first;
  if (choice.kind == DeviceKind::kCuda) choice.ordinal += rank;
  return choice;
}

Result<std::unique_ptr<Device>> make_device(const DeviceChoice& choice, int threads) {
  return choice.kind == DeviceKind::kCpu ? make_cpu_device(threads) : make_cuda_device(choice.ordinal);
}

int threads_of_rank(int threads, int rank, int ranks) {
  const int all = threads > 0 ? threads : usable_cores();
  return std::max(1, all / ranks + (rank < all % ranks ? 1 : 0));
}

}  // namespace volley::engine

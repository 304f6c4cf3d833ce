#include "comm/gpu_claim.h"

#include <cudaTypedefs.h>

#include <algorithm>

#include "device/cuda/launch.h"

namespace volley::comm {

std::mutex& GpuClaim::mutex() {
  static std::mutex mutex;
  return mutex;
}

GpuClaim::All& GpuClaim::all() {
  static All all;
  return all;
}

Result<std::unique_ptr<GpuClaim>> GpuClaim::make(const std::vector<int>& gpus) {
  const std::lock_guard lock(mutex());
  const std::set<int> wanted(gpus.begin(), gpus.end());
  for (const std::set<int>& claimed : all()) {
    if (std::ranges::count_if(wanted, [&](int gpu) { return claimed.contains(gpu); }) < 2) continue;
    return failed_precondition(
        "A group of ranks or replicas of this process runs on some of these GPUs, and two of them could wait for each "
        "other for ever. Give each model GPUs of its own.");
  }
  return std::unique_ptr<GpuClaim>(new GpuClaim(all().insert(wanted)));
}

GpuClaim::~GpuClaim() {
  const std::lock_guard lock(mutex());
  all().erase(mine_);
}

Status check_kernels_load_early() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  VOLLEY_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuModuleGetLoadingMode", &entry, 11070, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) return {};
  CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
  VOLLEY_CHECK_EQ(static_cast<int>(reinterpret_cast<PFN_cuModuleGetLoadingMode_v11070>(entry)(&mode)),
                  static_cast<int>(CUDA_SUCCESS));
  if (mode != CU_MODULE_LAZY_LOADING) return {};
  return failed_precondition(
      "This process used CUDA before it was known that its GPUs wait for one another (--tensor-parallel-size, "
      "--enable-expert-parallel), and its driver loads kernels late: set CUDA_MODULE_LOADING=EAGER in the "
      "environment.");
}

}  // namespace volley::comm

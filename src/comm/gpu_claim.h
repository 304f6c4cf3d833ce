// Conditions that groups on GPUs check before they begin.
#pragma once

#include <volley/result.h>

#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace volley::comm {

// The GPUs of a living group. Kernels of a group wait for kernels on other GPUs, and later kernels may fill a GPU
// meanwhile. So two groups with two GPUs in common could wait for each other for ever, each with one of them full.
// Threads: any.
class GpuClaim {
 public:
  // kFailedPrecondition: a living group of this process has two of them.
  static Result<std::unique_ptr<GpuClaim>> make(const std::vector<int>& gpus);
  ~GpuClaim();
  GpuClaim(const GpuClaim&) = delete;
  GpuClaim& operator=(const GpuClaim&) = delete;

 private:
  using All = std::multiset<std::set<int>>;

  explicit GpuClaim(All::iterator mine) : mine_(mine) {}

  static std::mutex& mutex();
  static All& all();  // guarded by mutex()

  const All::iterator mine_;
};

// kFailedPrecondition if the driver loads kernels lazily, at their first launch. Loading may wait for kernels under
// way, and so for another rank's kernel, while that rank waits for the driver's lock: a deadlock.
Status check_kernels_load_early();

}  // namespace volley::comm

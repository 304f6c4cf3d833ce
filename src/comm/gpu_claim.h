// What groups on GPUs ask of a process before they begin.
#pragma once

#include <volley/result.h>

#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace volley::comm {

// The GPUs of a group that lives. Kernels of a group wait for those of other GPUs, and what comes after them may fill a
// GPU meanwhile. So two groups with two GPUs in common could wait for each other for ever, each with one of them full.
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

// kFailedPrecondition where the driver loads a kernel when it is first launched. It may then wait for kernels under
// way, and so for those of another rank, which waits for the lock that it holds.
Status check_kernels_load_early();

}  // namespace volley::comm

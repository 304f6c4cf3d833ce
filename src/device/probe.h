// Measures the speed of this machine beside the figures that are compared with it, because a shared or throttled
// machine changes from minute to minute. Threads: one at a time.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <memory>

namespace volley {

class ThreadPool;

struct MachineSpeed {
  double read_bytes_per_s = 0;  // all threads repeatedly reading memory that they divide among them
  double f32_flops = 0;         // multiply-adds count two; registers only
  double bf16_flops = 0;        // flops of the bf16 dot product; 0 if the CPU has none
};

// Measures the CPU.
class MachineProbe {
 public:
  static constexpr int64_t kBytes = int64_t{256} << 20;  // memory that a measurement takes

  explicit MachineProbe(int threads);
  ~MachineProbe();

  // About 0.2 s. `working_set`: bytes that are read over and over, as a model's weights are; 64 MiB and more exceeds
  // most caches, and a model that fits into a cache must be compared with the cache's speed. At most kBytes.
  MachineSpeed measure(int64_t working_set) const;

 private:
  std::unique_ptr<ThreadPool> pool_;
  int64_t words_;
  struct Free {
    void operator()(uint64_t* memory) const;
  };
  std::unique_ptr<uint64_t[], Free> memory_;
};

// Bytes per second of reading `bytes` of a GPU's memory with plain loads, the best of a few passes. Takes that much
// memory for the time of the call. Errors as make_cuda_device(), and kResourceExhausted.
Result<double> measure_gpu_read(int ordinal, int64_t bytes);

}  // namespace volley

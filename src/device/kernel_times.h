// When kernels ran on one of a process's GPUs, for an account of a step (`volley bench --kernel-times`). CUPTI, found
// at run time, records them; that costs some microseconds a step.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace volley {

struct KernelRun {
  std::string_view name;  // as the compiler mangled it; valid for the life of the process
  uint64_t begin_ns = 0, end_ns = 0;
  uint32_t graph = 0;  // the recorded graph that it is part of, or 0
};

// Starts to record, for the life of the process. Call it before the first device: graphs recorded earlier stay unseen.
// kUnavailable: there is no CUPTI, or no CUDA; the error says what to do. Threads: any, as below.
Status start_kernel_times();
// The kernels that have ended since the last call, by their begin.
std::vector<KernelRun> take_kernel_times();

}  // namespace volley

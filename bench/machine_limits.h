// What the machine can do at best, measured with the same threads as what is compared with it: on a shared machine only
// ratios within one run mean anything.
#pragma once

#include "device/cpu/thread_pool.h"

namespace volley::bench {

struct MachineLimits {
  double read_bytes_per_ns = 0;  // from memory, all threads together
  double products_per_ns = 0;    // bf16 multiply-adds, all threads together; 0 without a bf16 dot product
};

// Best of several; about half a second.
MachineLimits measure_limits(ThreadPool& pool);

}  // namespace volley::bench

// What a GPU does at best, measured beside the figures that are held against it.
#pragma once

#include <volley/result.h>

namespace volley {

// Bytes per second of reading `bytes` of device memory with plain loads, the best of a few passes. Takes that much
// memory for the time of the call. Errors as make_cuda_device(), and kResourceExhausted.
Result<double> measure_gpu_read(int ordinal, int64_t bytes);

}  // namespace volley

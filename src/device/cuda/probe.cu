#include "device/probe.h"

#include <algorithm>

#include "device/cuda/launch.h"

namespace volley {
namespace {

constexpr int kThreads = 512, kPasses = 5;
constexpr int kBlocksEach[] = {4, 8, 16};  // blocks of a multiprocessor: the fastest number differs from GPU to GPU

// Writes one word if the sum is a value that zeroed memory cannot have, so that no load can be left out.
__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* words, int64_t count, uint32_t* out) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  uint4 sum = {0, 0, 0, 0};
#pragma unroll 8
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
    const uint4 w = __ldcs(words + i);
    sum.x ^= w.x;
    sum.y ^= w.y;
    sum.z ^= w.z;
    sum.w ^= w.w;
  }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 1) *out = sum.x;
}

}  // namespace

Result<double> measure_gpu_read(int ordinal, int64_t bytes) {
  VOLLEY_ASSIGN(const auto device, make_cuda_device(ordinal));
  VOLLEY_ASSIGN(const Buffer buffer, device->allocate(static_cast<size_t>(bytes)));
  VOLLEY_ASSIGN(const Buffer out, device->allocate(sizeof(uint32_t)));
  const int processors = device->stream().gpu().multiprocessors;
  cuda::Launch how;
  how.block = dim3(kThreads);
  const auto begin = device->make_fence(), end = device->make_fence();
  double best = 0;
  for (const int blocks : kBlocksEach) {
    how.grid = dim3(static_cast<unsigned>(processors * blocks));
    for (int pass = 0; pass < kPasses; ++pass) {
      begin->set();
      cuda::launch(read_kernel, how, device->stream(), static_cast<const uint4*>(buffer.data()),
                   bytes / static_cast<int64_t>(sizeof(uint4)), static_cast<uint32_t*>(out.data()));
      end->set();
      end->wait();
      best = std::max(best, static_cast<double>(bytes) / end->seconds_since(*begin));
    }
  }
  return best;
}

}  // namespace volley

// What a GPU can do at best, measured in the same run as what is compared with it, and how the benches time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/check.h"
#include "device/cuda/launch.h"
#include "device/probe.h"

namespace volley::bench {

// The first GPU; without one the program ends and says why.
inline std::unique_ptr<Device> cuda_device() {
  auto device = make_cuda_device(0);
  if (device.ok()) return std::move(*device);
  std::fprintf(stderr, "%s\n", device.error().message.c_str());
  std::exit(1);
}

inline Buffer allocate(Device& device, size_t bytes) {
  auto buffer = device.allocate(bytes);
  VOLLEY_CHECK_MSG(buffer.ok(), "out of GPU memory");
  return std::move(*buffer);
}

// Times `replays` replays of what `enqueue` puts on the stream, as a graph; median of `repeats`, in microseconds each.
// `rest_ms` without work come first: matrix products at full speed make a GPU lower its clock within milliseconds.
inline double graph_us(Device& device, const std::function<void()>& enqueue, int replays = 4, int repeats = 7,
                       int rest_ms = 0) {
  std::this_thread::sleep_for(std::chrono::milliseconds(rest_ms));
  const cudaStream_t stream = cuda::native(device.stream());
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  VOLLEY_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue();
  VOLLEY_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  VOLLEY_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  VOLLEY_CUDA_CHECK(cudaEventCreate(&begin));
  VOLLEY_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i <= repeats; ++i) {
    VOLLEY_CUDA_CHECK(cudaEventRecord(begin, stream));
    for (int j = 0; j < replays; ++j) VOLLEY_CUDA_CHECK(cudaGraphLaunch(exec, stream));
    VOLLEY_CUDA_CHECK(cudaEventRecord(end, stream));
    VOLLEY_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    VOLLEY_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms * 1000.0 / replays);  // the first pass warms up
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

static __global__ void fill_kernel(uint16_t* to, int64_t count, uint32_t seed, float scale) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(i >> 32) ^ seed;
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    h ^= h >> 16;
    const float v = (static_cast<float>(h) * 0x1p-31f - 1.0f) * scale;
    to[i] = static_cast<uint16_t>(__float_as_uint(v) >> 16);
  }
}

// Random bf16 values, uniform in (-scale, scale).
inline void fill_bf16(Device& device, void* to, int64_t count, uint32_t seed, float scale) {
  cuda::launch(fill_kernel, {.grid = dim3(132 * 8), .block = dim3(256)}, device.stream(), static_cast<uint16_t*>(to),
               count, seed, scale);
}

// Bytes per microsecond of plain loads from the benches' GPU, over many times its cache.
inline double read_bandwidth() {
  const Result<double> read = measure_gpu_read(0, int64_t{8} << 30);
  if (read.ok()) return *read * 1e-6;
  std::fprintf(stderr, "%s\n", read.error().message.c_str());
  std::exit(1);
}

}  // namespace volley::bench

// What the copy engine can read at best, on the GPUs that have one: compute capability 9.0 and later.
#pragma once

#include "cuda_limits.cuh"
#include "device/cuda/hopper.cuh"

namespace volley::bench {

inline constexpr int kStreamStages = 12, kStreamPiece = 16 << 10;
inline constexpr int64_t kLargestCache = int64_t{128} << 20;

// Each block streams `pieces` pieces into a ring of shared memory and looks at none of them. Block b reads pieces
// b, b + blocks, … of a region of `region_pieces`, over and over. once: what is read will not be wanted again soon.
static __global__ void stream_kernel(const uint8_t* from, int64_t region_pieces, int pieces, bool once) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[kStreamStages];
  if (threadIdx.x == 0) {
    for (uint64_t& b : full) hopper::barrier_init(&b, 1);
    hopper::barrier_init_fence();
    uint8_t* ring = dynamic + (1024 - hopper::shared_address(dynamic) % 1024) % 1024;
    const uint64_t policy = once ? hopper::l2_evict_first() : hopper::l2_evict_normal();
    for (int i = 0; i < pieces + kStreamStages; ++i) {
      const int stage = i % kStreamStages;
      if (i >= kStreamStages) hopper::barrier_wait(&full[stage], (i / kStreamStages - 1) % 2);
      if (i >= pieces) continue;
      hopper::barrier_expect(&full[stage], kStreamPiece);
      const int64_t piece = (blockIdx.x + static_cast<int64_t>(i) * gridDim.x) % region_pieces;
      hopper::bulk_copy(ring + stage * kStreamPiece, from + piece * kStreamPiece, kStreamPiece, &full[stage], policy);
    }
  }
#endif
}

// Bytes per microsecond of the copy engine with `blocks` blocks over the first `region` bytes. What does not fit into
// the cache is read as weights are, marked to leave it first. REQUIRES: compute capability 9.0.
inline double stream_bandwidth(Device& device, const Buffer& buffer, int64_t region, int blocks) {
  const int pieces = static_cast<int>((int64_t{4} << 30) / kStreamPiece / blocks);
  const double us = graph_us(device, [&] {
    cuda::launch(stream_kernel,
                 {.grid = cuda::dims(blocks), .block = dim3(32), .shared_bytes = kStreamStages * kStreamPiece + 1024},
                 device.stream(), static_cast<const uint8_t*>(buffer.data()), region / kStreamPiece, pieces,
                 region > kLargestCache);
  });
  return static_cast<double>(pieces) * blocks * kStreamPiece / us;
}

}  // namespace volley::bench

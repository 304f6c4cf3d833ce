// A team of thread blocks that work on one row together: a cluster where the GPU has them (sm_90), else one block.
//
// Shared memory is reached by name, not through members or references, and functions used in several places are not
// inlined: otherwise the compiler takes generic addresses, and the code outgrows the instruction cache.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>

#include "device/cuda/hopper.cuh"

namespace volley::ops::choice {

class Team {
 public:
  static constexpr int kThreads = 512;  // threads of a block
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kMaxBlocks = 8;  // the largest cluster that every sm_90 GPU runs

  using Number = unsigned long long;

  __device__ static uint32_t rank() {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().block_rank();
#else
    return 0;
#endif
  }
  __device__ static uint32_t size() {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().num_blocks();
#else
    return 1;
#endif
  }

  // Once, before anything else.
  __device__ void init() {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x < 2) {
      hopper::barrier_init(&shared().arrived[threadIdx.x], 1);
      hopper::barrier_init_fence();
    }
#endif
    sync();
  }

  // A barrier of all threads of all blocks; earlier writes are visible to all afterwards. One thread's fence covers its
  // block: fences of all 16 warps took longer than the work between them.
  __device__ static void sync() {
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) asm volatile("fence.acq_rel.cluster;" ::: "memory");
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }

  // `variable` of this block's shared memory, in block `rank`.
  template <typename T>
  __device__ static T* of(T* variable, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(variable, rank);
#else
    return variable;
#endif
  }

  // The highest number or the sum over all threads of the team, the same in each. When it returns, every thread of the
  // team has called it; it does not make their other writes visible.
  __device__ __noinline__ Number highest(Number value) {
    return reduce(value, [](Number a, Number b) { return a > b ? a : b; });
  }
  __device__ __noinline__ Number sum(Number value) {
    return reduce(value, [](Number a, Number b) { return a + b; });
  }

  // highest() over the threads of this block alone.
  __device__ __noinline__ static Number highest_of_block(Number value) {
    Shared& s = shared();
    const auto combine = [](Number a, Number b) { return a > b ? a : b; };
    value = reduce_warp(value, combine);
    if (threadIdx.x % 32 == 0) s.block_warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = s.block_warps[0];
    for (int i = 1; i < kWarps; ++i) value = combine(value, s.block_warps[i]);
    __syncthreads();
    return value;
  }

 private:
  struct Shared {
    Number warps[2][kWarps];
    Number block_warps[kWarps];  // for highest_of_block()
    Number blocks[2][kMaxBlocks];
    uint64_t arrived[2];  // transaction barriers
  };
  __device__ static Shared& shared() {
    __shared__ Shared memory;
    return memory;
  }

  template <typename Combine>
  __device__ static Number reduce_warp(Number value, Combine combine) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(0xffffffff, value, step));
    return value;
  }

#if __CUDA_ARCH__ >= 900
  // Puts `value` where block `rank` waits for it: the copy itself signals the other's barrier, no fence is needed.
  __device__ void send(Number value, uint32_t to) const {
    uint32_t slot, barrier;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(slot)
        : "r"(hopper::shared_address(&shared().blocks[turn_][rank()])), "r"(to));
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(barrier)
        : "r"(hopper::shared_address(&shared().arrived[turn_])), "r"(to));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(slot), "l"(value),
                 "r"(barrier)
                 : "memory");
  }
  __device__ void receive() const {
    asm volatile(
        "{\n.reg .pred done;\nagain: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(hopper::shared_address(&shared().arrived[turn_])),
        "r"(phase_)
        : "memory");
  }
#endif

  // combine: associative and commutative, and 0 leaves any value as it is.
  template <typename Combine>
  __device__ Number reduce(Number value, Combine combine) {
    Shared& s = shared();
    const uint32_t lane = threadIdx.x % 32;
    value = reduce_warp(value, combine);
    if (lane == 0) s.warps[turn_][threadIdx.x / 32] = value;
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    const uint32_t blocks = size();
    if (threadIdx.x < 32) {
      value = reduce_warp(lane < kWarps ? s.warps[turn_][lane] : 0, combine);
      if (lane == 0) hopper::barrier_expect(&s.arrived[turn_], blocks * static_cast<uint32_t>(sizeof(Number)));
      if (lane < blocks) send(value, lane);
    }
    receive();
    Number all = s.blocks[turn_][0];
    for (uint32_t i = 1; i < blocks; ++i) all = combine(all, s.blocks[turn_][i]);
    // Two buffers: a block that still reads these has not sent the next numbers, and without those no block sends to
    // these again.
    if (turn_ == 1) phase_ ^= 1;
    turn_ ^= 1;
    return all;
#else
    Number all = s.warps[turn_][0];
    for (int i = 1; i < kWarps; ++i) all = combine(all, s.warps[turn_][i]);
    __syncthreads();
    return all;
#endif
  }

  uint32_t turn_ = 0;
  uint32_t phase_ = 0;  // phase of the barriers
};

}  // namespace volley::ops::choice

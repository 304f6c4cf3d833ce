// How kernels send sums to where SentSums says.
#pragma once

#include "device/cuda/dependent.cuh"
#include "device/cuda/messages.cuh"
#include "ops/linear/cuda/sent_sums.h"

namespace volley::ops {

// After wait_for_predecessors(): the turns before have ended then, and the coming one does not end before the sender.
__device__ inline uint64_t turns_so_far(const SentSums& sent) {
  return *static_cast<const volatile uint64_t*>(sent.turns);
}

// Called by a product that is about to send: lets the kernel start that adds the sums. Not sooner, because that kernel
// would poll all the while.
__device__ inline void let_sums_start() {
  cuda::wait_for_predecessors();
  cuda::launch_dependents();
}

// V neighbouring sums, the first of them number i.
template <int V>
__device__ inline void send_sums(const SentSums& sent, uint64_t turns, int i, const cuda::Pack<V>& sums) {
  const int64_t at = static_cast<int64_t>(turns % kMailboxes) * kMailboxFloats + i;
  const cuda::Pack<V> messages = cuda::sendable(sums);
  if (sent.part > 0) return cuda::send<V>(sent.to[static_cast<uint32_t>(i) / sent.part] + at, messages);
  cuda::send<V>(sent.to[0] + at, messages);
  cuda::send<V>(sent.to[1] + at, messages);
}
__device__ inline void send_sums(const SentSums& sent, uint64_t turns, int i, float4 v) {
  send_sums<4>(sent, turns, i,
               {{__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)}});
}
__device__ inline void send_sums(const SentSums& sent, uint64_t turns, int i, float2 v) {
  send_sums<2>(sent, turns, i, {{__float_as_uint(v.x), __float_as_uint(v.y)}});
}
__device__ inline void send_sums(const SentSums& sent, uint64_t turns, int i, float v) {
  send_sums<1>(sent, turns, i, {{__float_as_uint(v)}});
}

}  // namespace volley::ops

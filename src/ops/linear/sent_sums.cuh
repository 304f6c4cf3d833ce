// How kernels send sums to where SentSums says.
#pragma once

#include "device/cuda/messages.cuh"
#include "ops/linear/sent_sums.h"

namespace volley::ops {

// After wait_for_predecessors(): the kernel that ends a turn runs before the sender, or after it. REQUIRES: sums are
// sent.
__device__ inline uint64_t turns_so_far(const SentSums& sent) {
  return *static_cast<const volatile uint64_t*>(sent.turns);
}

// V neighbouring sums, the first of them number i.
template <int V>
__device__ inline void send_sums(const SentSums& sent, uint64_t turns, int i, const cuda::Pack<V>& sums) {
  float* const to = sent.to[sent.part == 0 ? 0 : static_cast<uint32_t>(i) / sent.part];
  if (to == nullptr) return;
  cuda::send<V>(to + static_cast<int64_t>(turns % kMailboxes) * kMailboxFloats + i, cuda::sendable(sums));
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

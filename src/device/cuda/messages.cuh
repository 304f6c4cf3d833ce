// Floats that are messages: a GPU stores one into another GPU's memory, over the value kEmpty, and the reader knows by
// that alone that it has arrived (comm/peer_kernels.cuh).
#pragma once

#include <cstdint>

namespace volley::cuda {

// A NaN that no arithmetic gives; a sender that would have to send it sends another NaN instead.
inline constexpr uint32_t kEmpty = 0xffffffff, kOtherNan = 0x7fffffff;

// The floats that a thread moves at once: 1, 2 or 4.
template <int V>
struct Pack {
  uint32_t bits[V];
};

template <int V>
__device__ inline Pack<V> sendable(Pack<V> p) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (p.bits[i] == kEmpty) p.bits[i] = kOtherNan;
  }
  return p;
}

// Each float arrives whole; those of a pack may arrive one after the other.
template <int V>
__device__ inline void send(float* to, const Pack<V>& p) {
  static_assert(V == 1 || V == 2 || V == 4);
  if constexpr (V == 4) {
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(p.bits[0]), "r"(p.bits[1]), "r"(p.bits[2]), "r"(p.bits[3])
                 : "memory");
  } else if constexpr (V == 2) {
    asm volatile("st.relaxed.sys.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(p.bits[0]),
                 "r"(p.bits[1])
                 : "memory");
  } else {
    asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(p.bits[0]) : "memory");
  }
}

}  // namespace volley::cuda

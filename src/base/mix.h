// Hashing of whole numbers, the same source for CPU and GPU.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace volley {

// The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014): a bijection
// in which every bit of x reaches every bit of the result. 0 stays 0.
VOLLEY_HOST_DEVICE constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The constant that SplitMix64 adds to its state before each number: mix_bits(seed + i * kSplitMixStep), i = 1, 2, …
// are its numbers.
inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

}  // namespace volley

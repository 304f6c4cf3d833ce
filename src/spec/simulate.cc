#include "spec/simulate.h"

namespace volley::spec {
namespace {

// SplitMix64 (Steele, Lea and Flood 2014): a good mix of a counter.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

int32_t simulated_acceptance(double p, int32_t drafted, uint64_t seed, int32_t start) {
  uint64_t state = mix(seed ^ mix(static_cast<uint64_t>(start)));
  int32_t accepted = 0;
  while (accepted < drafted) {
    state = mix(state);
    if (static_cast<double>(state >> 11) * 0x1.0p-53 >= p) break;
    ++accepted;
  }
  return accepted;
}

}  // namespace volley::spec

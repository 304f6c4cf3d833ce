// Arithmetic that CPU and GPU share. Private to this folder.
#pragma once

#include <bit>
#include <cstdint>

#include "base/mix.h"
#include "ops/router/router.h"

namespace volley::ops {

// Scores in their order as whole numbers greater than 0: NaN lowest, then -infinity; -0 equals 0.
VOLLEY_HOST_DEVICE inline uint32_t score_order(float score) {
  if (score != score) return 1;
  if (score == 0) return 0x80000000u;
  const uint32_t bits = std::bit_cast<uint32_t>(score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// SimulatedRouting: the random numbers of a row, and its i-th expert as a rank among those not chosen before.
VOLLEY_HOST_DEVICE inline uint64_t simulated_row(const SimulatedRouting& how, int32_t row_slot, int32_t position) {
  const uint64_t layer = mix_bits(uint64_t{how.seed} << 32 | how.layer);
  return mix_bits(layer ^ (uint64_t{static_cast<uint32_t>(row_slot)} << 32 | static_cast<uint32_t>(position)));
}
VOLLEY_HOST_DEVICE inline int32_t simulated_rank(const RouterRule& rule, uint64_t row, int32_t i) {
  const uint64_t random = mix_bits(row + kSplitMixStep * static_cast<uint64_t>(i + 1)) >> 32;
  return static_cast<int32_t>(random * static_cast<uint64_t>(rule.experts - i) >> 32);
}

// The row's top_k different experts, ascending.
VOLLEY_HOST_DEVICE inline void simulated_experts(const RouterRule& rule, const SimulatedRouting& how, int32_t row_slot,
                                                 int32_t position, int32_t* chosen) {
  const uint64_t row = simulated_row(how, row_slot, position);
  for (int32_t i = 0; i < rule.top_k; ++i) {
    int32_t expert = simulated_rank(rule, row, i), at = 0;
    for (; at < i && chosen[at] <= expert; ++at) ++expert;
    for (int32_t j = i; j > at; --j) chosen[j] = chosen[j - 1];
    chosen[at] = expert;
  }
}

}  // namespace volley::ops

// The first steps of the rule: penalties, logit bias and masks.
#pragma once

#include <span>

#include "ops/choice/sampler_state_cpu.h"
#include "ops/choice/slices.h"

namespace volley::ops::choice {

// One choice to make.
struct RowInput {
  const float* logits = nullptr;  // [vocab]
  const Slot* slot = nullptr;
  int32_t index = 0;                // sequence index of the token to choose
  std::span<const TokenId> prefix;  // outputs before it that are not committed yet
  std::span<const uint32_t> mask;   // grammar: bit v % 32 of word v / 32; empty: everything is allowed
};

// Whether the steps change any logit of this row.
bool needs_adjustment(const RowInput& in);

// Writes the logits after the steps to adjusted[vocab]. -inf stays -inf through all of them.
void adjust(const RowInput& in, const Slices& slices, float* adjusted);

}  // namespace volley::ops::choice

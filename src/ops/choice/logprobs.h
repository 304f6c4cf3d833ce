// Log-softmax of a row's raw logits, for the chosen token and the likeliest ones.
#pragma once

#include "ops/choice/choice.h"
#include "ops/choice/slices.h"

namespace volley::ops::choice {

// logits: [vocab], usable (no NaN, no +inf, not all -inf) with maximum `peak`. top: at most 20.
void raw_logprobs(const float* logits, float peak, TokenId chosen, int32_t top, const Slices& slices, RowLogprobs& out);

}  // namespace volley::ops::choice

#include "ops/choice/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/choice/filters.h"
#include "ops/choice/kernels.h"

namespace volley::ops::choice {
namespace {

// Fills `list` with the `count` highest tokens and their logits, highest first, ties to the lower id, and returns how
// many there are. Few tokens beat the lowest of the list once it is full, so nearly all the time goes into the
// vectorised search for the next one.
int32_t highest_tokens(const float* logits, int32_t vocab, int32_t count, TokenLogprob* list) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  int32_t found = 0;
  float bar = -std::numeric_limits<float>::max();  // the lowest logit that enters
  for (int32_t v = 0; count > 0; ++v) {
    v = find_at_least(logits, v, vocab, bar);
    if (v == vocab) break;
    TokenLogprob* place = std::find_if(list, list + found, [&](const auto& t) { return t.logprob < logits[v]; });
    if (found < count) ++found;
    std::move_backward(place, list + found - 1, list + found);
    *place = {v, logits[v]};
    if (found == count) bar = std::nextafter(list[count - 1].logprob, kInfinity);
  }
  return found;
}

}  // namespace

void raw_logprobs(const float* logits, float peak, TokenId chosen, int32_t top, const Slices& slices,
                  RowLogprobs& out) {
  const double weight = row_weight({.values = logits, .divisor = 1.0f, .peak = peak, .cut = {}}, slices);
  const double log_sum = static_cast<double>(peak) + std::log(weight / static_cast<double>(kWeightOne));
  const auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - log_sum); };
  out.chosen = {chosen, logprob(logits[chosen])};
  out.count = highest_tokens(logits, slices.vocab(), top, out.top);
  for (int32_t i = 0; i < out.count; ++i) out.top[i].logprob = logprob(out.top[i].logprob);
}

}  // namespace volley::ops::choice

namespace volley::ops {

PositionLogprobs to_position_logprobs(const RowLogprobs& row) {
  return {row.chosen, {row.top, row.top + row.count}};
}

}  // namespace volley::ops

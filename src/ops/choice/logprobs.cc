#include "ops/choice/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/choice/filters.h"
#include "ops/choice/kernels.h"

namespace volley::ops::choice {
namespace {

// Replaces `list` by the `count` highest tokens with their logits, highest first, ties to the lower id. Few tokens beat
// the lowest of the list once it is full, so nearly all the time goes into the vectorised search for the next one.
void highest_tokens(const float* logits, int32_t vocab, size_t count, std::vector<TokenLogprob>& list) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  list.clear();
  list.reserve(count + 1);
  float bar = -std::numeric_limits<float>::max();  // the lowest logit that enters
  for (int32_t v = 0; count > 0; ++v) {
    v = find_at_least(logits, v, vocab, bar);
    if (v == vocab) break;
    const auto place = std::find_if(list.begin(), list.end(), [&](const auto& t) { return t.logprob < logits[v]; });
    list.insert(place, {v, logits[v]});
    if (list.size() > count) list.pop_back();
    if (list.size() == count) bar = std::nextafter(list.back().logprob, kInfinity);
  }
}

}  // namespace

void raw_logprobs(const float* logits, float peak, TokenId chosen, int32_t top, const Slices& slices,
                  PositionLogprobs& out) {
  const double weight = row_weight({.values = logits, .divisor = 1.0f, .peak = peak, .cut = {}}, slices);
  const double log_sum = static_cast<double>(peak) + std::log(weight / static_cast<double>(kWeightOne));
  const auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - log_sum); };
  out.chosen = {chosen, logprob(logits[chosen])};
  highest_tokens(logits, slices.vocab(), static_cast<size_t>(top), out.top);
  for (TokenLogprob& t : out.top) t.logprob = logprob(t.logprob);
}

}  // namespace volley::ops::choice

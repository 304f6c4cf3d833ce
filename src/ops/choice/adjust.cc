#include "ops/choice/adjust.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace volley::ops::choice {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

bool ends_masked(const RowInput& in) {
  const SlotSampling& s = in.slot->sampling;
  return in.index - s.prompt_length < s.min_tokens && !s.end_ids.empty();
}

// Tokens beyond the mask are not in the grammar's vocabulary (a padded output head), and are not allowed.
void copy_allowed(const float* logits, std::span<const uint32_t> mask, int32_t begin, int32_t end, float* out) {
  for (int32_t at = begin; at < end; at += 32) {
    const int32_t stop = std::min(at + 32, end);
    const size_t word = static_cast<size_t>(at) / 32;
    const uint32_t bits = word < mask.size() ? mask[word] : 0;
    if (bits == 0) {
      std::fill(out + at, out + stop, kMasked);
    } else if (bits == ~uint32_t{0}) {
      std::copy(logits + at, logits + stop, out + at);
    } else {
      for (int32_t v = at; v < stop; ++v) out[v] = (bits >> (v - at)) & 1u ? logits[v] : kMasked;
    }
  }
}

// Whether the row has a logit for the token.
bool has(const Slices& slices, TokenId token) {
  return token < slices.vocab();
}

// For a token that the prompt or the output holds.
float penalise(float logit, const SamplingParams& p, uint32_t outputs) {
  logit = logit > 0.0f ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  logit -= p.frequency_penalty * static_cast<float>(outputs);
  if (outputs > 0) logit -= p.presence_penalty;
  return logit;
}

void apply_penalties(const RowInput& in, const Slices& slices, float* adjusted) {
  const Slot& slot = *in.slot;
  const SamplingParams& params = slot.sampling.params;
  for (const TokenId token : slot.seen) {
    if (has(slices, token)) adjusted[token] = penalise(adjusted[token], params, slot.history[token].outputs);
  }
  // Tokens of the prefix are penalised again, from their raw logit and with the full count. Masked tokens stay masked.
  for (const TokenId token : in.prefix) {
    VOLLEY_CHECK(token >= 0 && static_cast<size_t>(token) < slot.history.size());
    if (!has(slices, token) || adjusted[token] == kMasked) continue;
    const auto here = static_cast<uint32_t>(std::count(in.prefix.begin(), in.prefix.end(), token));
    adjusted[token] = penalise(in.logits[token], params, slot.history[token].outputs + here);
  }
}

}  // namespace

bool needs_adjustment(const RowInput& in) {
  return in.slot->rule.penalised || !in.slot->sampling.params.logit_bias.empty() || !in.mask.empty() || ends_masked(in);
}

void adjust(const RowInput& in, const Slices& slices, float* adjusted) {
  slices.each([&](int32_t /*slice*/, int32_t begin, int32_t end) {
    if (in.mask.empty()) {
      std::copy(in.logits + begin, in.logits + end, adjusted + begin);
    } else {
      copy_allowed(in.logits, in.mask, begin, end, adjusted);
    }
  });
  if (in.slot->rule.penalised) apply_penalties(in, slices, adjusted);
  for (const auto& [token, bias] : in.slot->sampling.params.logit_bias) {
    if (has(slices, token)) adjusted[token] += bias;
  }
  if (ends_masked(in)) {
    for (const TokenId token : in.slot->sampling.end_ids) {
      if (has(slices, token)) adjusted[token] = kMasked;
    }
  }
}

}  // namespace volley::ops::choice

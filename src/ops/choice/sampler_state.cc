#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "ops/choice/choice.h"
#include "ops/choice/kernels.h"
#include "ops/choice/slot.h"

namespace volley::ops {
namespace {

// Smaller temperatures act as this one. It is greedy for all that fp32 logits can tell apart, and quotients stay
// finite.
constexpr float kLowestTemperature = 1e-6f;

constexpr int32_t kMaxLogprobs = 20;

// The engine has validated what users send; a violation here is ours.
void check_params(const SlotSampling& s, int32_t vocab) {
  const SamplingParams& p = s.params;
  VOLLEY_CHECK(std::isfinite(p.temperature) && p.temperature >= 0.0f);
  VOLLEY_CHECK(p.top_p > 0.0f && p.top_p <= 1.0f);
  VOLLEY_CHECK_GE(p.top_k, -1);
  VOLLEY_CHECK(p.min_p >= 0.0f && p.min_p <= 1.0f);
  VOLLEY_CHECK(std::isfinite(p.repetition_penalty) && p.repetition_penalty > 0.0f);
  VOLLEY_CHECK(std::isfinite(p.presence_penalty) && std::isfinite(p.frequency_penalty));
  VOLLEY_CHECK(p.logprobs >= -1 && p.logprobs <= kMaxLogprobs);
  for (const auto& [token, bias] : p.logit_bias) VOLLEY_CHECK(token >= 0 && token < vocab && std::isfinite(bias));
  for (const TokenId token : s.end_ids) VOLLEY_CHECK(token >= 0 && token < vocab);
}

}  // namespace

SamplerState::Slot::Slot(SlotSampling s, int32_t vocab) : sampling(std::move(s)) {
  check_params(sampling, vocab);
  const SamplingParams& p = sampling.params;
  greedy = p.temperature == 0.0f;
  divisor = greedy ? 1.0f : std::max(p.temperature, kLowestTemperature);
  top_k = p.top_k > 0 && p.top_k < vocab ? p.top_k : 0;
  if (p.min_p > 0.0f) log_min_p = std::log(static_cast<double>(p.min_p));
  penalised = p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
  if (penalised) history.resize(vocab);
}

TokenHistory& SamplerState::Slot::touch(TokenId token) {
  VOLLEY_CHECK(token >= 0 && static_cast<size_t>(token) < history.size());
  TokenHistory& h = history[token];
  if (h.in_prompt == 0 && h.outputs == 0) seen.push_back(token);
  return h;
}

void SamplerState::Slot::count_outputs(std::span<const TokenId> tokens) {
  if (!penalised) return;
  for (const TokenId token : tokens) ++touch(token).outputs;
}

void SamplerState::Slot::mark_prompt(std::span<const TokenId> tokens) {
  if (sampling.params.repetition_penalty == 1.0f) return;
  for (const TokenId token : tokens) touch(token).in_prompt = 1;
}

SamplerState::SamplerState(int32_t slots, int32_t vocab) : slots_(slots), vocab_(vocab) {
  VOLLEY_CHECK(vocab >= 1 && vocab <= kMaxVocab);
}

SamplerState::~SamplerState() = default;

void SamplerState::start(int32_t slot, SlotSampling sampling, std::span<const TokenId> prompt,
                         std::span<const TokenId> output) {
  VOLLEY_CHECK(slot >= 0 && static_cast<size_t>(slot) < slots_.size());
  auto fresh = std::make_unique<Slot>(std::move(sampling), vocab_);
  fresh->mark_prompt(prompt);
  fresh->count_outputs(output);
  slots_[slot] = std::move(fresh);
}

void SamplerState::append(int32_t slot, std::span<const TokenId> tokens) {
  VOLLEY_CHECK(slot >= 0 && static_cast<size_t>(slot) < slots_.size() && slots_[slot] != nullptr);
  slots_[slot]->count_outputs(tokens);
}

void SamplerState::clear(int32_t slot) {
  VOLLEY_CHECK(slot >= 0 && static_cast<size_t>(slot) < slots_.size());
  slots_[slot].reset();
}

const SamplerState::Slot& SamplerState::slot(int32_t slot) const {
  VOLLEY_CHECK(slot >= 0 && static_cast<size_t>(slot) < slots_.size() && slots_[slot] != nullptr);
  return *slots_[slot];
}

}  // namespace volley::ops

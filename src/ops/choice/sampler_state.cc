#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "ops/choice/sampler_state_cpu.h"

namespace volley::ops {
namespace choice {
namespace {

// Smaller temperatures act as this one. It is greedy for all that fp32 logits can tell apart, and quotients stay
// finite.
constexpr float kLowestTemperature = 1e-6f;

void check_params(const SlotSampling& s, int32_t vocab) {
  const SamplingParams& p = s.params;
  VOLLEY_CHECK(std::isfinite(p.temperature) && p.temperature >= 0.0f);
  VOLLEY_CHECK(p.top_p > 0.0f && p.top_p <= 1.0f);
  VOLLEY_CHECK_GE(p.top_k, -1);
  VOLLEY_CHECK(p.min_p >= 0.0f && p.min_p <= 1.0f);
  VOLLEY_CHECK(std::isfinite(p.repetition_penalty) && p.repetition_penalty > 0.0f);
  VOLLEY_CHECK(std::isfinite(p.presence_penalty) && std::isfinite(p.frequency_penalty));
  VOLLEY_CHECK(p.logprobs >= -1 && p.logprobs <= kMaxLogprobs);
  VOLLEY_CHECK_LE(p.logit_bias.size(), static_cast<size_t>(kMaxLogitBias));
  for (const auto& [token, bias] : p.logit_bias) VOLLEY_CHECK(token >= 0 && token < vocab && std::isfinite(bias));
  VOLLEY_CHECK_LE(s.end_ids.size(), static_cast<size_t>(kMaxEndIds));
  for (const TokenId token : s.end_ids) VOLLEY_CHECK(token >= 0 && token < vocab);
}

}  // namespace

SlotRule resolve(const SlotSampling& sampling, int32_t vocab) {
  check_params(sampling, vocab);
  const SamplingParams& p = sampling.params;
  SlotRule rule;
  rule.greedy = p.temperature == 0.0f;
  rule.divisor = rule.greedy ? 1.0f : std::max(p.temperature, kLowestTemperature);
  rule.top_k = p.top_k > 0 && p.top_k < vocab ? p.top_k : 0;
  if (p.min_p > 0.0f) rule.log_min_p = std::log(static_cast<double>(p.min_p));
  rule.penalised = p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
  return rule;
}

Slot::Slot(SlotSampling s, int32_t vocab) : sampling(std::move(s)), rule(resolve(sampling, vocab)) {
  if (rule.penalised) history.resize(vocab);
}

TokenHistory& Slot::touch(TokenId token) {
  VOLLEY_CHECK(token >= 0 && static_cast<size_t>(token) < history.size());
  TokenHistory& h = history[token];
  if (h.in_prompt == 0 && h.outputs == 0) seen.push_back(token);
  return h;
}

void Slot::count_outputs(std::span<const TokenId> tokens) {
  if (!rule.penalised) return;
  for (const TokenId token : tokens) ++touch(token).outputs;
}

void Slot::mark_prompt(std::span<const TokenId> tokens) {
  if (sampling.params.repetition_penalty == 1.0f) return;
  for (const TokenId token : tokens) touch(token).in_prompt = 1;
}

Status CpuSamplerState::start(int32_t slot, SlotSampling sampling, std::span<const TokenId> prompt,
                              std::span<const TokenId> output) {
  VOLLEY_CHECK(slot >= 0 && static_cast<size_t>(slot) < slots_.size());
  slots_[slot].reset();
  slots_[slot] = std::make_unique<Slot>(std::move(sampling), vocab_);
  slots_[slot]->mark_prompt(prompt);
  slots_[slot]->count_outputs(output);
  return {};
}

void CpuSamplerState::append(int32_t slot, std::span<const TokenId> tokens) {
  VOLLEY_CHECK(slot >= 0 && static_cast<size_t>(slot) < slots_.size() && slots_[slot] != nullptr);
  slots_[slot]->count_outputs(tokens);
}

void CpuSamplerState::append_committed(Stream& stream, const CommittedTokens& committed) {
  if (stream.dry()) return;
  for (int32_t i = 0; i < committed.n; ++i) {
    const auto count = static_cast<size_t>(committed.counts[i]);
    if (count > 0) append(committed.slots[i], {committed.tokens + int64_t{i} * committed.stride, count});
  }
}

void CpuSamplerState::clear(int32_t slot) {
  VOLLEY_CHECK(slot >= 0 && static_cast<size_t>(slot) < slots_.size());
  slots_[slot].reset();
}

const Slot& CpuSamplerState::slot(int32_t slot) const {
  VOLLEY_CHECK(slot >= 0 && static_cast<size_t>(slot) < slots_.size() && slots_[slot] != nullptr);
  return *slots_[slot];
}

}  // namespace choice

}  // namespace volley::ops

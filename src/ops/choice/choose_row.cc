#include "ops/choice/choose_row.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/choice/filters.h"
#include "ops/choice/logprobs.h"

namespace volley::ops::choice {
namespace {

Scan scan_row(const float* values, const Slices& slices) {
  std::array<Scan, Slices::kMax> parts;
  slices.each([&](int32_t slice, int32_t begin, int32_t end) { parts[slice] = scan(values, begin, end); });
  Scan whole;
  for (int32_t slice = 0; slice < slices.count(); ++slice) {
    whole.max = std::max(whole.max, parts[slice].max);
    whole.usable = whole.usable && parts[slice].usable;
  }
  return whole;
}

TokenId draw(const Row& row, const RowInput& in, const Slices& slices) {
  const SlotSampling& sampling = in.slot->sampling;
  const PhiloxKey noise = {.key = {static_cast<uint32_t>(sampling.seed), static_cast<uint32_t>(sampling.seed >> 32)},
                           .counter = {static_cast<uint32_t>(in.index), sampling.params.choice_index, 0}};
  const float reached = row.peak + kGumbelMin;  // by the highest token, which every filter keeps
  std::array<Scored, Slices::kMax> parts;
  Scored best;
  slices.each([&](int32_t slice, int32_t begin, int32_t end) {
    // In order on one thread, so each slice may skip tokens that earlier slices already beat.
    const float floor = slices.parallel() ? reached : std::max(reached, best.score);
    parts[slice] = best_noisy(row, begin, end, noise, floor);
    if (!slices.parallel() && parts[slice].score > best.score) best = parts[slice];
  });
  for (int32_t slice = 0; slice < slices.count(); ++slice) {
    if (parts[slice].score > best.score) best = parts[slice];
  }
  return best.id;
}

float probability_of(const Row& row, TokenId token, const Slices& slices) {
  return static_cast<float>(kept_weight(row, token, token + 1) / row_weight(row, slices));
}

void refuse(const RowOutput& out) {
  *out.token = 0;
  if (out.finite != nullptr) *out.finite = 0;
  if (out.probability != nullptr) *out.probability = 0.0f;
  if (out.logprobs != nullptr) {
    out.logprobs->chosen = {0, -std::numeric_limits<float>::infinity()};
    out.logprobs->count = 0;
  }
}

}  // namespace

void choose_row(const RowInput& in, const RowOutput& out, const Slices& slices, const RowScratch& scratch) {
  const Slot& slot = *in.slot;
  const Scan raw = scan_row(in.logits, slices);
  if (!raw.usable) return refuse(out);
  Scan processed = raw;
  Row row = {.values = in.logits, .divisor = slot.rule.divisor, .peak = 0.0f, .cut = {}};
  if (needs_adjustment(in)) {
    adjust(in, slices, scratch.adjusted);
    row.values = scratch.adjusted;
    processed = scan_row(row.values, slices);
  }
  row.peak = processed.max / row.divisor;  // division is monotone: this is the highest quotient
  if (!processed.usable || !std::isfinite(row.peak)) return refuse(out);

  if (slot.rule.greedy) {
    *out.token = find_at_least(row.values, 0, slices.vocab(), processed.max);
  } else {
    row.cut = find_cut(row, slot, slices, scratch.candidates);
    *out.token = draw(row, in, slices);
  }
  VOLLEY_CHECK(*out.token >= 0 && *out.token < slices.vocab());
  if (out.finite != nullptr) *out.finite = 1;
  if (out.probability != nullptr) *out.probability = probability_of(row, *out.token, slices);
  if (out.logprobs != nullptr) {
    raw_logprobs(in.logits, raw.max, *out.token, slot.sampling.params.logprobs, slices, *out.logprobs);
  }
}

}  // namespace volley::ops::choice

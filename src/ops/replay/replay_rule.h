// The proposal for one place, the same source for CPU and GPU. Private to this folder.
#pragma once

#include "base/mix.h"
#include "ops/replay/replay.h"

namespace volley::ops::replay {

VOLLEY_HOST_DEVICE inline float uniform(uint64_t bits) {
  return static_cast<float>(bits >> 40) * 0x1p-24f;
}

VOLLEY_HOST_DEVICE inline int32_t find_answer(const ReplayTable& table, uint64_t seed) {
  int32_t low = 0, high = table.answers;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (table.seeds[middle] < seed) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < table.answers && table.seeds[low] == seed ? low : -1;
}

// Draft i of a segment.
VOLLEY_HOST_DEVICE inline void propose(const Step& step, const StepSegment& segment, const ReplayTable& table,
                                       int32_t i, TokenId* tokens, float* confidence) {
  const SlotRow& slot = step.slots[segment.slot];
  const int32_t place = slot.length - slot.prompt_length + i;  // among the outputs
  const int32_t answer = find_answer(table, slot.seed);
  const uint64_t noise =
      mix_bits(slot.seed ^ mix_bits((static_cast<uint64_t>(table.salt) << 32) + static_cast<uint32_t>(place)));
  TokenId token = static_cast<TokenId>(noise % static_cast<uint64_t>(table.vocab));
  bool right = false;
  if (answer >= 0 && place >= 0 && place < table.begins[answer + 1] - table.begins[answer]) {
    const TokenId known = table.tokens[table.begins[answer] + place];
    right = uniform(mix_bits(noise + 1)) < table.accuracy;
    if (right) token = known;
    if (!right && token == known) token = (token + 1) % table.vocab;
  }
  tokens[segment.draft_begin + i] = token;
  if (confidence == nullptr) return;
  const float u = uniform(mix_bits(noise + 2));
  confidence[segment.draft_begin + i] = right ? 0.5f + 0.5f * u : 0.7f * u;
}

}  // namespace volley::ops::replay

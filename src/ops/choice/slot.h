// What SamplerState keeps of a slot.
#pragma once

#include <span>
#include <vector>

#include "ops/choice/choice.h"

namespace volley::ops {

// How a token occurred in the request so far.
struct TokenHistory {
  uint32_t in_prompt : 1;  // only kept when a repetition penalty asks
  uint32_t outputs : 31;   // times in the committed output
};

struct SamplerState::Slot {
  Slot(SlotSampling s, int32_t vocab);

  // Counts committed output tokens, or marks prompt tokens, if a penalty reads them.
  void count_outputs(std::span<const TokenId> tokens);
  void mark_prompt(std::span<const TokenId> tokens);

  const SlotSampling sampling;
  bool greedy = false;
  float divisor = 1.0f;               // the temperature, or 1 when greedy
  int32_t top_k = 0;                  // 0: off
  double log_min_p = 0.0;             // meaningful when params.min_p > 0
  bool penalised = false;             // some penalty is set; only then is there a history
  std::vector<TokenHistory> history;  // [vocab] or empty
  std::vector<TokenId> seen;          // the tokens with a history, each once

 private:
  TokenHistory& touch(TokenId token);
};

}  // namespace volley::ops

// Choices among the best candidates of each row, from left to right, each with regard to the token before it. Of row k
// the candidates are the `top_k` highest logits, of equals the lowest ids. A candidate c scores
//   s[c] = logits[k, c] + sum over j of predecessor[previous, j] * hidden[k, j] * successor[c, j],
// and the choice is the sampling rule's (ops/choice/choice.h) among them: the highest score, at a temperature T above 0
// of s / T + g(seed, index, c); ties go to the candidate with the higher logit, then to the lower id. What else the
// rule does to logits (penalties, bias, filters) is not done here: these are guesses, and the target's choice decides.
#pragma once

#include "ops/step/step.h"

namespace volley::ops {

inline constexpr int32_t kMaxCandidates = 32;
inline constexpr int32_t kMaxSelectorRank = 1024;

struct SelectorTask {
  TensorView logits;                  // [rows, vocab] fp32; NaN is no candidate
  TensorView hidden;                  // [rows, rank] fp32
  TensorView predecessor, successor;  // [vocab, rank], each bf16, fp16 or fp32
  int32_t top_k = 0;                  // from 1 to kMaxCandidates
  // In the memory of the stream's device, as choose() takes them. The token before a segment's first row is its slot's
  // last one. REQUIRES: no prefix and no mask.
  std::span<const ChoiceSegment> segments;
  const SlotRow* slots = nullptr;  // the slot table; device memory
  const SamplerState* state = nullptr;
  TokenId* tokens = nullptr;     // [rows] out
  float* probability = nullptr;  // [rows] out: softmax of the scores, over the temperature, at the choice
};

// A segment's choices depend on its rows and its slot alone. The devices may differ where scores are as close as
// rounding. A row without candidates gets token 0 with probability 0.
void select_tokens(Stream& stream, const SelectorTask& task, Arena& scratch);

}  // namespace volley::ops

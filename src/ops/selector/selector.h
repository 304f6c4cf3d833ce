// Choices among the best candidates of each row, from left to right, each with regard to the token before it. Of row k
// the candidates are the `top_k` highest logits, of equals the lowest ids; and where the row is drawn at a temperature
// T above 0 without a filter, the token of the highest logits[k] / T + g, too (if top_k is below kMaxCandidates). A
// candidate c scores
//   s[c] = logits[k, c] + sum over j of q[j] * successor[c, j],
// where q is made of e = predecessor[previous] and of the row, as `Scoring` says. The choice is the sampling rule's
// (ops/choice/choice.h) among the candidates: the highest score, at a temperature T above 0 of s / T + g(seed, index,
// c), of those that min-p, top-k and top-p keep as if there were no other tokens; ties go to the candidate with the
// higher logit, then to the lower id. What else the rule does to logits (penalties, bias) is not done here: these are
// guesses, and the target's choice decides.
#pragma once

#include "ops/step/step.h"

namespace volley::ops {

inline constexpr int32_t kMaxCandidates = 32;
inline constexpr int32_t kMaxSelectorRank = 1024;

// The q of a row, element by element but for the products with W: a candidate selector's, and those of Markov heads,
// which papers call vanilla, gated and RNN.
enum class Scoring {
  kProduct,    // e * hidden
  kVanilla,    // e
  kGated,      // sigmoid(hidden + W e) * e
  kRecurrent,  // tanh(o), where [g, c, o] = hidden + W [s; e]; then s becomes sigmoid(g) * s + (1 - sigmoid(g)) *
               // tanh(c). s is 0 before a segment's first row.
};

// Sizes in ranks: a row of `hidden`, which is one of W's outputs, too; and W's inputs, 0 where there is no W.
struct ScoringSizes {
  int32_t hidden = 0, inputs = 0;
};
constexpr ScoringSizes sizes_of(Scoring scoring) {
  constexpr ScoringSizes kSizes[] = {{1, 0}, {0, 0}, {1, 1}, {3, 2}};
  return kSizes[static_cast<int>(scoring)];
}

// Columns of a matrix as a checkpoint has it, from `first` on.
struct Columns {
  TensorView matrix;  // bf16, fp16 or fp32
  int64_t first = 0;
};

struct SelectorTask {
  TensorView logits;  // [rows, columns] fp32; NaN is no candidate
  Scoring scoring = Scoring::kProduct;
  TensorView hidden;       // [rows, sizes_of(scoring).hidden * rank] fp32; null where that is 0
  TensorView predecessor;  // [tokens, rank], bf16, fp16 or fp32
  TensorView successor;    // [columns, rank], likewise
  Columns weight;          // W: [hidden * rank, inputs * rank]; null where there is none
  TensorView token_ids;    // [columns] int32: the token of each column of the logits; null: tokens and columns are one
  // A head for the chance that the choice is accepted: sigmoid(confidence[k] + confidence_weight e); null: there is
  // none.
  TensorView confidence;      // [rows] fp32
  Columns confidence_weight;  // [1, rank]; null: the chance does not depend on e
  int32_t top_k = 0;          // from 1 to kMaxCandidates
  // In the memory of the stream's device, as choose() takes them. The token before a segment's first row is its slot's
  // last one. REQUIRES: no prefix and no mask.
  std::span<const ChoiceSegment> segments;
  const SlotRow* slots = nullptr;  // the slot table; device memory
  const SamplerState* state = nullptr;
  TokenId* tokens = nullptr;     // [rows] out
  float* probability = nullptr;  // [rows] out: the head's chance; without one softmax of the kept s / T at the choice
};

// A segment's choices depend on its rows and its slot alone. The devices may differ where scores are as close as
// rounding. A row without candidates gets the first column's token with probability 0.
void select_tokens(Stream& stream, const SelectorTask& task, Arena& scratch);

}  // namespace volley::ops

// How many weights a step reads of a target and its drafter. Arithmetic only.
#pragma once

#include <cstdint>

#include "decode/proposer_spec.h"

namespace volley::decode {

struct StepWeights {
  int64_t target = 0, draft = 0;  // whatever the rows are, without output heads
  int64_t head = 0;               // of both models, or of one that both use, twice
  int64_t expert = 0;             // of one of the target's experts, of one layer
  int64_t row_experts = 0;        // that a row goes through, over all layers

  // That a row is multiplied with.
  int64_t multiplied() const { return target + draft + head + row_experts * expert; }
};

// Every matrix of the target but experts is read once a step and multiplied with each row; with a drafter its matrices
// too, and the output head that it borrows a second time. Embeddings are looked up, not read. draft: null: none.
StepWeights step_weights(const model::Decoder& target, const ProposerFacts* draft);

}  // namespace volley::decode

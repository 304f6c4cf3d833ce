// Counts the weights that a step reads of a target and its drafter. Arithmetic only.
#pragma once

#include <cstdint>

#include "decode/proposer_spec.h"

namespace volley::decode {

struct StepWeights {
  int64_t target = 0, draft = 0;  // read for any rows, without output heads
  int64_t head = 0;               // summed over both models; one that both use counts twice
  int64_t expert = 0;             // weights of one expert of one layer of the target
  int64_t row_experts = 0;        // experts that a row goes through, over all layers

  int64_t multiplied() const { return target + draft + head + row_experts * expert; }
};

// Every matrix of the target but experts is read once a step and multiplied with each row. With a drafter its matrices
// count too, and a borrowed output head counts a second time. Embeddings are looked up, not read. draft: may be null.
StepWeights step_weights(const model::Decoder& target, const ProposerFacts* draft);

}  // namespace volley::decode

// Reads config.json of a DFlash drafter (docs/dflash.md describes the format).
#pragma once

#include "decode/proposer_spec.h"
#include "ops/selector/selector.h"

namespace volley::decode::dflash {

// The head that chooses each token with regard to the one before it (ops/selector/selector.h): DFlash 2's selector, or
// a Markov head of DSpark.
struct Selector {
  ops::Scoring scoring = ops::Scoring::kProduct;
  int32_t rank = 0;                     // 0: there is none
  int32_t top_k = 0;                    // candidates of a row
  std::optional<bool> confidence = {};  // a head for it; true: that sees the token before, too
};

// Adds DFlash's own facts to the engine's.
struct Facts : ProposerFacts {
  TokenId mask_token = 0;      // stands at the positions to fill
  int32_t first_proposal = 1;  // first row of a block that proposes; 0: the known token's row proposes, too
  int32_t target_layers = 0;   // layers of its target; 0: unknown
  int32_t draft_vocab = 0;     // > 0: its own output head gives logits for this many tokens
  // > 0: it proposes only so many first tokens of the vocabulary, so a CPU multiplies with fewer rows of the head.
  int32_t proposed_vocab = 0;
  Selector selector;
  std::optional<float> embedding_scale;  // of the target's embedding in a block, instead of the target's own

  // Columns of the logits before they are spread over the target's vocabulary.
  int32_t own_vocab() const { return draft_vocab > 0 ? draft_vocab : decoder.vocab; }
};

// Reads DIR/config.json. Errors as decode::read_proposer().
Result<Facts> read_config(const std::string& dir);

// The tensors of such a drafter: its layers and norm, fc, hidden_norm, the k and v projections of all layers once more,
// as the one product that injects context; of a vocabulary of its own the output head and the map to the target's; and
// those of the head that chooses.
std::vector<model::Param> draft_params(const Facts& facts);

std::shared_ptr<const ProposerSpec> make_spec(Facts facts);

// Reads a drafter from its folder. Errors as decode::read_proposer().
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir);

}  // namespace volley::decode::dflash

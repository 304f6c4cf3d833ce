// config.json of a DFlash drafter (docs/dflash.md has the facts of the format).
#pragma once

#include "decode/proposer_spec.h"

namespace volley::decode::dflash {

// DFlash 2 chooses each token with regard to the one before it (ops/selector/selector.h).
struct Selector {
  int32_t rank = 0;   // 0: there is none
  int32_t top_k = 0;  // candidates of a row
};

// Beside what the engine plans with.
struct Facts : ProposerFacts {
  TokenId mask_token = 0;      // of the positions to fill
  int32_t first_proposal = 1;  // row of a block; 0: the known token's row proposes, too
  int32_t target_layers = 0;   // that its target has; 0 where its files do not say
  int32_t draft_vocab = 0;     // > 0: its output head is its own and gives logits of so many of the tokens
  Selector selector;
  std::optional<float> embedding_scale;  // of the target's embedding in a block, instead of the target's own
};

// Reads DIR/config.json. Errors as decode::read_proposer().
Result<Facts> read_config(const std::string& dir);

// The tensors of such a drafter: its layers and norm, fc, hidden_norm, the k and v projections of all layers once more,
// as the one product that injects context; of a vocabulary of its own the output head and the map to the target's; and
// the selector's.
std::vector<model::Param> draft_params(const Facts& facts);

// What a drafter with these facts is to the engine.
std::shared_ptr<const ProposerSpec> make_spec(Facts facts);

// A drafter from its folder. Errors as decode::read_proposer().
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir);

}  // namespace volley::decode::dflash

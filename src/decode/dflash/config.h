// Reads config.json of a DFlash drafter (docs/dflash.md describes the format).
#pragma once

#include "decode/proposer_spec.h"

namespace volley::decode::dflash {

// DFlash 2 chooses each token by the one before it (ops/selector/selector.h).
struct Selector {
  int32_t rank = 0;   // 0: no selector
  int32_t top_k = 0;  // candidates for each row
};

// Adds DFlash's own facts to the engine's.
struct Facts : ProposerFacts {
  TokenId mask_token = 0;      // stands at the positions to fill
  int32_t first_proposal = 1;  // first row of a block that proposes; 0: the known token's row proposes, too
  int32_t target_layers = 0;   // layers of its target; 0: unknown
  int32_t draft_vocab = 0;     // > 0: its own output head gives logits for this many tokens
  Selector selector;
  // factor on the target's embedding in a block, instead of the target's own factor
  std::optional<float> embedding_scale;
};

// Reads DIR/config.json. Errors as decode::read_proposer().
Result<Facts> read_config(const std::string& dir);

// Lists the drafter's tensors: its layers and norm, fc, hidden_norm, and the k and v projections of all layers once
// more, as the single product that injects context. A vocabulary of its own adds the output head and the map to the
// target's tokens; a selector adds its own tensors.
std::vector<model::Param> draft_params(const Facts& facts);

std::shared_ptr<const ProposerSpec> make_spec(Facts facts);

// Reads a drafter from its folder. Errors as decode::read_proposer().
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir);

}  // namespace volley::decode::dflash

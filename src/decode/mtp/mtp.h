// The target's own multi-token-prediction head as a drafter (Qwen3-Next, Qwen3.5, GLM-4.5, DeepSeek-V3): a layer of
// full or latent attention that reads the embedding of a token beside the target's final hidden state before it, and
// predicts the token after. It is run again on its own output for each further token. Its tensors are the target's
// files' "mtp.", or their last layer; embedding and output head are the target's. docs/dflash.md has the formula.
#pragma once

#include "decode/proposer_spec.h"

namespace volley::decode::mtp {

// DIR: the target's folder, or one with its config.json and these tensors alone. Errors as decode::read_proposer().
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir);

// params: as ProposerFacts::params, of one rank or of all.
Result<std::unique_ptr<Proposer>> load_proposer(const ProposerLoad& load, const ProposerFacts& facts);

}  // namespace volley::decode::mtp

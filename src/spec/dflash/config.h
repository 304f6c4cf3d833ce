// config.json of a DFlash drafter (docs/dflash.md has the facts of the format).
#pragma once

#include "spec/proposer_spec.h"

namespace volley::spec::dflash {

// Reads DIR/config.json. Errors as spec::read_proposer().
Result<ProposerFacts> read_config(const std::string& dir);

// The tensors of such a drafter: its layers and norm, fc, hidden_norm, the k and v projections of all layers once more,
// as the one product that injects context, and of a vocabulary of its own the output head and the map to the target's.
std::vector<model::Param> draft_params(const ProposerFacts& facts);

// What a drafter with these facts is to the engine.
std::shared_ptr<const ProposerSpec> make_spec(ProposerFacts facts);

// A drafter from its folder. Errors as spec::read_proposer().
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir);

}  // namespace volley::spec::dflash

// config.json of a DFlash drafter (docs/dflash.md has the facts of the format).
#pragma once

#include "spec/proposer_spec.h"

namespace volley::spec::dflash {

// Reads DIR/config.json. Errors as spec::read_proposer().
Result<ProposerFacts> read_config(const std::string& dir);

// The tensors of a drafter with these layers: its layers and norm, fc, hidden_norm, and the k and v projections of all
// layers once more, as the one product that injects context.
std::vector<model::Param> draft_params(const model::Decoder& decoder, size_t features);

// What a drafter with these facts is to the engine.
std::shared_ptr<const ProposerSpec> make_spec(ProposerFacts facts);

// A drafter from its folder. Errors as spec::read_proposer().
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir);

}  // namespace volley::spec::dflash

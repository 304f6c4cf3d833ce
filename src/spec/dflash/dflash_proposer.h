// DFlash: one pass of the draft network proposes a whole block (docs/dflash.md).
#pragma once

#include <memory>

#include "spec/dflash/network.h"
#include "spec/proposer.h"

namespace volley::spec::dflash {

// REQUIRES: layers of equal shape, which are injected into with one write.
std::unique_ptr<Proposer> make_dflash_proposer(std::unique_ptr<Network> network, const ProposerLoad& load);

}  // namespace volley::spec::dflash

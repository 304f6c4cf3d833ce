// The drafting algorithms that are built.
#pragma once

#include "decode/proposer_spec.h"

namespace volley::decode {

// Reads DIR/config.json and finds the kind of drafter. kUnimplemented names what is not built: for an unknown drafter
// its architecture, and those that are built. kInvalidArgument, kDataLoss or kNotFound say what is wrong with the file.
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir);

}  // namespace volley::decode

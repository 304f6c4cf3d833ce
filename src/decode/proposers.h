// The drafting algorithms that are built.
#pragma once

#include "decode/proposer_spec.h"

namespace volley::decode {

// Reads DIR/config.json and says which drafter it is. kUnimplemented names what is not built, of an unknown
// drafter its architecture and those that are built; kInvalidArgument, kDataLoss or kNotFound what is wrong with the
// file.
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir);

}  // namespace volley::decode

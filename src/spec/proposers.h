// The drafting algorithms that are built.
#pragma once

#include "spec/proposer_spec.h"

namespace volley::spec {

// Reads DIR/config.json and says which drafter it is. kUnimplemented names what is not built; kInvalidArgument,
// kDataLoss or kNotFound what is wrong with the file.
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir);

}  // namespace volley::spec

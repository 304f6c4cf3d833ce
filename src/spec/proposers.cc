#include "spec/proposers.h"

#include "spec/dflash/config.h"

namespace volley::spec {

// One algorithm so far: its reader refuses every other architecture by name.
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir) {
  return dflash::read_proposer(dir);
}

Result<int32_t> resolve_block_size(const ProposerFacts& facts, int32_t requested, std::vector<std::string>* warnings) {
  if (requested == 0) return facts.block_size;
  if (requested < 2) {
    return invalid_argument("The block size is " + std::to_string(requested) +
                            ", but a block holds one known token and at least one to draft: give 2 or more, or turn "
                            "speculation off.");
  }
  if (requested > facts.block_size) {
    warnings->push_back("The block size is " + std::to_string(requested) + ", but the drafter was trained for " +
                        std::to_string(facts.block_size) + ": tokens past that are seldom accepted.");
  }
  return requested;
}

}  // namespace volley::spec

#include "spec/proposers.h"

#include <nlohmann/json.hpp>

#include "families/fields.h"
#include "spec/dflash/config.h"
#include "spec/replay/replay_spec.h"

namespace volley::spec {

// Whatever is not another one's is read as DFlash, whose reader knows several formats and names what it does not know.
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir) {
  VOLLEY_ASSIGN(const nlohmann::json json, families::read_json_file(dir + "/config.json"));
  const families::ConfigFields config(json, dir + "/config.json");
  VOLLEY_ASSIGN(const std::vector<std::string> architectures, config.texts("architectures"));
  if (!architectures.empty() && architectures[0] == replay::kArchitecture) return replay::read_proposer(dir);
  return dflash::read_proposer(dir);
}

bool has_windows(const ProposerFacts& facts) {
  for (size_t i = 0; i < facts.decoder.layers.size(); ++i) {
    const model::Attention* attention = facts.decoder.attention(i);
    if (attention != nullptr && attention->window > 0) return true;
  }
  return false;
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

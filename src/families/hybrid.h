// Decoders whose layers are linear attention by the gated delta rule, every few of them full attention with an output
// gate, as config.json of Qwen3-Next and what came after it describes them.
#pragma once

#include "families/common.h"

namespace volley::families {

// What one family has its own way of.
struct HybridRules {
  std::string family;
  bool by_key_head = false;    // model::GatedDelta's
  bool experts = false;        // in place of the feed-forward network
  bool sparse_layers = false;  // in some layers alone: read_sparse_layers()
};
Result<TargetConfig> read_hybrid(const ConfigFields& config, const HybridRules& rules);

}  // namespace volley::families

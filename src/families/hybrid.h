// Decoders with linear attention by the gated delta rule in most layers and full attention with an output gate in every
// few, as config.json of Qwen3-Next and its successors describes them.
#pragma once

#include "families/common.h"

namespace volley::families {

// The points in which families differ.
struct HybridRules {
  std::string family;
  bool by_key_head = false;    // model::GatedDelta's
  bool experts = false;        // in place of the feed-forward network
  bool sparse_layers = false;  // only in some layers: read_sparse_layers()
};
Result<TargetConfig> read_hybrid(const ConfigFields& config, const HybridRules& rules);

}  // namespace volley::families

// DeepSeek-V3.2 and GLM-5 to 5.3: DeepSeek-V3 with an indexer that chooses the keys a row sees. A row that sees no more
// keys than it may choose sees all of them, so such contexts are built, without the indexer.
#include <nlohmann/json.hpp>

#include "families/deepseek.h"
#include "families/registry.h"

namespace volley::families {
namespace {

constexpr int32_t kUsualDense = 3;

Result<TargetConfig> read_sparse_decoder(const ConfigFields& config, const std::string& family) {
  if (!config.has("rms_norm_eps")) return config.wrong("rms_norm_eps", "is missing: state it");
  VOLLEY_ASSIGN(DenseConfig dense, read_latent(config, family));
  VOLLEY_ASSIGN(const model::Experts experts, read_biased_experts(config));
  VOLLEY_ASSIGN(const int32_t first, read_dense_layers(config, dense.decoder.layers.size(), kUsualDense));
  VOLLEY_ASSIGN(const int32_t keys, config.integer("index_topk", 1, INT32_MAX));
  for (const char* unread : {"index_head_dim", "index_n_heads", "indexer_types", "index_topk_pattern",
                             "index_topk_freq", "index_skip_topk_offset", "index_share_for_mtp_iteration",
                             "indexer_rope_interleave", "layer_types", "moe_router_dtype"}) {
    config.has(unread);
  }
  TargetConfig target = target_with_experts(std::move(dense), experts, first);
  for (size_t i = 0; i < target.decoder.layers.size(); ++i) {
    target.names.skipped.push_back({"layers." + std::to_string(i) + ".self_attn.indexer.", "choice of keys"});
  }
  if (keys < target.max_positions) {
    target.warnings.push_back(config.where() + ": contexts are limited to the " + std::to_string(keys) +
                              " positions of index_topk, because choosing keys among more is not built.");
    target.max_positions = keys;
  }
  return target;
}

// "head_dim" is the rotated part of a head or the other, and says nothing.
Result<TargetConfig> read_sparse_latent(const ConfigFields& config, const std::string& family) {
  nlohmann::json fields = config.json();
  fields.erase("head_dim");
  return read_translated(config, fields, [&](const ConfigFields& text) { return read_sparse_decoder(text, family); });
}

}  // namespace

Result<TargetConfig> read_deepseek_v32(const ConfigFields& config) {
  return read_sparse_latent(config, "deepseek_v32");
}

Result<TargetConfig> read_glm_moe_dsa(const ConfigFields& config) {
  return read_sparse_latent(config, "glm_moe_dsa");
}

}  // namespace volley::families

// GLM-4.7-Flash: latent attention with DeepSeek-V3's experts.
#include "families/deepseek.h"
#include "families/registry.h"

namespace volley::families {

Result<TargetConfig> read_glm4_moe_lite(const ConfigFields& config) {
  if (!config.has("rms_norm_eps")) return config.wrong("rms_norm_eps", "is missing: state it");
  VOLLEY_ASSIGN(DenseConfig dense, read_latent(config, "glm4_moe_lite"));
  VOLLEY_ASSIGN(const model::Experts experts, read_biased_experts(config));
  VOLLEY_ASSIGN(const int32_t first, read_dense_layers(config, dense.decoder.layers.size(), 1));
  return target_with_experts(std::move(dense), experts, first);
}

}  // namespace volley::families

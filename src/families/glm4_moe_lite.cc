// GLM-4.7-Flash: latent attention with DeepSeek-V3's experts.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "families/deepseek.h"
#include "families/registry.h"

namespace volley::families {
namespace {

// The number of dense layers at the begin. "mlp_layer_types" lists every layer; without it the first is dense.
Result<int32_t> read_dense_layers(const ConfigFields& config, size_t layers) {
  VOLLEY_ASSIGN(const std::vector<std::string> types, config.texts("mlp_layer_types"));
  const auto sparse = std::ranges::find(types, "sparse");
  const int32_t dense = types.empty() ? 1 : static_cast<int32_t>(sparse - types.begin());
  if (!types.empty() && types.size() != layers) {
    return config.wrong("mlp_layer_types", "must have an entry for each layer");
  }
  if (std::any_of(types.begin(), sparse, [](const std::string& type) { return type != "dense"; }) ||
      std::any_of(sparse, types.end(), [](const std::string& type) { return type != "sparse"; })) {
    return config.unbuilt("mlp_layer_types", "is not \"dense\" in the first layers and \"sparse\" in the others");
  }
  VOLLEY_ASSIGN(const int32_t stated, config.integer("first_k_dense_replace", 0, kMaxLayers, dense));
  if (stated != dense) return config.wrong("first_k_dense_replace", "contradicts the kinds of layers");
  return dense;
}

}  // namespace

Result<TargetConfig> read_glm4_moe_lite(const ConfigFields& config) {
  if (!config.has("rms_norm_eps")) return config.wrong("rms_norm_eps", "is missing: state it");
  VOLLEY_ASSIGN(DenseConfig dense, read_latent(config, "glm4_moe_lite"));
  VOLLEY_ASSIGN(const model::Experts experts, read_biased_experts(config));
  VOLLEY_ASSIGN(const int32_t first, read_dense_layers(config, dense.decoder.layers.size()));
  return target_with_experts(std::move(dense), experts, first);
}

}  // namespace volley::families

// Qwen3: grouped-query attention with a norm of every head of q and k.
#include "families/common.h"

namespace volley::families {

Result<TargetConfig> read_qwen3(const ConfigFields& config) {
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, "qwen3"));
  VOLLEY_ASSIGN(const bool bias, config.boolean("attention_bias", false));
  if (bias) return config.unbuilt("attention_bias", "is true: biases of projections are not built");
  VOLLEY_ASSIGN(const bool windows, config.boolean("use_sliding_window", false));
  if (windows) return config.unbuilt("use_sliding_window", "is true: sliding windows in a target are not built");
  VOLLEY_ASSIGN(const std::vector<std::string> types, read_layer_types(config, dense.decoder.layers.size()));
  for (const std::string& type : types) {
    if (type != "full_attention") {
      return config.unbuilt("layer_types",
                            "has \"" + type + "\", which is not built in a target; built is full_attention");
    }
  }
  for (model::Layer& layer : dense.decoder.layers) std::get<model::Attention>(layer.mixer).qk_norm = true;
  TargetConfig target;
  target.decoder = std::move(dense.decoder);
  target.max_positions = dense.max_positions;
  return target;
}

}  // namespace volley::families

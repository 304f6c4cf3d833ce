// Qwen3-MoE: Qwen3 with a mixture of experts in place of the feed-forward network of most layers.
#include <nlohmann/json.hpp>

#include "families/common.h"
#include "families/registry.h"

namespace volley::families {
namespace {

// Windows, if used, apply to all layers.
Status read_one_window(const ConfigFields& config, std::vector<model::Layer>& layers) {
  VOLLEY_ASSIGN(const bool windows, config.boolean("use_sliding_window", false));
  // transformers has a default of its own for an absent field; null is a statement.
  if (windows && !config.json().contains("sliding_window")) {
    return config.wrong("sliding_window", "is missing beside \"use_sliding_window\": state it, or null for none");
  }
  const bool has_window = config.has("sliding_window");
  config.has("max_window_layers");  // written by the makers, and not used by this family's model
  if (windows && has_window) {
    VOLLEY_ASSIGN(const int32_t window, config.integer("sliding_window", 1, kMaxWindow));
    for (model::Layer& layer : layers) attention_of(layer).window = window;
  }
  return check_layer_types(config, layers);
}

}  // namespace

Result<TargetConfig> read_qwen3_moe(const ConfigFields& config) {
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, "qwen3_moe"));
  std::vector<model::Layer>& layers = dense.decoder.layers;
  VOLLEY_RETURN_IF_ERROR(read_attention_bias(config, layers));
  VOLLEY_RETURN_IF_ERROR(read_head_norms(config, layers));
  VOLLEY_RETURN_IF_ERROR(read_one_window(config, layers));
  VOLLEY_ASSIGN(const model::Experts experts, read_experts(config, false));
  VOLLEY_RETURN_IF_ERROR(read_sparse_layers(config, experts, layers));
  TargetConfig target = target_of(std::move(dense));
  add_expert_stacks(experts, target.names);
  return target;
}

}  // namespace volley::families

// Qwen3-MoE: Qwen3 with a mixture of experts in place of the feed-forward network of most layers; and the text part of
// Qwen3-VL-MoE, whose files hold experts transposed.
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

// transposed: as model::Experts has it.
Result<TargetConfig> read_text(const ConfigFields& config, const std::string& family, const DenseRules& rules,
                               bool transposed) {
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, family, rules));
  std::vector<model::Layer>& layers = dense.decoder.layers;
  VOLLEY_RETURN_IF_ERROR(read_attention_bias(config, layers));
  VOLLEY_RETURN_IF_ERROR(read_head_norms(config, layers));
  VOLLEY_RETURN_IF_ERROR(read_one_window(config, layers));
  VOLLEY_ASSIGN(model::Experts experts, read_experts(config, transposed));
  experts.transposed = transposed;
  VOLLEY_RETURN_IF_ERROR(read_sparse_layers(config, experts, layers));
  TargetConfig target = target_of(std::move(dense));
  add_expert_stacks(experts, target.names);
  return target;
}

}  // namespace

Result<TargetConfig> read_qwen3_moe(const ConfigFields& config) {
  return read_text(config, "qwen3_moe", {}, false);
}

Result<TargetConfig> read_qwen3_vl_moe(const ConfigFields& config) {
  return read_text_part(
      config, [](const ConfigFields& text) { return read_text(text, "qwen3_vl_moe", {.partial_rotary = 1.0}, true); });
}

}  // namespace volley::families

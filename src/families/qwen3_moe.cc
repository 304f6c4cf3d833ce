// Qwen3-MoE: Qwen3 with a mixture of experts in place of the feed-forward network of most layers.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "families/common.h"
#include "families/registry.h"

namespace volley::families {
namespace {

constexpr int32_t kMaxStep = 1 << 20;

Result<model::Experts> read_experts(const ConfigFields& config) {
  model::Experts experts;
  ops::RouterRule& rule = experts.router;
  // transformers 5 knows the number by either name.
  const bool local = config.has("num_local_experts");
  const char* count = local && !config.has("num_experts") ? "num_local_experts" : "num_experts";
  VOLLEY_ASSIGN(rule.experts, config.integer(count, 1, kMaxWidth));
  VOLLEY_ASSIGN(rule.top_k, config.integer("num_experts_per_tok", 1, kMaxWidth));
  VOLLEY_ASSIGN(rule.renormalise, config.boolean("norm_topk_prob", false));
  VOLLEY_ASSIGN(experts.inner, config.integer("moe_intermediate_size", 1, kMaxWidth));
  if (const Status status = ops::check_router(rule); !status.ok()) {
    return Error{status.error().code, config.where() + ": " + status.error().message};
  }
  return experts;
}

// Windows, where there are any, are those of all layers.
Status read_one_window(const ConfigFields& config, std::vector<model::Layer>& layers) {
  VOLLEY_ASSIGN(const bool windows, config.boolean("use_sliding_window", false));
  // transformers would take a size of its own where the field is not there; null is a statement.
  if (windows && !config.json().contains("sliding_window")) {
    return config.wrong("sliding_window", "is missing beside \"use_sliding_window\": state it, or null for none");
  }
  const bool has_window = config.has("sliding_window");
  config.has("max_window_layers");  // written by the makers, and read by nobody in this family
  if (!windows || !has_window) return {};
  VOLLEY_ASSIGN(const int32_t window, config.integer("sliding_window", 1, INT32_MAX));
  for (model::Layer& layer : layers) attention_of(layer).window = window;
  return {};
}

}  // namespace

Result<TargetConfig> read_qwen3_moe(const ConfigFields& config) {
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, "qwen3_moe"));
  std::vector<model::Layer>& layers = dense.decoder.layers;
  VOLLEY_RETURN_IF_ERROR(read_attention_bias(config, layers));
  VOLLEY_RETURN_IF_ERROR(read_head_norms(config, layers));
  VOLLEY_RETURN_IF_ERROR(read_one_window(config, layers));
  VOLLEY_ASSIGN(const model::Experts experts, read_experts(config));
  VOLLEY_ASSIGN(const int32_t step, config.integer("decoder_sparse_step", 1, kMaxStep, 1));
  VOLLEY_ASSIGN(const std::vector<int32_t> dense_layers, config.integers("mlp_only_layers", 0, kMaxLayers));
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool is_dense = std::find(dense_layers.begin(), dense_layers.end(), i) != dense_layers.end();
    if (!is_dense && (i + 1) % static_cast<size_t>(step) == 0) layers[i].ffn = experts;
  }
  TargetConfig target = target_of(std::move(dense));
  // Newer files hold all experts of a layer as one tensor.
  const int64_t count = experts.router.experts;
  const std::vector<std::string> gate_up = {"gate_proj.weight", "up_proj.weight"}, down = {"down_proj.weight"};
  target.names.stacks.push_back({"mlp.experts.", "gate_up_proj", gate_up, count});
  target.names.stacks.push_back({"mlp.experts.", "down_proj", down, count});
  return target;
}

}  // namespace volley::families

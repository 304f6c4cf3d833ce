// MiniMax-M2 to M2.7: grouped-query attention that rotates a part of each head and norms all heads of q, and of k,
// together; experts behind a router with sigmoid scores and biases in every layer.
#include <algorithm>

#include "families/deepseek.h"
#include "families/registry.h"

namespace volley::families {
namespace {

Status refuse_minimax_variants(const ConfigFields& config) {
  for (const char* required : {"use_qk_norm", "use_routing_bias"}) {
    VOLLEY_ASSIGN(const bool is, config.boolean(required, true));
    if (!is) return config.unbuilt(required, "is false, which is not built for this architecture");
  }
  VOLLEY_RETURN_IF_ERROR(expect_text(config, "qk_norm_type", "per_layer"));
  VOLLEY_RETURN_IF_ERROR(expect_text(config, "scoring_func", "sigmoid"));
  VOLLEY_ASSIGN(const std::vector<int32_t> kinds, config.integers("attn_type_list", 0, INT32_MAX));
  if (std::ranges::any_of(kinds, [](int32_t kind) { return kind != 1; })) {
    return config.unbuilt("attn_type_list", "has entries other than 1, which stands for full attention");
  }
  // Further layers that predict tokens, and training.
  for (const char* unread : {"use_mtp", "num_mtp_modules", "mtp_transformer_layers", "router_jitter_noise"}) {
    config.has(unread);
  }
  return {};
}

}  // namespace

Result<TargetConfig> read_minimax_m2(const ConfigFields& config) {
  VOLLEY_RETURN_IF_ERROR(refuse_minimax_variants(config));
  VOLLEY_RETURN_IF_ERROR(check_theta_stated(config));
  DenseRules rules;
  VOLLEY_ASSIGN(const int32_t head_dim, config.integer("head_dim", 1, kMaxWidth));
  VOLLEY_ASSIGN(const int32_t rotated, config.integer("rotary_dim", 1, head_dim, head_dim));
  rules.partial_rotary = static_cast<double>(rotated) / head_dim;
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, "minimax_m2", rules));
  for (model::Layer& layer : dense.decoder.layers) {
    attention_of(layer).qk_norm = attention_of(layer).wide_norm = true;
  }
  VOLLEY_ASSIGN(const int32_t inner, config.integer("intermediate_size", 1, kMaxWidth));
  VOLLEY_ASSIGN(model::Experts experts, read_experts(config, true, inner));
  experts.router.score = ops::RouterScore::kSigmoid;
  experts.choice_bias = true;
  TargetConfig target = target_with_experts(std::move(dense), experts, 0);
  target.names.inner = {{"mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias"},
                        {"mlp.", "block_sparse_moe."},
                        {".gate_proj.", ".w1."},
                        {".up_proj.", ".w3."},
                        {".down_proj.", ".w2."}};
  return target;
}

}  // namespace volley::families

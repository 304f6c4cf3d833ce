// GLM-4.5 and its successors: grouped-query attention that rotates a part of each head, with DeepSeek-V3's experts.
#include "families/deepseek.h"
#include "families/registry.h"

namespace volley::families {
namespace {

constexpr double kGlmPartialRotary = 0.5;  // the default, as in transformers

}  // namespace

Result<TargetConfig> read_glm4_moe(const ConfigFields& config) {
  if (!config.has("rms_norm_eps")) return config.wrong("rms_norm_eps", "is missing: state it");
  DenseRules rules;
  rules.partial_rotary = kGlmPartialRotary;
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, "glm4_moe", rules));
  VOLLEY_ASSIGN(const bool bias, config.boolean("attention_bias", false));
  VOLLEY_ASSIGN(const bool norms, config.boolean("use_qk_norm", false));
  for (model::Layer& layer : dense.decoder.layers) {
    attention_of(layer).bias = bias;
    attention_of(layer).qk_norm = norms;
  }
  VOLLEY_ASSIGN(const model::Experts experts, read_biased_experts(config));
  VOLLEY_ASSIGN(const int32_t first, config.integer("first_k_dense_replace", 0, kMaxLayers, 1));
  return target_with_experts(std::move(dense), experts, first);
}

}  // namespace volley::families

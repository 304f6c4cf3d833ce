#include "families/deepseek.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "families/registry.h"

namespace volley::families {
namespace {

constexpr int32_t kMostShared = 64;

// YaRN as DeepSeek has it scales the scores, too.
float score_scale(int32_t query, const model::RopeSpec& rope) {
  const double plain = 1 / std::sqrt(static_cast<double>(query));
  const double all_dim = rope.mscale_all_dim.value_or(0);
  if (rope.scaling != model::RopeSpec::Scaling::kYarn || all_dim == 0 || rope.factor <= 1) {
    return static_cast<float>(plain);
  }
  const double magnitude = 0.1 * all_dim * std::log(rope.factor) + 1.0;
  return static_cast<float>(plain * magnitude * magnitude);
}

}  // namespace

Status expect_text(const ConfigFields& config, const char* key, const std::string& built) {
  VOLLEY_ASSIGN(const std::string text, config.text(key, built));
  if (text == built) return {};
  return config.unbuilt(key, "is \"" + text + "\", which is not built for this architecture; built is " + built);
}

Result<DenseConfig> read_latent(const ConfigFields& config, const std::string& family) {
  model::Latent latent;
  ops::LatentShape& shape = latent.shape;
  VOLLEY_ASSIGN(shape.width, config.integer("kv_lora_rank", 1, kMaxWidth));
  VOLLEY_ASSIGN(shape.rope, config.integer("qk_rope_head_dim", 1, kMaxWidth));
  VOLLEY_ASSIGN(shape.nope, config.integer("qk_nope_head_dim", 1, kMaxWidth));
  VOLLEY_ASSIGN(shape.value, config.integer("v_head_dim", 1, kMaxWidth));
  VOLLEY_ASSIGN(const int32_t query, config.integer("qk_head_dim", 1, kMaxWidth, shape.query()));
  if (query != shape.query()) return config.wrong("qk_head_dim", "is not the sum of both parts of a head");
  // transformers has a default of its own for an absent field; null is a statement.
  if (!config.json().contains("q_lora_rank")) return config.wrong("q_lora_rank", "is missing: state it, or null");
  VOLLEY_ASSIGN(latent.q_rank, config.integer("q_lora_rank", 0, kMaxWidth, 0));
  VOLLEY_ASSIGN(const bool bias, config.boolean("attention_bias", false));
  if (bias) return config.unbuilt("attention_bias", "is true, which is not built for this architecture");
  DenseRules rules;
  rules.head_dim = shape.rope;
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, family, rules));
  const model::Attention& heads = attention_of(dense.decoder.layers[0]);
  if (heads.kv_heads != heads.heads) {
    return config.wrong("num_key_value_heads", "is not num_attention_heads, but all heads share one latent");
  }
  shape.heads = heads.heads;
  if (const Status status = ops::check_latent(shape); !status.ok()) {
    return Error{status.error().code, config.where() + ": " + status.error().message};
  }
  model::RopeSpec& rope = dense.decoder.ropes[0];
  VOLLEY_ASSIGN(rope.interleaved, config.boolean("rope_interleave", true));
  latent.scale = score_scale(shape.query(), rope);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    VOLLEY_ASSIGN(const std::optional<ConfigFields> rotation, config.object(name));
    if (!rotation || !rotation->has("llama_4_scaling_beta")) continue;
    VOLLEY_ASSIGN(const double growth, rotation->number("llama_4_scaling_beta", kFactor));
    latent.growth.factor = static_cast<float>(growth);
    VOLLEY_ASSIGN(latent.growth.every, rotation->integer("original_max_position_embeddings", 1, 1 << 30));
  }
  for (model::Layer& layer : dense.decoder.layers) layer.mixer = latent;
  return dense;
}

Result<model::Experts> read_shared_experts(const ConfigFields& config, bool renormalise) {
  VOLLEY_ASSIGN(model::Experts experts, read_experts(config, renormalise));
  VOLLEY_ASSIGN(const double scaling, config.number("routed_scaling_factor", kFactor));
  experts.router.scaling = static_cast<float>(scaling);
  VOLLEY_ASSIGN(const int32_t shared, config.integer("n_shared_experts", 0, kMostShared));
  experts.shared_inner = shared * experts.inner;
  experts.shared_gate = false;
  VOLLEY_ASSIGN(const int32_t every, config.integer("moe_layer_freq", 1, kMaxLayers, 1));
  if (every != 1) return config.unbuilt("moe_layer_freq", "other than 1 is not built");
  // How experts were placed and trained.
  for (const char* unread : {"ep_size", "aux_loss_alpha", "seq_aux", "num_nextn_predict_layers"}) config.has(unread);
  return experts;
}

Result<model::Experts> read_biased_experts(const ConfigFields& config) {
  VOLLEY_RETURN_IF_ERROR(expect_text(config, "scoring_func", "sigmoid"));
  VOLLEY_RETURN_IF_ERROR(expect_text(config, "topk_method", "noaux_tc"));
  VOLLEY_ASSIGN(model::Experts experts, read_shared_experts(config, true));
  ops::RouterRule& rule = experts.router;
  rule.score = ops::RouterScore::kSigmoid;
  experts.choice_bias = true;
  VOLLEY_ASSIGN(rule.groups, config.integer("n_group", 1, kMaxWidth));
  VOLLEY_ASSIGN(rule.top_groups, config.integer("topk_group", 1, kMaxWidth));
  if (rule.top_groups == rule.groups) rule.groups = rule.top_groups = 1;  // all groups are kept
  if (const Status status = ops::check_router(rule); !status.ok()) {
    return Error{status.error().code, config.where() + ": " + status.error().message};
  }
  return experts;
}

Result<int32_t> read_dense_layers(const ConfigFields& config, size_t layers, int32_t usual) {
  VOLLEY_ASSIGN(const std::vector<std::string> types, config.texts("mlp_layer_types"));
  const auto sparse = std::ranges::find(types, "sparse");
  const int32_t dense =
      types.empty() ? std::min(usual, static_cast<int32_t>(layers)) : static_cast<int32_t>(sparse - types.begin());
  if (!types.empty() && types.size() != layers) {
    return config.wrong("mlp_layer_types", "must have an entry for each layer");
  }
  if (std::any_of(types.begin(), sparse, [](const std::string& type) { return type != "dense"; }) ||
      std::any_of(sparse, types.end(), [](const std::string& type) { return type != "sparse"; })) {
    return config.unbuilt("mlp_layer_types", "is not \"dense\" in the first layers and \"sparse\" in the others");
  }
  VOLLEY_ASSIGN(const int32_t stated, config.integer("first_k_dense_replace", 0, kMaxLayers, dense));
  if (!types.empty() && stated != dense) {
    return config.wrong("first_k_dense_replace", "contradicts the kinds of layers");
  }
  return stated;
}

TargetConfig target_with_experts(DenseConfig dense, const model::Experts& experts, int32_t dense_layers) {
  std::vector<model::Layer>& layers = dense.decoder.layers;
  for (size_t i = static_cast<size_t>(dense_layers); i < layers.size(); ++i) layers[i].ffn = experts;
  TargetConfig target = target_of(std::move(dense));
  target.names.inner.push_back({"mlp.shared_expert.", "mlp.shared_experts."});
  target.names.skipped.push_back(
      {"layers." + std::to_string(target.decoder.layers.size()) + ".", "multi-token prediction"});
  add_expert_stacks(experts, target.names);
  return target;
}

// Softmax scores. The groups of larger models of this family are not built.
Result<TargetConfig> read_deepseek_v2(const ConfigFields& config) {
  VOLLEY_RETURN_IF_ERROR(expect_text(config, "scoring_func", "softmax"));
  VOLLEY_RETURN_IF_ERROR(expect_text(config, "topk_method", "greedy"));
  for (const char* unread : {"n_group", "topk_group"}) config.has(unread);
  VOLLEY_ASSIGN(DenseConfig dense, read_latent(config, "deepseek_v2"));
  VOLLEY_ASSIGN(const model::Experts experts, read_shared_experts(config, false));
  if (experts.router.renormalise) {
    return config.unbuilt("norm_topk_prob", "is true, which is not built for this architecture");
  }
  VOLLEY_ASSIGN(const int32_t first, config.integer("first_k_dense_replace", 0, kMaxLayers, 0));
  return target_with_experts(std::move(dense), experts, first);
}

Result<TargetConfig> read_deepseek_v3(const ConfigFields& config) {
  VOLLEY_ASSIGN(DenseConfig dense, read_latent(config, "deepseek_v3"));
  VOLLEY_ASSIGN(const model::Experts experts, read_biased_experts(config));
  VOLLEY_ASSIGN(const int32_t first, config.integer("first_k_dense_replace", 0, kMaxLayers));
  return target_with_experts(std::move(dense), experts, first);
}

// Kimi K2.5 and K2.6: K2's decoder, in a checkpoint that also has vision.
Result<TargetConfig> read_kimi_k25(const ConfigFields& config) {
  VOLLEY_ASSIGN(const std::optional<ConfigFields> text, config.object("text_config"));
  if (!text) return config.wrong("text_config", "is missing: it must hold the decoder");
  for (const char* name : {"architectures", "model_type"}) text->has(name);
  VOLLEY_ASSIGN(TargetConfig target, read_deepseek_v3(*text));
  VOLLEY_RETURN_IF_ERROR(read_beside_text(
      config, *text, {"media_placeholder_token_id", "ignore_index", "video_placeholder", "use_unified_vision_chunk"},
      target));
  return target;
}

}  // namespace volley::families

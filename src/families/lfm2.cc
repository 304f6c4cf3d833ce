// LFM2 and LFM2.5: gated short convolutions in most layers, grouped-query attention in some, and in some sizes experts
// behind a router with sigmoid scores and biases.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "families/common.h"
#include "families/registry.h"

namespace volley::families {
namespace {

constexpr int32_t kMostConvTaps = 16;
constexpr float kLfm2SumFloor = 1e-6f;  // what transformers adds to the sum of an expert's weights
constexpr const char *kConvLayer = "conv", *kFullLayer = "full_attention";

// The width of the network: files state 3/2 of it, which is then rounded up.
Status adjust_lfm2_inner(const ConfigFields& config, nlohmann::json& fields) {
  VOLLEY_ASSIGN(const int32_t stated, config.integer("intermediate_size", 1, kMaxWidth));
  VOLLEY_ASSIGN(const bool adjusts, config.boolean("block_auto_adjust_ff_dim", true));
  VOLLEY_ASSIGN(const double factor, config.number("block_ffn_dim_multiplier", kFactor, 1.0));
  VOLLEY_ASSIGN(const int32_t multiple, config.integer("block_multiple_of", 1, kMaxWidth, 256));
  if (!adjusts) return {};
  const auto width = static_cast<int64_t>(factor * static_cast<double>(int64_t{2} * stated / 3));
  fields["intermediate_size"] = (width + multiple - 1) / multiple * multiple;
  return {};
}

// Translates the fields into those of other families.
nlohmann::json lfm2_in_usual_words(const nlohmann::json& stated) {
  nlohmann::json fields = {{"norm_eps", 1e-5}, {"tie_word_embeddings", true}};
  fields.update(stated);
  const auto rename = [&](const char* from, const char* to) {
    if (!fields.contains(from)) return;
    fields[to] = fields[from];
    fields.erase(from);
  };
  rename("norm_eps", "rms_norm_eps");
  rename("tie_embedding", "tie_word_embeddings");
  rename("block_ff_dim", "intermediate_size");
  return fields;
}

Status read_lfm2_mixers(const ConfigFields& config, std::vector<model::Layer>& layers, int32_t hidden) {
  model::ShortConv conv = {.channels = hidden, .taps = 0};
  VOLLEY_ASSIGN(conv.taps, config.integer("conv_L_cache", 1, kMostConvTaps, 3));
  VOLLEY_ASSIGN(const bool bias, config.boolean("conv_bias", false));
  if (bias) return config.unbuilt("conv_bias", "is true, which is not built");
  for (const char* width : {"conv_dim", "conv_dim_out", "block_dim"}) {
    VOLLEY_ASSIGN(const int32_t own, config.integer(width, 1, kMaxWidth, hidden));
    if (own != hidden) return config.unbuilt(width, "is not hidden_size, which is not built");
  }
  VOLLEY_ASSIGN(std::vector<std::string> types, read_layer_types(config, layers.size()));
  VOLLEY_ASSIGN(const std::vector<int32_t> full, config.integers("full_attn_idxs", 0, kMaxLayers));
  if (types.empty()) {
    types.assign(layers.size(), config.has("full_attn_idxs") ? kConvLayer : kFullLayer);
    for (const int32_t i : full) {
      if (static_cast<size_t>(i) < types.size()) types[static_cast<size_t>(i)] = kFullLayer;
    }
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (types[i] == kFullLayer) continue;
    if (types[i] != kConvLayer) {
      return config.unbuilt("layer_types",
                            "has \"" + types[i] + "\", which is not built; built are full_attention and conv");
    }
    layers[i].mixer = conv;
  }
  if (std::ranges::find(types, kFullLayer) != types.end()) return {};
  return config.unbuilt("layer_types", "has no layer of full attention, which is not built");
}

Result<model::Experts> read_lfm2_experts(const ConfigFields& config) {
  VOLLEY_ASSIGN(model::Experts experts, read_experts(config, true));
  VOLLEY_ASSIGN(const double scaling, config.number("routed_scaling_factor", kFactor, 1.0));
  VOLLEY_ASSIGN(experts.choice_bias, config.boolean("use_expert_bias", true));
  experts.router.score = ops::RouterScore::kSigmoid;
  experts.router.sum_floor = kLfm2SumFloor;
  experts.router.scaling = static_cast<float>(scaling);
  return experts;
}

Result<TargetConfig> read_lfm2_text(const ConfigFields& config, const std::string& family, bool has_experts) {
  VOLLEY_RETURN_IF_ERROR(check_theta_stated(config));
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, family));
  std::vector<model::Layer>& layers = dense.decoder.layers;
  VOLLEY_RETURN_IF_ERROR(read_head_norms(config, layers));
  VOLLEY_RETURN_IF_ERROR(read_lfm2_mixers(config, layers, dense.decoder.hidden));
  // How weights were made, and what other fields say as well.
  for (const char* unread : {"block_norm_eps", "block_use_swiglu", "block_use_xavier_init", "block_mlp_init_scale",
                             "block_out_init_scale", "conv_use_xavier_init", "num_heads", "use_pos_enc"}) {
    config.has(unread);
  }
  std::optional<model::Experts> experts;
  if (has_experts) {
    VOLLEY_ASSIGN(experts, read_lfm2_experts(config));
    VOLLEY_ASSIGN(const int32_t first, config.integer("num_dense_layers", 0, kMaxLayers, 2));
    for (size_t i = static_cast<size_t>(first); i < layers.size(); ++i) layers[i].ffn = *experts;
  }
  TargetConfig target = target_of(std::move(dense));
  target.names.aliases.push_back({"norm.", "embedding_norm."});
  target.names.inner = {{"input_layernorm.", "operator_norm."},
                        {"post_attention_layernorm.", "ffn_norm."},
                        {"self_attn.o_proj.", "self_attn.out_proj."},
                        {"self_attn.q_norm.", "self_attn.q_layernorm."},
                        {"self_attn.k_norm.", "self_attn.k_layernorm."},
                        {"mlp.gate.e_score_correction_bias", "mlp.expert_bias"},
                        {"mlp.", "feed_forward."},
                        {".gate_proj.", ".w1."},
                        {".up_proj.", ".w3."},
                        {".down_proj.", ".w2."}};
  if (experts) add_expert_stacks(*experts, target.names);
  return target;
}

Result<TargetConfig> read_lfm2_config(const ConfigFields& config, const std::string& family, bool has_experts) {
  nlohmann::json fields = lfm2_in_usual_words(config.json());
  if (!has_experts) {
    const ConfigFields stated(fields, config.where());
    VOLLEY_RETURN_IF_ERROR(adjust_lfm2_inner(stated, fields));
    for (const char* used : {"block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"}) {
      fields.erase(used);
    }
  }
  return read_translated(config, fields,
                         [&](const ConfigFields& text) { return read_lfm2_text(text, family, has_experts); });
}

}  // namespace

Result<TargetConfig> read_lfm2(const ConfigFields& config) {
  return read_lfm2_config(config, "lfm2", false);
}

Result<TargetConfig> read_lfm2_moe(const ConfigFields& config) {
  return read_lfm2_config(config, "lfm2_moe", true);
}

}  // namespace volley::families

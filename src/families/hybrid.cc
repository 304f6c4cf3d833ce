#include "families/hybrid.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace volley::families {
namespace {

// Defaults as in transformers.
constexpr double kPartialRotary = 0.25;
constexpr int32_t kFullInterval = 4;

Result<model::GatedDelta> read_delta(const ConfigFields& config, bool by_key_head) {
  model::GatedDelta delta;
  delta.by_key_head = by_key_head;
  ops::DeltaShape& shape = delta.shape;
  VOLLEY_ASSIGN(shape.k_heads, config.integer("linear_num_key_heads", 1, kMaxLayers));
  VOLLEY_ASSIGN(shape.v_heads, config.integer("linear_num_value_heads", 1, kMaxLayers));
  VOLLEY_ASSIGN(shape.k_dim, config.integer("linear_key_head_dim", 1, kMaxWidth));
  VOLLEY_ASSIGN(shape.v_dim, config.integer("linear_value_head_dim", 1, kMaxWidth));
  VOLLEY_ASSIGN(shape.taps, config.integer("linear_conv_kernel_dim", 1, kMaxWidth));
  if (const Status status = ops::check_delta_shape(shape); !status.ok()) {
    return Error{status.error().code, config.where() + ": " + status.error().message};
  }
  return delta;
}

// Which layers are full attention: from "layer_types", or every "full_attention_interval"th.
Status read_mixers(const ConfigFields& config, const model::GatedDelta& delta, std::vector<model::Layer>& layers) {
  VOLLEY_ASSIGN(const std::vector<std::string> types, read_layer_types(config, layers.size()));
  VOLLEY_ASSIGN(const int32_t interval, config.integer("full_attention_interval", 1, kMaxLayers, kFullInterval));
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool full = types.empty() ? (i + 1) % static_cast<size_t>(interval) == 0 : types[i] == "full_attention";
    if (full) continue;
    if (!types.empty() && types[i] != "linear_attention") {
      return config.unbuilt("layer_types", "has \"" + types[i] +
                                               "\", which is not built for this architecture; built are "
                                               "full_attention and linear_attention");
    }
    layers[i].mixer = delta;
  }
  const auto keeps_kv = [](const model::Layer& layer) { return layer.mixer_facts().kv.has_value(); };
  if (std::ranges::none_of(layers, keeps_kv)) {
    return config.unbuilt("layer_types",
                          "or full_attention_interval leaves no layer of full attention, which is not built");
  }
  return {};
}

Status refuse_variants(const ConfigFields& config) {
  VOLLEY_ASSIGN(const bool bias, config.boolean("attention_bias", false));
  if (bias) return config.unbuilt("attention_bias", "is true, which is not built for this architecture");
  VOLLEY_ASSIGN(const bool gate, config.boolean("attn_output_gate", true));
  if (!gate) return config.unbuilt("attn_output_gate", "is false, which is not built for this architecture");
  // The activation of linear attention's output gate; swish is another name of silu.
  VOLLEY_ASSIGN(const std::string output, config.text("output_gate_type", "silu"));
  if (output != "silu" && output != "swish") {
    return config.unbuilt("output_gate_type", "is \"" + output + "\", which is not built; built are silu and swish");
  }
  VOLLEY_ASSIGN(const std::string state, config.text("mamba_ssm_dtype", "float32"));
  if (state != "float32") {
    return config.unbuilt("mamba_ssm_dtype", "is \"" + state + "\"; states are built in float32 alone");
  }
  return {};
}

}  // namespace

Result<TargetConfig> read_hybrid(const ConfigFields& config, const HybridRules& rules) {
  VOLLEY_RETURN_IF_ERROR(refuse_variants(config));
  // transformers has a default of its own for an absent field.
  if (!config.has("head_dim")) return config.wrong("head_dim", "is missing: it must be the size of a head");
  std::optional<model::Experts> experts;
  DenseRules dense_rules;
  dense_rules.partial_rotary = kPartialRotary;
  if (rules.experts) {
    VOLLEY_ASSIGN(experts, read_experts(config, true));
    VOLLEY_ASSIGN(experts->shared_inner, config.integer("shared_expert_intermediate_size", 0, kMaxWidth));
    if (!rules.sparse_layers) dense_rules.inner = experts->inner;  // no layer is dense
  }
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, rules.family, dense_rules));
  model::Decoder& decoder = dense.decoder;
  decoder.norms_above_one = true;
  for (model::Layer& layer : decoder.layers) {
    attention_of(layer).qk_norm = attention_of(layer).gate = true;
    if (experts && !rules.sparse_layers) layer.ffn = *experts;
  }
  if (rules.sparse_layers) VOLLEY_RETURN_IF_ERROR(read_sparse_layers(config, *experts, decoder.layers));
  VOLLEY_ASSIGN(const model::GatedDelta delta, read_delta(config, rules.by_key_head));
  VOLLEY_RETURN_IF_ERROR(read_mixers(config, delta, decoder.layers));
  for (const char* unread : {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"}) config.has(unread);
  TargetConfig target = target_of(std::move(dense));
  target.names.skipped.push_back({"mtp.", "multi-token prediction"});
  if (experts) add_expert_stacks(*experts, target.names);
  return target;
}

}  // namespace volley::families

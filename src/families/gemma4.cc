// Gemma 4, text only: Gemma 3's layers, but full-attention layers have wider heads, whose V may be K's projection and
// which turn in part, V is normed, and each layer ends in a factor. Some sizes have experts beside the dense network.
#include <algorithm>

#include "families/common.h"
#include "families/gemma.h"
#include "families/registry.h"
#include "families/rope_config.h"

namespace volley::families {
namespace {

// transformers' defaults for fields that files may leave out. Encoder-free models ("unified") have others.
nlohmann::json with_gemma4_defaults(const nlohmann::json& stated) {
  const bool unified = stated.value("model_type", nlohmann::json()) == "gemma4_unified_text";
  nlohmann::json all = in_gemmas_words(stated, {{"vocab_size", 262144},
                                                {"global_head_dim", 512},
                                                {"max_position_embeddings", unified ? 262144 : 131072},
                                                {"hidden_size_per_layer_input", unified ? 0 : 256},
                                                {"sliding_window", unified ? 1024 : 512}});
  if (const auto rope = all.find("rope_parameters"); rope == all.end() || rope->is_null()) {
    all["rope_parameters"] = {
        {kWindowed, {{"rope_theta", 1e4}}},
        {kFull, {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}}}};
  }
  return all;
}

// Layers of E2B and E4B that are not built, and fields that say nothing without these.
Status refuse_small_models(const ConfigFields& config) {
  VOLLEY_ASSIGN(const int32_t width, config.integer("hidden_size_per_layer_input", 0, kMaxWidth));
  if (width > 0) {
    return config.unbuilt("hidden_size_per_layer_input", "is " + std::to_string(width) +
                                                             ": embeddings for each layer, as E2B and E4B have them, "
                                                             "are not built; state 0 if there are none");
  }
  VOLLEY_ASSIGN(const int32_t shared, config.integer("num_kv_shared_layers", 0, kMaxLayers, 0));
  if (shared > 0) return config.unbuilt("num_kv_shared_layers", "is not 0: shared K and V are not built");
  for (const char* unread : {"vocab_size_per_layer_input", "use_double_wide_mlp"}) config.has(unread);
  VOLLEY_ASSIGN(const std::string both_ways, config.text("use_bidirectional_attention", "vision"));
  if (both_ways == "vision") return {};
  return config.unbuilt("use_bidirectional_attention", "is \"" + both_ways + "\", which is not built");
}

Status read_wide_heads(const ConfigFields& config, DenseConfig& dense) {
  model::Decoder& decoder = dense.decoder;
  VOLLEY_ASSIGN(const int32_t head_dim, config.integer("global_head_dim", 1, kMaxWidth));
  VOLLEY_RETURN_IF_ERROR(check_head_dim(config, "global_head_dim", head_dim));
  VOLLEY_ASSIGN(const bool v_from_k, config.boolean("attention_k_eq_v", false));
  const model::Attention& narrow = attention_of(decoder.layers[0]);
  constexpr const char* kHeads = "num_global_key_value_heads";
  VOLLEY_ASSIGN(int32_t kv_heads, config.integer(kHeads, 1, narrow.heads, narrow.kv_heads));
  if (!v_from_k) kv_heads = narrow.kv_heads;  // as in transformers
  if (narrow.heads % kv_heads != 0) return config.wrong(kHeads, "does not divide num_attention_heads");
  VOLLEY_ASSIGN(const std::optional<ConfigFields> own, config.object("full_rope"));
  if (!own) {
    return config.wrong("rope_parameters", "must have \"full_attention\" and \"sliding_attention\"");
  }
  const bool any_windows =
      std::ranges::any_of(decoder.layers, [](const model::Layer& layer) { return layer.mixer_facts().kv->window > 0; });
  if (!any_windows) decoder.ropes.clear();  // drafters
  VOLLEY_ASSIGN(decoder.ropes.emplace_back(), read_rope(*own, head_dim, 1.0, dense.max_positions));
  for (model::Layer& layer : decoder.layers) {
    model::Attention& a = attention_of(layer);
    if (a.window > 0) continue;
    a.head_dim = head_dim;
    a.kv_heads = kv_heads;
    a.v_from_k = v_from_k;
    a.rope = any_windows ? 1 : 0;
  }
  return {};
}

Result<model::Experts> read_experts_beside(const ConfigFields& config, int32_t dense_inner) {
  VOLLEY_ASSIGN(model::Experts experts, read_experts(config, true));
  experts.gelu = experts.expert_scale = experts.own_norms = true;
  experts.shared_inner = dense_inner;
  experts.shared_gate = false;
  return experts;
}

Result<TargetConfig> read_gemma4_text(const ConfigFields& config) {
  VOLLEY_ASSIGN(DenseConfig dense, read_gemma4_dense(config));
  std::vector<model::Layer>& layers = dense.decoder.layers;
  VOLLEY_ASSIGN(const bool has_experts, config.boolean("enable_moe_block", false));
  if (!has_experts) {
    for (const char* unread : {"num_experts", "num_experts_per_tok", "moe_intermediate_size"}) config.has(unread);
    return target_of(std::move(dense));
  }
  VOLLEY_ASSIGN(const model::Experts experts, read_experts_beside(config, std::get<model::Dense>(layers[0].ffn).inner));
  for (model::Layer& layer : layers) layer.ffn = experts;
  TargetConfig target = target_of(std::move(dense));
  target.names.inner = {{"mlp.experts.", "experts."},
                        {"mlp.gate.", "router."},
                        {"router.weight", "router.proj.weight"},
                        {"mlp.shared_expert.", "mlp."}};
  add_expert_stacks(experts, target.names);
  return target;
}

}  // namespace

// Each kind of layer has a rotary embedding of its own.
nlohmann::json in_gemma4_words(const nlohmann::json& stated) {
  nlohmann::json fields = with_gemma4_defaults(stated);
  nlohmann::json& types = fields["layer_types"];
  if (types.is_array() && !types.empty()) types.back() = kFull;  // whatever the file says, as in transformers
  nlohmann::json& rope = fields["rope_parameters"];
  if (rope.is_object() && rope.contains(kFull)) {
    const nlohmann::json full = rope[kFull];
    rope = nlohmann::json(rope.value(kWindowed, nlohmann::json::object()));
    fields["full_rope"] = {{"rope_parameters", full}};
  }
  if (fields.contains("top_k_experts")) fields["num_experts_per_tok"] = fields["top_k_experts"];
  fields.erase("top_k_experts");
  return fields;
}

Result<DenseConfig> read_gemma4_dense(const ConfigFields& config) {
  VOLLEY_RETURN_IF_ERROR(refuse_small_models(config));
  VOLLEY_ASSIGN(DenseConfig dense, read_gemma_dense(config, "gemma4"));
  VOLLEY_RETURN_IF_ERROR(read_wide_heads(config, dense));
  for (model::Layer& layer : dense.decoder.layers) {
    attention_of(layer).scale = 1;
    attention_of(layer).v_norm = layer.ffn_end.factor = true;
  }
  return dense;
}

Result<TargetConfig> read_gemma4(const ConfigFields& config) {
  return read_gemma(config, in_gemma4_words, read_gemma4_text);
}

}  // namespace volley::families

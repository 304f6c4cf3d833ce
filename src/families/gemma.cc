#include "families/gemma.h"

#include <algorithm>
#include <cmath>

namespace volley::families {

nlohmann::json in_gemmas_words(const nlohmann::json& stated, const nlohmann::json& defaults) {
  nlohmann::json fields = {{"num_attention_heads", 8},
                           {"num_key_value_heads", 4},
                           {"head_dim", 256},
                           {"hidden_activation", "gelu_pytorch_tanh"},
                           {"max_position_embeddings", 131072},
                           {"tie_word_embeddings", true}};
  fields.update(defaults);
  fields.update(stated);
  fields["hidden_act"] = fields["hidden_activation"];
  fields.erase("hidden_activation");
  if (!fields.contains("layer_types") || fields["layer_types"].is_null()) {
    const auto number = [&](const char* key, int64_t usual) {
      return fields.contains(key) && fields[key].is_number_integer() ? fields[key].get<int64_t>() : usual;
    };
    const int64_t layers = std::min<int64_t>(number("num_hidden_layers", 0), kMaxLayers);
    const int64_t pattern = number("sliding_window_pattern", number("_sliding_window_pattern", 6));
    fields["layer_types"] = nlohmann::json::array();
    for (int64_t i = 1; i <= layers; ++i) {
      fields["layer_types"].push_back(pattern > 0 && i % pattern == 0 ? kFull : kWindowed);
    }
  }
  fields.erase("sliding_window_pattern");
  return fields;
}

Result<DenseConfig> read_gemma_dense(const ConfigFields& config, const std::string& family) {
  DenseRules rules;
  rules.activation = "gelu_pytorch_tanh";
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, family, rules));
  model::Decoder& decoder = dense.decoder;
  VOLLEY_RETURN_IF_ERROR(read_attention_bias(config, decoder.layers));
  VOLLEY_RETURN_IF_ERROR(read_head_norms(config, decoder.layers));
  VOLLEY_RETURN_IF_ERROR(read_windows(config, decoder.layers));
  VOLLEY_ASSIGN(const double cap, config.number("final_logit_softcapping", {.min = 0, .max = 1e6}, 0.0));
  decoder.embedding_scale = std::sqrt(static_cast<float>(decoder.hidden));
  decoder.logits_end.cap = static_cast<float>(cap);
  for (model::Layer& layer : decoder.layers) layer.mixer_end.norm = layer.ffn_end.norm = true;
  return dense;
}

Result<TargetConfig> read_gemma(const ConfigFields& config, nlohmann::json (*translate)(const nlohmann::json&),
                                Result<TargetConfig> (*read_text)(const ConfigFields&)) {
  VOLLEY_ASSIGN(const std::optional<ConfigFields> inner, config.object("text_config"));
  const ConfigFields& stated = inner ? *inner : config;
  VOLLEY_ASSIGN(TargetConfig target, read_translated(stated, translate(stated.json()), read_text));
  weights::NameRules& names = target.names;
  for (const weights::NameRules::Alias& alias : kGemmaNorms) names.inner.push_back(alias);
  if (!inner) return target;
  VOLLEY_RETURN_IF_ERROR(
      read_beside_text(config, stated, {"mm_tokens_per_image", "vision_soft_tokens_per_image"}, target));
  return target;
}

}  // namespace volley::families

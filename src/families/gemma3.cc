// Gemma 3, text only: norms before and after both blocks, stored as weight minus 1; GELU; a window with a rotary
// embedding of its own in all but every sixth layer; a scaled embedding.
#include <cmath>
#include <nlohmann/json.hpp>

#include "families/common.h"
#include "families/gemma.h"
#include "families/generation.h"
#include "families/registry.h"
#include "families/rope_config.h"

namespace volley::families {
namespace {

// Translates the fields into those of other families, among them the rotary embedding of full-attention layers.
nlohmann::json in_usual_words(const nlohmann::json& stated) {
  nlohmann::json fields =
      in_gemmas_words(stated, {{"vocab_size", 262208}, {"query_pre_attn_scalar", 256}, {"sliding_window", 4096}});
  nlohmann::json& rope = fields["rope_parameters"];  // transformers 5 has one for each kind of layer
  if (rope.is_object() && rope.contains(kFull)) {
    fields["windowed_rope_parameters"] = rope.value(kWindowed, nlohmann::json::object());
    rope = nlohmann::json(rope[kFull]);
  } else if (!fields.contains("rope_theta")) {
    fields["rope_theta"] = 1e6;
  }
  return fields;
}

Result<model::RopeSpec> read_windowed_rope(const ConfigFields& config, int32_t head_dim) {
  model::RopeSpec rope;
  rope.dim = head_dim;
  VOLLEY_ASSIGN(const std::optional<ConfigFields> own, config.object("windowed_rope_parameters"));
  const bool nested = own.has_value();
  VOLLEY_ASSIGN(rope.theta,
                nested ? own->number("rope_theta", kTheta, 1e4) : config.number("rope_local_base_freq", kTheta, 1e4));
  VOLLEY_ASSIGN(const std::string type, nested ? own->text("rope_type", "default") : Result<std::string>("default"));
  if (type != "default") {
    return own->unbuilt("rope_type", "is \"" + type + "\", which is not built for layers with a window");
  }
  return rope;
}

Result<TargetConfig> read_text(const ConfigFields& config) {
  VOLLEY_ASSIGN(DenseConfig dense, read_gemma_dense(config, "gemma3"));
  model::Decoder& decoder = dense.decoder;
  VOLLEY_ASSIGN(decoder.ropes.emplace_back(), read_windowed_rope(config, attention_of(decoder.layers[0]).head_dim));
  VOLLEY_ASSIGN(const double scalar, config.number("query_pre_attn_scalar", kFactor));
  decoder.norms_above_one = true;
  for (model::Layer& layer : decoder.layers) {
    model::Attention& attention = attention_of(layer);
    attention.scale = static_cast<float>(1 / std::sqrt(scalar));
    attention.rope = attention.window > 0 ? 1 : 0;
  }
  return target_of(std::move(dense));
}

}  // namespace

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

Result<TargetConfig> read_gemma3(const ConfigFields& config) {
  return read_gemma(config, in_usual_words, read_text);
}

}  // namespace volley::families

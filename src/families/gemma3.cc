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

Result<TargetConfig> read_gemma3(const ConfigFields& config) {
  return read_gemma(config, in_usual_words, read_text);
}

}  // namespace volley::families

// Granite 3 and 4 without experts: Llama with factors at the embedding, the scores, the residual stream and the logits.
#include "families/common.h"
#include "families/registry.h"

namespace volley::families {

Result<TargetConfig> read_granite(const ConfigFields& config) {
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, "granite"));
  model::Decoder& decoder = dense.decoder;
  VOLLEY_RETURN_IF_ERROR(read_attention_bias(config, decoder.layers));
  VOLLEY_ASSIGN(const double embedding, config.number("embedding_multiplier", kFactor, 1.0));
  VOLLEY_ASSIGN(const double scores, config.number("attention_multiplier", kFactor, 1.0));
  VOLLEY_ASSIGN(const double residual, config.number("residual_multiplier", kFactor, 1.0));
  VOLLEY_ASSIGN(const double logits, config.number("logits_scaling", kFactor, 1.0));
  decoder.embedding_scale = static_cast<float>(embedding);
  decoder.logits_end.scale = static_cast<float>(1 / logits);
  for (model::Layer& layer : decoder.layers) {
    attention_of(layer).scale = static_cast<float>(scores);
    layer.mixer_end.scale = layer.ffn_end.scale = static_cast<float>(residual);
  }
  return target_of(std::move(dense));
}

}  // namespace volley::families

#include "model/spec.h"

namespace volley::model {
namespace {

int64_t layer_parameters(const DecoderSpec& spec) {
  const int64_t hidden = spec.hidden;
  const int64_t q = static_cast<int64_t>(spec.heads) * spec.head_dim;
  const int64_t kv = static_cast<int64_t>(spec.kv_heads) * spec.head_dim;
  const int64_t attention = hidden * (q + 2 * kv) + q * hidden;
  const int64_t mlp = 3 * hidden * spec.intermediate;
  const int64_t norms = 2 * hidden + (spec.qk_norm ? 2 * spec.head_dim : 0);
  return attention + mlp + norms;
}

int64_t layers_and_norm(const DecoderSpec& spec) {
  return static_cast<int64_t>(spec.layers.size()) * layer_parameters(spec) + spec.hidden;
}

}  // namespace

int64_t count_parameters(const DecoderSpec& spec) {
  const int64_t table = static_cast<int64_t>(spec.vocab) * spec.hidden;
  return (spec.tied_embeddings ? table : 2 * table) + layers_and_norm(spec);
}

int64_t count_parameters(const DraftSpec& spec) {
  const int64_t hidden = spec.decoder.hidden;
  const int64_t fc = static_cast<int64_t>(spec.target_layers.size()) * hidden * hidden;
  return layers_and_norm(spec.decoder) + fc + hidden;
}

}  // namespace volley::model

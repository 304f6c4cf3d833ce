// What config.json says in the same words for nearly every family.
#pragma once

#include "families/family.h"
#include "families/fields.h"

namespace volley::families {

// Bounds that no model comes near, so that products of two fit into an int64.
inline constexpr int32_t kMaxWidth = 1 << 20;
inline constexpr int32_t kMaxLayers = 1 << 12;

// A decoder of equal layers with grouped-query attention and a dense SwiGLU network: sizes, heads, norm, rotary
// embedding and ties. Every layer is full and causal, without norms of heads and biases: what else a family has is its
// own to set.
struct DenseConfig {
  model::Decoder decoder;
  int32_t max_positions = 0;
};
Result<DenseConfig> read_dense(const ConfigFields& config, const std::string& family);

// "layer_types": one a layer, or an empty list if the file has none.
Result<std::vector<std::string>> read_layer_types(const ConfigFields& config, size_t layers);

// Families, each in its own file.
Result<TargetConfig> read_qwen3(const ConfigFields& config);

}  // namespace volley::families

// Qwen2 and Qwen2.5: biases of q, k and v, and sliding windows in the upper layers of some.
#include "families/common.h"
#include "families/registry.h"

namespace volley::families {

Result<TargetConfig> read_qwen2(const ConfigFields& config) {
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, "qwen2"));
  for (model::Layer& layer : dense.decoder.layers) attention_of(layer).bias = true;
  VOLLEY_RETURN_IF_ERROR(read_windows(config, dense.decoder.layers));
  return target_of(std::move(dense));
}

}  // namespace volley::families

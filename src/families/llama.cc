// Llama 2, 3, 3.1 and 3.2, and models built like them.
#include "families/common.h"
#include "families/registry.h"

namespace volley::families {

Result<TargetConfig> read_llama(const ConfigFields& config) {
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, "llama"));
  VOLLEY_RETURN_IF_ERROR(read_attention_bias(config, dense.decoder.layers));
  return target_of(std::move(dense));
}

}  // namespace volley::families

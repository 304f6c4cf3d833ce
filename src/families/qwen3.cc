// Qwen3: a norm of every head of q and k.
#include "families/common.h"
#include "families/registry.h"

namespace volley::families {

Result<TargetConfig> read_qwen3(const ConfigFields& config) {
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, "qwen3"));
  VOLLEY_RETURN_IF_ERROR(read_attention_bias(config, dense.decoder.layers));
  VOLLEY_RETURN_IF_ERROR(read_head_norms(config, dense.decoder.layers));
  VOLLEY_RETURN_IF_ERROR(read_windows(config, dense.decoder.layers));
  return target_of(std::move(dense));
}

}  // namespace volley::families

// Qwen3, a norm of every head of q and k; and the text part of Qwen3-VL, whose tokens have positions on three axes.
#include "families/common.h"
#include "families/registry.h"

namespace volley::families {
namespace {

Result<TargetConfig> read_text(const ConfigFields& config, const std::string& family, const DenseRules& rules) {
  VOLLEY_ASSIGN(DenseConfig dense, read_dense(config, family, rules));
  VOLLEY_RETURN_IF_ERROR(read_attention_bias(config, dense.decoder.layers));
  VOLLEY_RETURN_IF_ERROR(read_head_norms(config, dense.decoder.layers));
  VOLLEY_RETURN_IF_ERROR(read_windows(config, dense.decoder.layers));
  return target_of(std::move(dense));
}

}  // namespace

Result<TargetConfig> read_qwen3(const ConfigFields& config) {
  return read_text(config, "qwen3", {});
}

Result<TargetConfig> read_qwen3_vl(const ConfigFields& config) {
  return read_text_part(config,
                        [](const ConfigFields& text) { return read_text(text, "qwen3_vl", {.partial_rotary = 1.0}); });
}

}  // namespace volley::families

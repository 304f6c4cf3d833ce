// Qwen3.5 and 3.6, dense and with experts: text-only checkpoints, and the text part of those with vision.
#include "families/common.h"
#include "families/hybrid.h"
#include "families/registry.h"

namespace volley::families {
namespace {

Result<TargetConfig> read_text(const ConfigFields& config, const HybridRules& rules) {
  return read_text_part(config, [&](const ConfigFields& text) { return read_hybrid(text, rules); });
}

}  // namespace

Result<TargetConfig> read_qwen3_5(const ConfigFields& config) {
  return read_text(config, {"qwen3_5"});
}

Result<TargetConfig> read_qwen3_5_moe(const ConfigFields& config) {
  HybridRules rules = {"qwen3_5_moe"};
  rules.experts = true;
  return read_text(config, rules);
}

}  // namespace volley::families

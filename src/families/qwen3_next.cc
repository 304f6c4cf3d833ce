// Qwen3-Next and Qwen3-Coder-Next: linear attention with a mixture of experts and a shared one.
#include "families/hybrid.h"
#include "families/registry.h"

namespace volley::families {

Result<TargetConfig> read_qwen3_next(const ConfigFields& config) {
  config.has("use_sliding_window");  // false in published files, and not used by this family's model
  return read_hybrid(config, {"qwen3_next", true, true, true});
}

}  // namespace volley::families

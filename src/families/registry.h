// The families that registry.cc chooses from.
#pragma once

#include "families/family.h"
#include "families/fields.h"

namespace volley::families {

// Families, each in its own file.
Result<TargetConfig> read_deepseek_v2(const ConfigFields& config);
Result<TargetConfig> read_deepseek_v3(const ConfigFields& config);
Result<TargetConfig> read_deepseek_v32(const ConfigFields& config);
Result<TargetConfig> read_gemma3(const ConfigFields& config);
Result<TargetConfig> read_gemma4(const ConfigFields& config);
Result<TargetConfig> read_glm4_moe(const ConfigFields& config);
Result<TargetConfig> read_glm4_moe_lite(const ConfigFields& config);
Result<TargetConfig> read_glm_moe_dsa(const ConfigFields& config);
Result<TargetConfig> read_gpt_oss(const ConfigFields& config);
Result<TargetConfig> read_granite(const ConfigFields& config);
Result<TargetConfig> read_kimi_k25(const ConfigFields& config);
Result<TargetConfig> read_lfm2(const ConfigFields& config);
Result<TargetConfig> read_lfm2_moe(const ConfigFields& config);
Result<TargetConfig> read_llama(const ConfigFields& config);
Result<TargetConfig> read_minimax_m2(const ConfigFields& config);
Result<TargetConfig> read_mistral(const ConfigFields& config);
Result<TargetConfig> read_mistral4(const ConfigFields& config);
Result<TargetConfig> read_qwen2(const ConfigFields& config);
Result<TargetConfig> read_qwen3(const ConfigFields& config);
Result<TargetConfig> read_qwen3_5(const ConfigFields& config);
Result<TargetConfig> read_qwen3_5_moe(const ConfigFields& config);
Result<TargetConfig> read_qwen3_moe(const ConfigFields& config);
Result<TargetConfig> read_qwen3_next(const ConfigFields& config);
Result<TargetConfig> read_qwen3_vl(const ConfigFields& config);
Result<TargetConfig> read_qwen3_vl_moe(const ConfigFields& config);

}  // namespace volley::families

#include "families/registry.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "families/common.h"
#include "families/generation.h"
#include "families/quantisation.h"

namespace volley::families {
namespace {

// A family's name in config.json, and its reader. The first of an architecture is that of a file without "model_type".
struct Family {
  const char* architecture;
  const char* model_type;
  Result<TargetConfig> (*read)(const ConfigFields&);
};

constexpr Family kFamilies[] = {
    {"DeepseekV2ForCausalLM", "deepseek_v2", read_deepseek_v2},
    {"DeepseekV3ForCausalLM", "deepseek_v3", read_deepseek_v3},
    {"DeepseekV3ForCausalLM", "kimi_k2", read_deepseek_v3},
    {"DeepseekV32ForCausalLM", "deepseek_v32", read_deepseek_v32},
    {"Gemma3ForCausalLM", "gemma3_text", read_gemma3},
    {"Gemma3ForConditionalGeneration", "gemma3", read_gemma3},
    {"Gemma4ForCausalLM", "gemma4_text", read_gemma4},
    {"Gemma4ForConditionalGeneration", "gemma4", read_gemma4},
    {"Gemma4UnifiedForCausalLM", "gemma4_unified_text", read_gemma4},
    {"Gemma4UnifiedForConditionalGeneration", "gemma4_unified", read_gemma4},
    {"Glm4MoeForCausalLM", "glm4_moe", read_glm4_moe},
    {"Glm4MoeLiteForCausalLM", "glm4_moe_lite", read_glm4_moe_lite},
    {"GlmMoeDsaForCausalLM", "glm_moe_dsa", read_glm_moe_dsa},
    {"GptOssForCausalLM", "gpt_oss", read_gpt_oss},
    {"GraniteForCausalLM", "granite", read_granite},
    {"KimiK25ForConditionalGeneration", "kimi_k25", read_kimi_k25},
    {"Lfm2ForCausalLM", "lfm2", read_lfm2},
    {"Lfm2MoeForCausalLM", "lfm2_moe", read_lfm2_moe},
    {"LlamaForCausalLM", "llama", read_llama},
    {"MiniMaxM2ForCausalLM", "minimax_m2", read_minimax_m2},
    {"Mistral3ForConditionalGeneration", "mistral3", read_mistral4},
    {"Mistral4ForCausalLM", "mistral4", read_mistral4},
    {"MistralForCausalLM", "mistral", read_mistral},
    {"Qwen2ForCausalLM", "qwen2", read_qwen2},
    {"Qwen3ForCausalLM", "qwen3", read_qwen3},
    {"Qwen3MoeForCausalLM", "qwen3_moe", read_qwen3_moe},
    {"Qwen3NextForCausalLM", "qwen3_next", read_qwen3_next},
    {"Qwen3VLForConditionalGeneration", "qwen3_vl", read_qwen3_vl},
    {"Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", read_qwen3_vl_moe},
    {"Qwen3_5ForCausalLM", "qwen3_5_text", read_qwen3_5},
    {"Qwen3_5ForConditionalGeneration", "qwen3_5", read_qwen3_5},
    {"Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", read_qwen3_5_moe},
    {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", read_qwen3_5_moe},
};

Error unknown_architecture(const ConfigFields& config, const std::string& architecture) {
  if (architecture.ends_with("DraftModel")) {
    return config.wrong("architectures", "is " + architecture +
                                             ": this folder holds a drafter, which needs a target beside it; give it "
                                             "as the drafter");
  }
  std::string built;
  for (const Family& family : kFamilies) built += (built.empty() ? "" : ", ") + std::string(family.architecture);
  return config.unbuilt("architectures", "is " + architecture + ", which is not built; built are: " + built);
}

}  // namespace

Result<TargetConfig> read_target(const std::string& dir) {
  VOLLEY_ASSIGN(const nlohmann::json json, read_json_file(dir + "/config.json"));
  const ConfigFields config(json, dir + "/config.json");
  VOLLEY_ASSIGN(const std::vector<std::string> architectures, config.texts("architectures"));
  if (architectures.empty()) return config.wrong("architectures", "is missing: it must name the model's architecture");
  const std::string& architecture = architectures[0];
  const auto is_architecture = [&](const Family& f) { return f.architecture == architecture; };
  const Family* const first = std::find_if(std::begin(kFamilies), std::end(kFamilies), is_architecture);
  if (first == std::end(kFamilies)) return unknown_architecture(config, architecture);
  VOLLEY_ASSIGN(const std::string model_type, config.text("model_type", first->model_type));
  const Family* const family = std::find_if(
      first, std::end(kFamilies), [&](const Family& f) { return is_architecture(f) && f.model_type == model_type; });
  if (family == std::end(kFamilies)) {
    return config.unbuilt("model_type", "is \"" + model_type + "\", which is not built for " + architecture +
                                            "; built is " + first->model_type);
  }
  VOLLEY_ASSIGN(TargetConfig target, family->read(config));
  target.architecture = architecture;
  VOLLEY_ASSIGN(const std::optional<ConfigFields> text, config.object("text_config"));
  const bool inside = text && text->has("quantization_config");
  VOLLEY_ASSIGN(target.names.quantisation, read_quantisation(inside ? *text : config, dir));
  VOLLEY_ASSIGN(std::vector<TokenId> eos_ids, read_eos_ids(config, target.decoder.vocab));
  if (!eos_ids.empty()) target.eos_ids = std::move(eos_ids);
  VOLLEY_RETURN_IF_ERROR(read_generation_config(dir, target));
  if (auto& tower = target.decoder.tower) VOLLEY_RETURN_IF_ERROR(read_picture_rules(dir, tower->rules));
  // Some files of tied models hold only the head.
  if (target.decoder.tied_embeddings) target.names.aliases.push_back({"embed_tokens.", "lm_head."});
  VOLLEY_RETURN_IF_ERROR(check_windows(target.decoder, config.where()));
  VOLLEY_RETURN_IF_ERROR(config.refuse_unread());
  return target;
}

}  // namespace volley::families

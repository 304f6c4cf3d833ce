// For the tests of targets' configurations: a good Qwen3 config, and reading of changes to it.
#pragma once

#include "families/config_for_test.h"

namespace volley::families {

inline constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
inline constexpr ErrorCode kUnbuilt = ErrorCode::kUnimplemented;

inline nlohmann::json good_config() {
  return nlohmann::json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 96, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 200, "vocab_size": 151, "num_hidden_layers": 3,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "rope_scaling": null,
    "hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": true, "use_sliding_window": false,
    "sliding_window": 4096, "eos_token_id": 7, "torch_dtype": "bfloat16",
    "layer_types": ["full_attention", "full_attention", "full_attention"]})");
}

inline Result<TargetConfig> read(const nlohmann::json& config, const std::string& generation = "") {
  const TempFolder folder;
  folder.write("config.json", config.dump());
  if (!generation.empty()) folder.write("generation_config.json", generation);
  return read_target(folder.path());
}

// The spec of a config that must be accepted.
inline TargetConfig accepted(const nlohmann::json& config, const std::string& generation = "") {
  const auto spec = read(config, generation);
  EXPECT_TRUE(spec.ok()) << spec.error().message;
  return spec.ok() ? *spec : TargetConfig();
}
// The spec of the good config with a change.
inline TargetConfig accepted(const char* patch, const std::string& generation = "") {
  return accepted(patched(good_config(), patch), generation);
}

}  // namespace volley::families

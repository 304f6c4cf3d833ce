// The words that Gemma's families share.
#pragma once

#include <nlohmann/json.hpp>

#include "families/common.h"

namespace volley::families {

inline constexpr const char *kWindowed = "sliding_attention", *kFull = "full_attention";  // in "layer_types"

// The names of the norms before and after both blocks.
inline const weights::NameRules::Alias kGemmaNorms[] = {{"post_attention_layernorm.", "pre_feedforward_layernorm."},
                                                        {"post_self_attn_layernorm.", "post_attention_layernorm."},
                                                        {"post_mlp_layernorm.", "post_feedforward_layernorm."}};

// The fields with transformers' defaults, `defaults` first. The activation has the name that other families give it,
// and the kinds of layers are listed where the file does not: every sixth one, or as it says, is full.
nlohmann::json in_gemmas_words(const nlohmann::json& stated, const nlohmann::json& defaults);

// read_dense() with GELU, norms of heads and after both blocks, windows, a scaled embedding and a cap of logits.
Result<DenseConfig> read_gemma_dense(const ConfigFields& config, const std::string& family);

// Reads a decoder that may lie in "text_config", beside vision and sound, which are left out. translate: its fields
// with defaults, in the words of other families. read_text: the decoder of these.
Result<TargetConfig> read_gemma(const ConfigFields& config, nlohmann::json (*translate)(const nlohmann::json&),
                                Result<TargetConfig> (*read_text)(const ConfigFields&));

// Gemma 4's fields in these words, and its decoder without experts, of a target or a drafter.
nlohmann::json in_gemma4_words(const nlohmann::json& stated);
Result<DenseConfig> read_gemma4_dense(const ConfigFields& config);

}  // namespace volley::families

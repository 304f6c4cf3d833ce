// Protects: config.json of gpt-oss, and transformers' defaults where fields are absent, are read; variants are refused.
#include "families/target_config_for_test.h"
#include "model/params.h"

namespace volley::families {
namespace {

nlohmann::json oss_config() {
  return nlohmann::json::parse(R"({
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 80, "vocab_size": 151, "num_hidden_layers": 3,
    "num_local_experts": 6, "num_experts_per_tok": 2, "experts_per_token": 2, "attention_bias": true,
    "max_position_embeddings": 131072, "initial_context_length": 4096, "rms_norm_eps": 1e-5, "rope_theta": 150000,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                     "original_max_position_embeddings": 4096},
    "hidden_act": "silu", "swiglu_limit": 7.0, "sliding_window": 128, "tie_word_embeddings": false,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"], "eos_token_id": 7})");
}

TargetConfig accepted_oss(const char* patch) {
  return accepted(patched(oss_config(), patch));
}

TEST(GptOssConfig, SaysWhatLayersAre) {
  using testing::ElementsAre;
  const TargetConfig target = accepted_oss("{}");
  EXPECT_THAT(windows(target), ElementsAre(0, 128, 0));
  for (size_t i = 0; i < 3; ++i) {
    const model::Attention* attention = target.decoder.attention(i);
    EXPECT_TRUE(attention->sinks && attention->bias && attention->o_bias && !attention->qk_norm);
    const model::Experts* experts = target.decoder.experts(i);
    ASSERT_NE(experts, nullptr);
    EXPECT_EQ(experts->router.experts, 6);
    EXPECT_EQ(experts->router.top_k, 2);
    EXPECT_TRUE(experts->router.renormalise) << "softmax over the chosen ones";
    EXPECT_EQ(experts->inner, 80);
    EXPECT_TRUE(experts->bias && experts->interleaved && experts->transposed);
    EXPECT_EQ(experts->clamp, (ops::SwiGluClamp{1.702f, 7.0f}));
  }
  EXPECT_FALSE(target.decoder.ropes[0].truncate);
  EXPECT_EQ(target.max_positions, 131072);
}

TEST(GptOssConfig, TakesWhatTransformersTakesWhereNothingIsSaid) {
  using testing::ElementsAre;
  const TargetConfig target = accepted_oss(
      R"({"layer_types":null,"sliding_window":null,"attention_bias":null,"swiglu_limit":null,"experts_per_token":null})");
  EXPECT_THAT(windows(target), ElementsAre(128, 0, 128));
  EXPECT_TRUE(target.decoder.attention(1)->bias);
  EXPECT_EQ(target.decoder.experts(1)->clamp.limit, 7.0f);
  EXPECT_FALSE(accepted_oss(R"({"attention_bias":false})").decoder.attention(0)->o_bias);
  EXPECT_EQ(accepted_oss(R"({"swiglu_limit":5.5})").decoder.experts(0)->clamp.limit, 5.5f);
  EXPECT_EQ(accepted_oss(R"({"swiglu_alpha":1.702})").decoder.experts(0)->clamp, (ops::SwiGluClamp{1.702f, 7.0f}));
  EXPECT_EQ(accepted_oss(R"({"swiglu_alpha":1.5})").decoder.experts(0)->clamp.alpha, 1.5f);
}

// Every element of the stacked tensors belongs to one row of one part, and every bias to its row.
TEST(GptOssConfig, GatesAndUpsTakeTurns) {
  const TargetConfig target = accepted_oss("{}");
  int interleaved = 0;
  for (const model::Param& param : model::params(target.decoder)) {
    for (size_t i = 0; i < param.parts.size(); ++i) {
      const model::Param::Part& part = param.parts[i];
      if (part.step == 1) continue;
      ++interleaved;
      EXPECT_EQ(part.step, 2);
      EXPECT_EQ(part.rows, 80);
      const int64_t expert = static_cast<int64_t>(i) / 2;
      EXPECT_EQ(part.first, static_cast<int64_t>(i % 2) + (param.columns == 0 ? expert * 160 : 0)) << param.role;
      if (param.columns > 0) EXPECT_EQ(param.stored_shape(part), (std::vector<int64_t>{96, 160}));
    }
  }
  EXPECT_EQ(interleaved, 3 * 2 * 6 * 2);  // layers, matrices and biases, experts, gate and up
}

REFUSES_CONFIGS(BadOssConfig, oss_config())

INSTANTIATE_TEST_SUITE_P(
    All, BadOssConfig,
    testing::Values(
        BadConfig{"quantised", R"({"quantization_config":{"quant_method":"bitnet"}})", kUnbuilt, {"bitnet"}},
        BadConfig{"null_window", R"({"sliding_window":"@null"})", kInvalid, {"sliding_window"}},
        BadConfig{"no_window", R"({"sliding_window":0})", kInvalid, {"sliding_window"}},
        BadConfig{"layer_type",
                  R"({"layer_types":["full_attention","chunked_attention","full_attention"]})",
                  kUnbuilt,
                  {"layer_types", "chunked_attention"}},
        BadConfig{"few_layer_types", R"({"layer_types":["full_attention"]})", kInvalid, {"layer_types"}},
        BadConfig{"two_numbers", R"({"experts_per_token":3})", kInvalid, {"experts_per_token", "num_experts_per_tok"}},
        BadConfig{"no_experts", R"({"num_local_experts":null})", kInvalid, {"num_experts"}},
        BadConfig{"no_rotation", R"({"rope_scaling":null})", kInvalid, {"rope_scaling"}},
        BadConfig{"no_theta", R"({"rope_theta":null})", kInvalid, {"rope_theta"}},
        BadConfig{"no_head_dim", R"({"head_dim":null})", kInvalid, {"head_dim"}},
        BadConfig{"no_eps", R"({"rms_norm_eps":null})", kInvalid, {"rms_norm_eps"}},
        BadConfig{"limit", R"({"swiglu_limit":0})", kInvalid, {"swiglu_limit"}},
        BadConfig{"alpha", R"({"swiglu_alpha":0})", kInvalid, {"swiglu_alpha"}},
        BadConfig{"activation", R"({"hidden_act":"gelu"})", kUnbuilt, {"hidden_act"}},
        BadConfig{"unknown_field", R"({"router_scale":2.0})", kUnbuilt, {"router_scale"}}),
    name_of_bad);

}  // namespace
}  // namespace volley::families

// Protects: config.json of families with latent attention, and of routers with groups and biases, is read; what is not
// built, or would be read otherwise elsewhere, is refused.
#include <cmath>

#include "families/fields.h"
#include "families/target_config_for_test.h"
#include "model/params.h"

namespace volley::families {
namespace {

nlohmann::json latent_config() {
  return nlohmann::json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 80, "vocab_size": 151,
    "num_hidden_layers": 3, "kv_lora_rank": 64, "q_lora_rank": 48, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
    "v_head_dim": 40, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3,
    "moe_intermediate_size": 20, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": true,
    "moe_layer_freq": 1, "ep_size": 1, "aux_loss_alpha": 0.001, "seq_aux": true, "num_nextn_predict_layers": 1,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000, "hidden_act": "silu",
    "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32,
                     "beta_slow": 1, "original_max_position_embeddings": 4096},
    "tie_word_embeddings": false, "eos_token_id": 1})");
}

TargetConfig accepted_latent(const char* patch) {
  return accepted(patched(latent_config(), patch));
}

TEST(LatentConfig, SaysWhatLayersAre) {
  const TargetConfig target = accepted_latent("{}");
  for (size_t i = 0; i < 3; ++i) {
    const model::Latent* latent = target.decoder.latent(i);
    ASSERT_NE(latent, nullptr);
    EXPECT_EQ(latent->shape.heads, 4);
    EXPECT_EQ(latent->shape.key(), 80);
    EXPECT_EQ(latent->shape.query(), 40);
    EXPECT_EQ(latent->shape.value, 40);
    EXPECT_EQ(latent->q_rank, 48);
    EXPECT_FLOAT_EQ(latent->norm_eps, 1e-6f) << "whatever rms_norm_eps is";
    EXPECT_NEAR(latent->scale, 1.8738 / std::sqrt(40.0), 1e-4);
    EXPECT_EQ(target.decoder.experts(i) == nullptr, i == 0);
  }
  const model::RopeSpec& rope = target.decoder.ropes[0];
  EXPECT_TRUE(rope.interleaved);
  EXPECT_EQ(rope.dim, 16);
  const model::Experts& experts = *target.decoder.experts(1);
  EXPECT_EQ(experts.router.score, ops::RouterScore::kSigmoid);
  EXPECT_EQ(experts.router.groups, 4);
  EXPECT_EQ(experts.router.top_groups, 2);
  EXPECT_FLOAT_EQ(experts.router.scaling, 2.5f);
  EXPECT_EQ(experts.shared_inner, 40);
  EXPECT_TRUE(experts.choice_bias && !experts.shared_gate && experts.router.renormalise);
}

TEST(LatentConfig, TakesVariants) {
  EXPECT_EQ(accepted_latent(R"({"q_lora_rank":"@null"})").decoder.latent(0)->q_rank, 0);
  EXPECT_FALSE(accepted_latent(R"({"rope_interleave":false})").decoder.ropes[0].interleaved);
  EXPECT_FLOAT_EQ(accepted_latent(R"({"rope_scaling":"@null"})").decoder.latent(0)->scale, 1 / std::sqrt(40.0f));
  EXPECT_EQ(accepted_latent(R"({"topk_group":4})").decoder.experts(1)->router.groups, 1);
  const TargetConfig softmax = accepted_latent(
      R"({"architectures":["DeepseekV2ForCausalLM"],"model_type":"deepseek_v2","scoring_func":"softmax",
          "topk_method":"greedy","norm_topk_prob":false,"n_group":1,"topk_group":1,"routed_scaling_factor":1})");
  EXPECT_EQ(softmax.decoder.experts(1)->router.score, ops::RouterScore::kSoftmax);
  EXPECT_FALSE(softmax.decoder.experts(1)->choice_bias || softmax.decoder.experts(1)->router.renormalise);
}

// In any order of loading a pair's elements are rotated together: evens come before odds.
TEST(LatentConfig, NeighboursThatArePairsAreLoadedApart) {
  const TargetConfig target = accepted_latent("{}");
  for (const model::Param& param : model::layer_params(target.decoder, 0)) {
    if (param.role != "layers.0.kv_a") continue;
    const auto& ranges = param.parts[0].ranges;
    ASSERT_EQ(ranges.size(), 17u);
    EXPECT_EQ(ranges[0], (std::pair<int64_t, int64_t>{0, 64}));
    EXPECT_EQ(ranges[1].first, 64);
    EXPECT_EQ(ranges[2].first, 66);
    EXPECT_EQ(ranges[9].first, 65);
    return;
  }
  FAIL() << "there is no kv_a";
}

class BadLatentConfig : public testing::TestWithParam<BadConfig> {};

TEST_P(BadLatentConfig, IsRefused) {
  expect_refused(read(patched(latent_config(), GetParam().patch)), GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    All, BadLatentConfig,
    testing::Values(
        BadConfig{"bias", R"({"attention_bias":true})", ErrorCode::kUnimplemented, {"attention_bias"}},
        BadConfig{"no_rank", R"({"q_lora_rank":null})", ErrorCode::kInvalidArgument, {"q_lora_rank"}},
        BadConfig{"kv_heads", R"({"num_key_value_heads":2})", ErrorCode::kInvalidArgument, {"num_key_value_heads"}},
        BadConfig{"wide", R"({"kv_lora_rank":1024})", ErrorCode::kUnimplemented, {"1024"}},
        BadConfig{"odd_rope", R"({"qk_rope_head_dim":24})", ErrorCode::kUnimplemented, {"24"}},
        BadConfig{"scores", R"({"scoring_func":"softmax"})", ErrorCode::kUnimplemented, {"scoring_func", "softmax"}},
        BadConfig{"method", R"({"topk_method":"greedy"})", ErrorCode::kUnimplemented, {"topk_method"}},
        BadConfig{"groups", R"({"n_group":3})", ErrorCode::kInvalidArgument, {"3"}},
        BadConfig{"no_groups", R"({"n_group":null})", ErrorCode::kInvalidArgument, {"n_group"}},
        BadConfig{"frequency", R"({"moe_layer_freq":2})", ErrorCode::kUnimplemented, {"moe_layer_freq"}},
        BadConfig{"indexer", R"({"index_topk":2048})", ErrorCode::kUnimplemented, {"index_topk"}},
        BadConfig{"limited",
                  R"({"architectures":["DeepseekV2ForCausalLM"],"model_type":"deepseek_v2",
                                 "scoring_func":"softmax","topk_method":"group_limited_greedy"})",
                  ErrorCode::kUnimplemented,
                  {"topk_method", "group_limited_greedy"}}),
    [](const auto& info) { return std::string(info.param.name); });

// Config.json of a target of tests/data.
nlohmann::json config_of(const std::string& target) {
  return *read_json_file("tests/data/targets/" + target + "/config.json");
}

// As many positions as a row may choose keys, and a warning that says so.
TEST(SparseLatentConfig, ContextsAreThoseInWhichEveryKeyIsSeen) {
  const TargetConfig limited = accepted(config_of("sparse_glm"));
  EXPECT_EQ(limited.max_positions, 192);
  ASSERT_EQ(limited.warnings.size(), 1u);
  EXPECT_THAT(limited.warnings[0], testing::HasSubstr("192"));
  const TargetConfig whole = accepted(patched(config_of("sparse_glm"), R"({"index_topk":256})"));
  EXPECT_EQ(whole.max_positions, 256);
  EXPECT_TRUE(whole.warnings.empty());
}

// 2/3 of what the file states, times the factor, rounded up.
TEST(ShortConvConfig, TheWidthIsAdjusted) {
  const auto inner = [](const char* patch) {
    return accepted(patched(config_of("lfm2_tied"), patch)).decoder.layers[0].ffn_facts().inner;
  };
  EXPECT_EQ(inner("{}"), 64);
  EXPECT_EQ(inner(R"({"intermediate_size":100,"block_ffn_dim_multiplier":0.5})"), 48);
  EXPECT_EQ(inner(R"({"block_auto_adjust_ff_dim":false})"), 96);
}

struct BadOfTarget {
  const char* target;
  BadConfig bad;
};
void PrintTo(const BadOfTarget& of, std::ostream* os) {
  *os << of.target << " " << of.bad.name;
}
class BadOwnConfig : public testing::TestWithParam<BadOfTarget> {};

TEST_P(BadOwnConfig, IsRefused) {
  expect_refused(read(patched(config_of(GetParam().target), GetParam().bad.patch)), GetParam().bad);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadOwnConfig,
    testing::Values(
        BadOfTarget{"lfm2_tied", {"conv_bias", R"({"conv_bias":true})", ErrorCode::kUnimplemented, {"conv_bias"}}},
        BadOfTarget{"lfm2_tied", {"width", R"({"conv_dim":32})", ErrorCode::kUnimplemented, {"conv_dim"}}},
        BadOfTarget{
            "lfm2_tied",
            {"kinds", R"({"layer_types":["conv","conv","mamba","conv"]})", ErrorCode::kUnimplemented, {"mamba"}}},
        BadOfTarget{"lfm2_tied",
                    {"no_attention",
                     R"({"layer_types":["conv","conv","conv","conv"]})",
                     ErrorCode::kUnimplemented,
                     {"layer_types"}}},
        BadOfTarget{"minimax_odd",
                    {"norms", R"({"qk_norm_type":"per_head"})", ErrorCode::kUnimplemented, {"per_head"}}},
        BadOfTarget{"minimax_odd",
                    {"linear", R"({"attn_type_list":[1,0]})", ErrorCode::kUnimplemented, {"attn_type_list"}}},
        BadOfTarget{"minimax_odd", {"scores", R"({"scoring_func":"softmax"})", ErrorCode::kUnimplemented, {"softmax"}}},
        BadOfTarget{"sparse_glm", {"unknown", R"({"index_rope":3})", ErrorCode::kUnimplemented, {"index_rope"}}}),
    [](const auto& info) { return std::string(info.param.target) + "_" + info.param.bad.name; });

}  // namespace
}  // namespace volley::families

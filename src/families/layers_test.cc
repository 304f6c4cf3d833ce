// Protects: windows, biases and experts of layers follow config.json by the rules of each family; unread fields are
// refused.
#include "families/common.h"
#include "families/target_config_for_test.h"

namespace volley::families {
namespace {

using nlohmann::json;

// Derived as transformers does for Qwen2 and Qwen3: from max_window_layers on, 28 unless stated.
TEST(TargetConfig, LayersSlideWhereTheFileSaysSo) {
  using testing::ElementsAre;
  EXPECT_THAT(windows(accepted(R"({"use_sliding_window":true,
    "layer_types":["full_attention","sliding_attention","full_attention"]})")),
              ElementsAre(0, 4096, 0));
  const auto derived = [](const char* more) {
    return windows(accepted((R"({"layer_types":null,)" + std::string(more) + "}").c_str()));
  };
  EXPECT_THAT(derived(R"("use_sliding_window":true,"max_window_layers":1)"), ElementsAre(0, 4096, 4096));
  EXPECT_THAT(derived(R"("use_sliding_window":true,"max_window_layers":0)"), ElementsAre(4096, 4096, 4096));
  EXPECT_THAT(derived(R"("use_sliding_window":true)"), ElementsAre(0, 0, 0));
  EXPECT_THAT(derived(R"("use_sliding_window":true,"max_window_layers":0,"sliding_window":"@null")"),
              ElementsAre(0, 0, 0));
  EXPECT_THAT(derived(R"("use_sliding_window":false,"max_window_layers":0)"), ElementsAre(0, 0, 0));
  EXPECT_THAT(derived(R"("use_sliding_window":null,"max_window_layers":0)"), ElementsAre(0, 0, 0));
}

TEST(TargetConfig, BiasesAreWhatTheFileOrTheFamilySays) {
  EXPECT_FALSE(accepted("{}").decoder.attention(1)->bias);
  EXPECT_TRUE(accepted(R"({"attention_bias":true})").decoder.attention(1)->bias);
  EXPECT_TRUE(accepted(R"({"attention_bias":true})").decoder.attention(1)->o_bias);
  const TargetConfig llama = accepted(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
    "layer_types":null,"use_sliding_window":null,"sliding_window":null})");
  EXPECT_EQ(llama.decoder.family, "llama");
  EXPECT_FALSE(llama.decoder.attention(1)->bias);
  EXPECT_FALSE(llama.decoder.attention(1)->qk_norm);
  const TargetConfig qwen2 =
      accepted(R"({"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2","attention_bias":null})");
  EXPECT_EQ(qwen2.decoder.family, "qwen2");
  EXPECT_TRUE(qwen2.decoder.attention(1)->bias);
  EXPECT_FALSE(qwen2.decoder.attention(1)->qk_norm);
}

// Results that silently differ from the makers' are worse than a refusal.
TEST(TargetConfig, FieldsThatNobodyReadsAreRefusedUnlessTheyChangeNothing) {
  for (const char* field :
       {R"("embedding_multiplier":12.0)", R"("logit_scale":0.0625)", R"("mlp_bias":true)", R"("num_experts":8)",
        R"("norm_before_fc":true)", R"("use_target_norm":true)", R"("final_logit_softcapping":30.0)",
        R"("residual_multiplier":0)", R"("attn_type":"mla")", R"("text_config":{"a":1})", R"("is_neox_style":false)",
        R"("rope_scaling":{"type":"yarn","factor":2,"rope_dim":8})", R"("an_odd_field":[1])"}) {
    const auto spec = read(patched(good_config(), ("{" + std::string(field) + "}").c_str()));
    ASSERT_FALSE(spec.ok()) << field;
    EXPECT_EQ(spec.error().code, kUnbuilt) << field;
    const std::string key = std::string(field).find("rope_dim") != std::string::npos
                                ? "rope_dim"
                                : std::string(field).substr(1, std::string(field).find(':') - 2);
    EXPECT_THAT(spec.error().message, testing::AllOf(testing::HasSubstr("config.json"), testing::HasSubstr(key),
                                                     testing::HasSubstr("remove it")));
  }
  accepted(R"({"embedding_multiplier":1.0,"logit_scale":1,"mlp_bias":false,"num_experts":0,"norm_before_fc":false,
    "use_target_norm":"@null","final_logit_softcapping":0.0,"is_neox_style":true,"text_config":{},"an_odd_field":[],
    "use_qk_norm":true,"attention_dropout":0.1,"resid_pdrop":0,"hidden_dropout_prob":0.1,"auto_map":{"AutoModel":"a"},
    "transformers_version":"5.1.0","dtype":"float32","_name_or_path":"x","initializer_range":0.02,"use_cache":true,
    "bos_token_id":3,"pad_token_id":5,"rope_scaling":{"type":"yarn","rope_type":"yarn","factor":2,"finetuned":true}})");
}

// As in transformers, which has a default for an absent field; null means no window.
TEST(TargetConfig, OneWindowForAllLayersMayBeTheDefault) {
  const auto window = [](const char* patch) {
    const json config = patched(good_config(), R"({"architectures":["MistralForCausalLM"],"model_type":"mistral",
      "layer_types":null,"use_sliding_window":null})");
    const auto target = read(patched(config, patch));
    EXPECT_TRUE(target.ok()) << target.error().message;
    return target.ok() ? windows(*target) : std::vector<int32_t>();
  };
  using testing::ElementsAre;
  EXPECT_THAT(window(R"({"sliding_window":512})"), ElementsAre(512, 512, 512));
  EXPECT_THAT(window(R"({"sliding_window":"@null"})"), ElementsAre(0, 0, 0));
  EXPECT_THAT(window(R"({"sliding_window":null})"), ElementsAre(4096, 4096, 4096)) << "removed";
  const auto past_all_positions = read(patched(good_config(), R"({"architectures":["MistralForCausalLM"],
    "model_type":"mistral","layer_types":null,"use_sliding_window":null,"sliding_window":2147483647})"));
  ASSERT_FALSE(past_all_positions.ok());
  EXPECT_THAT(past_all_positions.error().message, testing::HasSubstr("16777216"));
}

Result<TargetConfig> read_experts(const char* patch) {
  const json config = patched(good_config(), R"({"architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe",
    "layer_types":null,"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":40,"norm_topk_prob":true,
    "decoder_sparse_step":1,"mlp_only_layers":[],"output_router_logits":false,"router_aux_loss_coef":0.001,
    "max_window_layers":48})");
  return read(patched(config, patch));
}

TEST(TargetConfig, ExpertsStandWhereTheFileSaysSo) {
  const auto where = [](const char* patch) {
    const auto target = read_experts(patch);
    EXPECT_TRUE(target.ok()) << target.error().message;
    std::vector<bool> layers;
    for (size_t i = 0; target.ok() && i < 3; ++i) layers.push_back(target->decoder.experts(i) != nullptr);
    return layers;
  };
  using testing::ElementsAre;
  EXPECT_THAT(where("{}"), ElementsAre(true, true, true));
  EXPECT_THAT(where(R"({"decoder_sparse_step":2})"), ElementsAre(false, true, false));
  EXPECT_THAT(where(R"({"mlp_only_layers":[0,2]})"), ElementsAre(false, true, false));
  EXPECT_THAT(where(R"({"decoder_sparse_step":3,"mlp_only_layers":[2]})"), ElementsAre(false, false, false));
  const auto target = read_experts(R"({"num_experts":null,"num_local_experts":6,"norm_topk_prob":null,
    "use_sliding_window":true,"max_window_layers":2})");
  ASSERT_TRUE(target.ok()) << target.error().message;
  const model::Experts& experts = *target->decoder.experts(0);
  EXPECT_EQ(experts.router.experts, 6);
  EXPECT_EQ(experts.router.top_k, 2);
  EXPECT_FALSE(experts.router.renormalise);
  EXPECT_EQ(experts.inner, 40);
  EXPECT_THAT(windows(*target), ElementsAre(4096, 4096, 4096)) << "max_window_layers has no say in this family";
}

REFUSES(BadExperts, read_experts(GetParam().patch))

INSTANTIATE_TEST_SUITE_P(
    All, BadExperts,
    testing::Values(BadConfig{"no_experts", R"({"num_experts":null})", kInvalid, {"num_experts"}},
                    BadConfig{"too_many_chosen", R"({"num_experts_per_tok":9})", kInvalid, {"9", "8"}},
                    BadConfig{"unbuilt_router", R"({"num_experts":1024})", kUnbuilt, {"1024"}},
                    BadConfig{"step_zero", R"({"decoder_sparse_step":0})", kInvalid, {"decoder_sparse_step"}},
                    BadConfig{"shared", R"({"shared_expert_intermediate_size":64})", kUnbuilt, {"shared_expert"}}),
    name_of_bad);

TEST(TargetConfig, WindowsOfTwoSizesAreRefused) {
  model::Decoder decoder;
  for (const int32_t window : {0, 512, 0, 512}) {
    model::Attention attention;
    attention.window = window;
    decoder.layers.push_back({attention, model::Dense()});
  }
  EXPECT_TRUE(check_windows(decoder, "config.json").ok());
  std::get<model::Attention>(decoder.layers[3].mixer).window = 1024;
  const Status status = check_windows(decoder, "config.json");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, kUnbuilt);
  EXPECT_THAT(status.error().message, testing::AllOf(testing::HasSubstr("512"), testing::HasSubstr("1024")));
}

}  // namespace
}  // namespace volley::families

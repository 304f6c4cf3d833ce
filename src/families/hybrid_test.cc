// Protects: a hybrid is built as its config.json says, nested or not, and unsupported variants are refused by name.
#include "families/target_config_for_test.h"
#include "model/params.h"

namespace volley::families {
namespace {

using nlohmann::json;
using testing::ElementsAre;

json hybrid_config() {
  return patched(good_config(), R"({"architectures":["Qwen3_5ForCausalLM"],"model_type":"qwen3_5_text",
    "layer_types":null,"use_sliding_window":null,"sliding_window":null,"num_hidden_layers":4,
    "linear_num_key_heads":2,"linear_num_value_heads":6,"linear_key_head_dim":16,"linear_value_head_dim":32,
    "linear_conv_kernel_dim":4,"full_attention_interval":2,"attn_output_gate":true,"mamba_ssm_dtype":"float32",
    "mtp_num_hidden_layers":1,"partial_rotary_factor":0.5,"tie_word_embeddings":false})");
}

TargetConfig accepted_hybrid(const char* patch) {
  return accepted(patched(hybrid_config(), patch));
}

std::vector<bool> linear_layers(const TargetConfig& target) {
  std::vector<bool> linear;
  for (size_t i = 0; i < target.decoder.layers.size(); ++i) linear.push_back(target.decoder.delta(i) != nullptr);
  return linear;
}

TEST(HybridConfig, LayersAreWhatTheFileSays) {
  const TargetConfig target = accepted_hybrid("{}");
  EXPECT_THAT(linear_layers(target), ElementsAre(true, false, true, false));
  EXPECT_EQ(target.decoder.state_layers(), 2u);
  EXPECT_EQ(target.decoder.first_kv()->head_dim, target.decoder.attention(1)->head_dim);
  EXPECT_TRUE(target.decoder.attention(1)->gate);
  EXPECT_TRUE(target.decoder.attention(1)->qk_norm);
  EXPECT_TRUE(target.decoder.norms_above_one);
  const ops::DeltaShape& shape = target.decoder.delta(0)->shape;
  EXPECT_EQ(shape.channels(), 2 * 2 * 16 + 6 * 32);
  EXPECT_EQ(shape.taps, 4);
  EXPECT_EQ(target.decoder.ropes[0].dim, 32);
  EXPECT_EQ(target.decoder.ropes[0].rotated, 16);
  EXPECT_THAT(linear_layers(accepted_hybrid(R"({"full_attention_interval":null})")),
              ElementsAre(true, true, true, false));
  EXPECT_THAT(linear_layers(accepted_hybrid(
                  R"({"layer_types":["full_attention","linear_attention","linear_attention","full_attention"]})")),
              ElementsAre(false, true, true, false));
  EXPECT_EQ(accepted_hybrid(R"({"partial_rotary_factor":null})").decoder.ropes[0].rotated, 8);
  EXPECT_EQ(accepted_hybrid(R"({"partial_rotary_factor":1.0})").decoder.ropes[0].rotated, 0);
  EXPECT_EQ(accepted_hybrid(R"({"partial_rotary_factor":null,"rope_parameters":{"rope_type":"default",
    "rope_theta":5e4,"partial_rotary_factor":0.75,"mrope_section":[6,3,3],"mrope_interleaved":true}})")
                .decoder.ropes[0]
                .rotated,
            24);
}

TEST(HybridConfig, TheOutputOfLinearAttentionIsGatedBySilu) {
  for (const char* name : {"silu", "swish"}) {
    const auto target =
        read(patched(hybrid_config(), (R"({"output_gate_type":")" + std::string(name) + "\"}").c_str()));
    EXPECT_TRUE(target.ok()) << target.error().message;
  }
}

TEST(HybridConfig, TextBesideVisionIsTheSameText) {
  json text = hybrid_config();
  text["eos_token_id"] = 9;
  const json nested = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                       {"model_type", "qwen3_5"},
                       {"text_config", text},
                       {"vision_config", {{"depth", 27}, {"hidden_size", 1152}}},
                       {"image_token_id", 5},
                       {"tie_word_embeddings", true}};
  const auto target = read(nested);
  ASSERT_TRUE(target.ok()) << target.error().message;
  EXPECT_THAT(linear_layers(*target), ElementsAre(true, false, true, false));
  EXPECT_TRUE(target->decoder.tied_embeddings) << "the outer field counts";
  EXPECT_THAT(target->eos_ids, ElementsAre(9));
  EXPECT_EQ(target->names.prefixes.front(), "model.language_model.");
  EXPECT_EQ(target->decoder.added_layers, 0);
  json deep = nested;
  deep["vision_config"]["deepstack_visual_indexes"] = {5, 11, 17};
  EXPECT_EQ(read(deep)->decoder.added_layers, 3);
  json other = nested;
  other["text_config"]["embedding_multiplier"] = 12.0;
  const auto refused = read(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message,
              testing::AllOf(testing::HasSubstr("text_config"), testing::HasSubstr("embedding_multiplier")));
}

// M-RoPE: every pair that turns follows time, height or width, in turn.
TEST(HybridConfig, SectionsOfPairsFollowAxes) {
  const auto rope = [](const char* sections) {
    json config = hybrid_config();
    config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e4}, {"partial_rotary_factor", 0.5}};
    config["rope_parameters"].update(json::parse(sections));
    return read(config);
  };
  const auto plain = rope("{}");
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_FALSE(plain->decoder.has_rope_axes());
  const int32_t pairs = plain->decoder.ropes[0].rotated / 2;
  ASSERT_GE(pairs, 8);
  const std::string some = std::to_string(pairs - 3);
  const auto target = rope((R"({"mrope_interleaved":true,"mrope_section":[)" + some + ",2,1]}").c_str());
  ASSERT_TRUE(target.ok()) << target.error().message;
  EXPECT_TRUE(target->decoder.has_rope_axes());
  std::vector<int32_t> axes = model::pair_axes(target->decoder.ropes[0]);
  EXPECT_EQ(std::ssize(axes), target->decoder.ropes[0].dim / 2);
  axes.resize(8);
  EXPECT_THAT(axes, ElementsAre(0, 1, 2, 0, 1, 0, 0, 0));
  for (const char* wrong : {R"({"mrope_section":[1,1,1]})", R"({"mrope_section":[4,4]})",
                            R"({"mrope_interleaved":false,"mrope_section":[4,2,2]})"}) {
    EXPECT_FALSE(rope(wrong).ok()) << wrong;
  }
}

TEST(HybridConfig, ExpertsAndTheSharedOne) {
  const char* experts = R"({"architectures":["Qwen3_5MoeForCausalLM"],"model_type":"qwen3_5_moe_text",
    "intermediate_size":null,"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":40,
    "shared_expert_intermediate_size":24})";
  const TargetConfig all = accepted_hybrid(experts);
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_NE(all.decoder.experts(i), nullptr);
    EXPECT_EQ(all.decoder.experts(i)->shared_inner, 24);
    EXPECT_TRUE(all.decoder.experts(i)->router.renormalise);
  }
  const auto mixed = read(patched(patched(hybrid_config(), experts), R"({"architectures":["Qwen3NextForCausalLM"],
    "model_type":"qwen3_next","intermediate_size":72,"decoder_sparse_step":2,"norm_topk_prob":true,
    "attn_output_gate":null,"mamba_ssm_dtype":null,"mtp_num_hidden_layers":null,"mlp_only_layers":[3]})"));
  ASSERT_TRUE(mixed.ok()) << mixed.error().message;
  EXPECT_EQ(mixed->decoder.experts(0), nullptr);
  EXPECT_NE(mixed->decoder.experts(1), nullptr);
  EXPECT_EQ(mixed->decoder.experts(3), nullptr);
  EXPECT_TRUE(mixed->decoder.delta(0)->by_key_head);
}

// Every row of a tensor that is taken apart is read once.
TEST(HybridParams, TakeEveryRowOfATensorOnce) {
  for (const char* name : {"next_experts", "next_mixed", "hybrid_tied", "hybrid_wide", "hybrid_nested"}) {
    const auto target = read_target(std::string("tests/data/targets/") + name);
    ASSERT_TRUE(target.ok()) << target.error().message;
    std::map<std::string, std::vector<int>> times;  // by tensor, of each row
    for (const model::Param& param : model::params(target->decoder)) {
      for (const model::Param::Part& part : param.parts) {
        if (part.ranges.empty()) continue;
        std::vector<int>& rows = times[part.name];
        rows.resize(static_cast<size_t>(param.stored_shape(part)[0]));
        int64_t taken = 0;
        for (const auto& [first, n] : part.ranges) {
          for (int64_t i = first; i < first + n; ++i) ++rows.at(static_cast<size_t>(i));
          taken += n;
        }
        EXPECT_EQ(taken, part.rows) << part.name;
      }
    }
    EXPECT_GE(times.size(), 2u) << name;
    for (const auto& [tensor, rows] : times) EXPECT_THAT(rows, testing::Each(1)) << name << ", " << tensor;
  }
}

REFUSES_CONFIGS(BadHybrid, hybrid_config())

INSTANTIATE_TEST_SUITE_P(
    All, BadHybrid,
    testing::Values(
        BadConfig{"no_heads", R"({"linear_num_key_heads":null})", kInvalid, {"linear_num_key_heads"}},
        BadConfig{"heads_do_not_divide", R"({"linear_num_value_heads":5})", kInvalid, {"5", "2"}},
        BadConfig{"unbuilt_heads", R"({"linear_key_head_dim":24})", kUnbuilt, {"24", "16"}},
        BadConfig{"unbuilt_convolution", R"({"linear_conv_kernel_dim":12})", kUnbuilt, {"12"}},
        BadConfig{"states_in_bf16", R"({"mamba_ssm_dtype":"bfloat16"})", kUnbuilt, {"mamba_ssm_dtype", "bfloat16"}},
        BadConfig{"other_output_gate",
                  R"({"output_gate_type":"sigmoid"})",
                  kUnbuilt,
                  {"output_gate_type", "sigmoid", "silu"}},
        BadConfig{"no_output_gate", R"({"attn_output_gate":false})", kUnbuilt, {"attn_output_gate"}},
        BadConfig{"bias", R"({"attention_bias":true})", kUnbuilt, {"attention_bias"}},
        BadConfig{"no_head_dim", R"({"head_dim":null})", kInvalid, {"head_dim"}},
        BadConfig{"no_full_layer", R"({"full_attention_interval":9})", kUnbuilt, {"full_attention_interval"}},
        BadConfig{"sliding_layer",
                  R"({"layer_types":["linear_attention","full_attention","sliding_attention","full_attention"]})",
                  kUnbuilt,
                  {"layer_types", "sliding_attention"}},
        BadConfig{"odd_rotation", R"({"partial_rotary_factor":0.1})", kInvalid, {"partial_rotary_factor"}},
        BadConfig{"unknown_field", R"({"an_odd_field":[1]})", kUnbuilt, {"an_odd_field"}}),
    name_of_bad);

}  // namespace
}  // namespace volley::families

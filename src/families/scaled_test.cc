// Protects: config.json of Gemma 3 and 4 and Granite is read, in the spellings that transformers has written and with
// its defaults; variants are refused.
#include "families/target_config_for_test.h"

namespace volley::families {
namespace {

nlohmann::json gemma_config() {
  return nlohmann::json::parse(R"({
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 200, "vocab_size": 151, "num_hidden_layers": 7,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_local_base_freq": 10000,
    "rope_scaling": null, "hidden_activation": "gelu_pytorch_tanh", "attention_bias": false, "sliding_window": 512,
    "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "attn_logit_softcapping": null,
    "final_logit_softcapping": null, "cache_implementation": "hybrid", "eos_token_id": [1, 106]})");
}

TargetConfig gemma(const char* patch) {
  return accepted(patched(gemma_config(), patch));
}

TEST(Gemma3Config, SaysWhatLayersAre) {
  const TargetConfig target = gemma("{}");
  const model::Decoder& decoder = target.decoder;
  ASSERT_EQ(decoder.layers.size(), 7u);
  EXPECT_THAT(windows(target), testing::ElementsAre(512, 512, 512, 512, 512, 0, 512));
  for (size_t i = 0; i < 7; ++i) {
    const model::Layer& layer = decoder.layers[i];
    EXPECT_TRUE(layer.mixer_end.norm && layer.ffn_end.norm);
    EXPECT_EQ(layer.mixer_end.scale, 1);
    EXPECT_TRUE(std::get<model::Dense>(layer.ffn).gelu);
    const model::Attention& attention = *decoder.attention(i);
    EXPECT_TRUE(attention.qk_norm && !attention.bias);
    EXPECT_EQ(attention.scale, 1.0f / 16) << "by query_pre_attn_scalar, not by the size of a head";
    EXPECT_EQ(decoder.ropes[static_cast<size_t>(attention.rope)].theta, attention.window > 0 ? 1e4 : 1e6);
  }
  EXPECT_TRUE(decoder.tied_embeddings && decoder.norms_above_one);
  EXPECT_FLOAT_EQ(decoder.embedding_scale, std::sqrt(96.0f));
  EXPECT_TRUE(decoder.logits_end.is_plain());
  EXPECT_THAT(target.eos_ids, testing::ElementsAre(1, 106));
  EXPECT_EQ(gemma(R"({"final_logit_softcapping":30.0})").decoder.logits_end.cap, 30);
}

TEST(Gemma3Config, OfTransformers5) {
  const TargetConfig target = gemma(R"({"rope_theta":null,"rope_local_base_freq":null,
    "sliding_window_pattern":null,"rope_scaling":null,"num_hidden_layers":2,
    "layer_types":["full_attention","sliding_attention"],"rope_parameters":{
      "full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":1000000.0},
      "sliding_attention":{"rope_type":"default","rope_theta":20000.0}}})");
  EXPECT_THAT(windows(target), testing::ElementsAre(0, 512));
  ASSERT_EQ(target.decoder.ropes.size(), 2u);
  EXPECT_EQ(target.decoder.ropes[0].factor, 8);
  EXPECT_EQ(target.decoder.ropes[1].factor, model::RopeSpec().factor);
  EXPECT_EQ(target.decoder.ropes[1].theta, 20000);
}

// As in the text part of a published model with vision: sizes that transformers has defaults for are left out.
TEST(Gemma3Config, TakesWhatTransformersTakesWhereNothingIsSaid) {
  const auto target = read(nlohmann::json::parse(R"({
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
    "boi_token_index": 255999, "eoi_token_index": 256000, "image_token_index": 262144, "mm_tokens_per_image": 256,
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152, "patch_size": 14}})"));
  ASSERT_TRUE(target.ok()) << target.error().message;
  const model::Attention& attention = *target->decoder.attention(5);
  EXPECT_EQ(attention.heads, 8);
  EXPECT_EQ(attention.kv_heads, 4);
  EXPECT_EQ(attention.head_dim, 256);
  EXPECT_EQ(attention.window, 0);
  EXPECT_EQ(target->decoder.ropes[0].theta, 1e6);
  EXPECT_EQ(target->decoder.ropes[0].factor, 8);
  EXPECT_EQ(target->decoder.vocab, 262208);
  EXPECT_EQ(target->max_positions, 131072);
  EXPECT_TRUE(target->decoder.tied_embeddings);
}

TEST(Gemma3Config, RefusesVariants) {
  for (const auto& [patch, named] : std::vector<std::pair<const char*, const char*>>{
           {R"({"hidden_activation":"relu"})", "hidden_act"},
           {R"({"attn_logit_softcapping":50.0})", "attn_logit_softcapping"},
           {R"({"use_bidirectional_attention":true})", "use_bidirectional_attention"},
           {R"({"query_pre_attn_scalar":0})", "query_pre_attn_scalar"},
           {R"({"an_odd_field":3})", "an_odd_field"}}) {
    const auto target = read(patched(gemma_config(), patch));
    ASSERT_FALSE(target.ok()) << patch;
    EXPECT_NE(target.error().message.find(named), std::string::npos) << target.error().message;
  }
}

nlohmann::json gemma4_config() {
  return nlohmann::json::parse(R"({
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_size": 96, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "global_head_dim": 128, "num_global_key_value_heads": 2,
    "attention_k_eq_v": true, "hidden_size_per_layer_input": 0, "intermediate_size": 200, "vocab_size": 151,
    "num_hidden_layers": 7, "max_position_embeddings": 4096, "sliding_window": 512, "final_logit_softcapping": 30.0,
    "num_kv_shared_layers": 0, "enable_moe_block": false, "use_bidirectional_attention": "vision", "eos_token_id": 1})");
}

TEST(Gemma4Config, HasWideHeadsInFullLayers) {
  const TargetConfig target = accepted(gemma4_config());
  const model::Decoder& decoder = target.decoder;
  EXPECT_THAT(windows(target), testing::ElementsAre(512, 512, 512, 512, 512, 0, 0)) << "the last is full in any case";
  for (size_t i = 0; i < 7; ++i) {
    const model::Attention& a = *decoder.attention(i);
    const bool full = a.window == 0;
    EXPECT_EQ(a.head_dim, full ? 128 : 64);
    EXPECT_EQ(a.kv_heads, full ? 2 : 4);
    EXPECT_EQ(a.v_from_k, full);
    EXPECT_TRUE(a.v_norm && a.qk_norm && a.scale == 1);
    EXPECT_TRUE(decoder.layers[i].mixer_end.norm && decoder.layers[i].ffn_end.factor);
    const model::RopeSpec& rope = decoder.ropes[static_cast<size_t>(a.rope)];
    EXPECT_EQ(rope.dim, a.head_dim);
    EXPECT_EQ(rope.theta, full ? 1e6 : 1e4);
    EXPECT_EQ(rope.turning, full ? 16 : 0);
    EXPECT_EQ(rope.rotated, 0);
  }
  EXPECT_FALSE(decoder.norms_above_one);
  EXPECT_EQ(decoder.logits_end.cap, 30);
  const TargetConfig apart = accepted(patched(gemma4_config(), R"({"attention_k_eq_v":false})"));
  EXPECT_EQ(apart.decoder.attention(5)->kv_heads, 4) << "the other number holds only where K is V, as in transformers";
  EXPECT_FALSE(apart.decoder.attention(5)->v_from_k);
}

TEST(Gemma4Config, HasExpertsBesideTheDenseNetwork) {
  const TargetConfig target = accepted(patched(gemma4_config(), R"({"enable_moe_block":true,"num_experts":6,
    "top_k_experts":2,"moe_intermediate_size":40})"));
  const model::Experts& experts = *target.decoder.experts(0);
  EXPECT_EQ(experts.router.experts, 6);
  EXPECT_EQ(experts.router.top_k, 2);
  EXPECT_EQ(experts.inner, 40);
  EXPECT_EQ(experts.shared_inner, 200);
  EXPECT_TRUE(experts.own_norms && experts.expert_scale && experts.gelu && !experts.shared_gate);
}

TEST(Gemma4Config, RefusesVariants) {
  for (const auto& [patch, named] : std::vector<std::pair<const char*, const char*>>{
           {R"({"hidden_size_per_layer_input":256})", "E2B"},
           {R"({"hidden_size_per_layer_input":null})", "hidden_size_per_layer_input"},
           {R"({"num_kv_shared_layers":3})", "num_kv_shared_layers"},
           {R"({"global_head_dim":1024})", "global_head_dim"},
           {R"({"use_bidirectional_attention":"all"})", "use_bidirectional_attention"},
           {R"({"rope_parameters":{"rope_theta":10000.0}})", "full_attention"}}) {
    const auto target = read(patched(gemma4_config(), patch));
    ASSERT_FALSE(target.ok()) << patch;
    EXPECT_NE(target.error().message.find(named), std::string::npos) << target.error().message;
  }
}

TEST(GraniteConfig, SaysItsFactors) {
  const auto target = read(patched(good_config(), R"({"architectures":["GraniteForCausalLM"],"model_type":"granite",
    "use_sliding_window":null,"sliding_window":null,"layer_types":null,"embedding_multiplier":12.0,
    "attention_multiplier":0.015625,"residual_multiplier":0.22,"logits_scaling":8.0,"mlp_bias":false})"));
  ASSERT_TRUE(target.ok()) << target.error().message;
  EXPECT_EQ(target->decoder.embedding_scale, 12);
  EXPECT_EQ(target->decoder.logits_end.scale, 0.125f);
  EXPECT_EQ(target->decoder.attention(1)->scale, 0.015625f);
  EXPECT_EQ(target->decoder.layers[1].mixer_end.scale, 0.22f);
  EXPECT_EQ(target->decoder.layers[1].ffn_end.scale, 0.22f);
  EXPECT_FALSE(target->decoder.layers[1].ffn_end.norm);
}

}  // namespace
}  // namespace volley::families

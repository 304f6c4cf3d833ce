// Protects: config.json of published drafters of every schema, with all their makers' fields, is read as they were
// trained. A feature that is not built is refused by name.
#include "decode/dflash/config.h"
#include "families/config_for_test.h"

namespace volley::decode::dflash {
namespace {

using testing::ElementsAre;

Result<Facts> read_published(const std::string& config) {
  if (config[0] != '{') return read_config("models/shapes/" + config);
  const TempFolder folder;
  folder.write("config.json", config);
  return read_config(folder.path());
}

// Adds the fields that all published drafters state.
std::string usual(const std::string& own) {
  return R"({"architectures":["DFlashDraftModel"],"attention_dropout":0.0,"auto_map":{"AutoModel":"dflash.DFlashDraftModel"},
    "bos_token_id":1,"eos_token_id":2,"pad_token_id":null,"dtype":"bfloat16","hidden_act":"silu",
    "initializer_range":0.02,"model_type":"qwen3","tie_word_embeddings":false,"transformers_version":"4.57.3",
    "use_cache":true,)" +
         own + "}";
}

const model::Attention& layer(const Facts& facts, size_t i) {
  return *facts.decoder.attention(i);
}

TEST(PublishedDrafter, FirstSchema) {
  for (const auto& [shape, block] : {std::pair{"qwen3-8b-dflash", 16}, std::pair{"llama-3.1-8b-dflash", 10}}) {
    const auto facts = read_published(shape);
    ASSERT_TRUE(facts.ok()) << facts.error().message;
    EXPECT_EQ(1 + facts->proposals, block);
    EXPECT_EQ(facts->feature_layers.size(), 5u);
    EXPECT_FALSE(layer(*facts, 4).causal);
  }
  const auto facts = read_published("qwen3-30b-a3b-dflash");
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(model::count(facts->params), 473995264);
}

// This drafter has eight features for six layers, and its own fields in dflash_config.
TEST(PublishedDrafter, SecondSchemaWithSlidingWindows) {
  const auto facts =
      read_published(usual(R"("attention_bias":false,"head_dim":128,"hidden_size":2048,"intermediate_size":6144,
    "max_position_embeddings":262144,"max_window_layers":6,"num_attention_heads":32,"num_hidden_layers":6,
    "num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_parameters":{"rope_theta":10000000,"rope_type":"default"},
    "sliding_window":4096,"use_sliding_window":true,"vocab_size":248320,"num_target_layers":40,"layer_types":
    ["sliding_attention","sliding_attention","sliding_attention","sliding_attention","sliding_attention",
    "full_attention"],"dflash_config":{"block_size":16,"mask_token_id":248077,
    "target_layer_ids":[1,6,11,16,22,27,32,37]})"));
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(facts->proposals, 15);
  EXPECT_EQ(facts->feature_layers.size(), 8u);
  EXPECT_EQ(layer(*facts, 4).window, 4096);
  EXPECT_TRUE(layer(*facts, 4).causal);
  EXPECT_EQ(layer(*facts, 5).window, 0);
  EXPECT_FALSE(layer(*facts, 5).causal);
}

TEST(PublishedDrafter, BiasesAndStretchedRotations) {
  const auto facts =
      read_published(usual(R"("attention_bias":true,"head_dim":64,"hidden_size":2880,"intermediate_size":7680,
    "max_position_embeddings":131072,"max_window_layers":8,"num_attention_heads":64,"num_hidden_layers":8,
    "num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_theta":150000,"rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,
    "factor":32.0,"original_max_position_embeddings":4096,"rope_type":"yarn","truncate":false},"sliding_window":null,
    "use_sliding_window":false,"vocab_size":201088,"block_size":8,"num_target_layers":24,
    "dflash_config":{"mask_token_id":200000,"target_layer_ids":[1,6,11,16,21]})"));
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_TRUE(layer(*facts, 7).bias);
  EXPECT_EQ(facts->decoder.ropes[0].factor, 32.0);
  EXPECT_FALSE(facts->decoder.ropes[0].truncate);
}

TEST(PublishedDrafter, SpeculatorsFormat) {
  const auto facts =
      read_published(R"({"architectures":["DFlashDraftModel"],"auto_map":{"":"config.DFlashSpeculatorConfig"},
    "aux_hidden_state_layer_ids":[1,10,19,28,37],"block_size":16,"draft_vocab_size":248320,"dtype":"bfloat16",
    "mask_token_id":248077,"max_anchors":1024,"sliding_window_non_causal":false,"speculators_config":
    {"algorithm":"dflash","default_proposal_method":"greedy","proposal_methods":[{"accept_tolerance":0.0,
    "proposal_type":"greedy","speculative_tokens":15,"verifier_accept_k":1}],"verifier":{"architectures":[],
    "name_or_path":"a/b"}},"speculators_model_type":"dflash","speculators_version":"0.7.0.dev0",
    "target_hidden_size":null,"tie_word_embeddings":false,"transformer_layer_config":{"attention_bias":false,
    "attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"head_dim":256,"hidden_act":"silu","hidden_size":2048,
    "initializer_range":0.02,"intermediate_size":6144,"layer_types":["full_attention","full_attention",
    "full_attention","full_attention","full_attention"],"max_position_embeddings":262144,"max_window_layers":28,
    "model_type":"qwen3","num_attention_heads":16,"num_hidden_layers":5,"num_key_value_heads":2,"pad_token_id":null,
    "rms_norm_eps":1e-06,"rope_parameters":{"rope_theta":10000000,"rope_type":"default"},"sliding_window":null,
    "use_cache":true,"use_sliding_window":false,"vocab_size":248320},"transformers_version":"5.10.2"})");
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_THAT(facts->feature_layers, ElementsAre(0, 9, 18, 27, 36));
  EXPECT_EQ(layer(*facts, 0).head_dim, 256);
}

// The file copies the target's configuration and adds the drafter's fields at the top. Each row of a block proposes.
constexpr const char* kDeepSpec = R"({"architectures":["Qwen3DSparkModel"],"attention_bias":false,
    "attention_dropout":0.0,"block_size":7,"bos_token_id":151643,"dtype":"bfloat16","eos_token_id":151645,
    "head_dim":128,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,"intermediate_size":12288,
    "layer_types":["full_attention","full_attention","full_attention","full_attention","full_attention"],
    "mask_token_id":151669,"max_position_embeddings":40960,"max_window_layers":36,"model_type":"qwen3",
    "num_anchors":512,"num_attention_heads":32,"num_hidden_layers":5,"num_key_value_heads":8,"num_target_layers":36,
    "rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000,"sliding_window":null,
    "target_layer_ids":[1,9,17,25,33],"tie_word_embeddings":false,"transformers_version":"4.57.3","use_cache":true,
    "use_sliding_window":false,"vocab_size":151936,)";

TEST(PublishedDrafter, DeepSpecFormat) {
  const auto facts = read_published(std::string(kDeepSpec) + R"("enable_confidence_head":false,"markov_rank":0})");
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(facts->architecture, "Qwen3DSparkModel");
  EXPECT_EQ(facts->first_proposal, 0);
  EXPECT_EQ(facts->proposals, 7);
  EXPECT_THAT(facts->feature_layers, ElementsAre(1, 9, 17, 25, 33));
  EXPECT_THAT(facts->names.copies, ElementsAre("embed_tokens.weight", "lm_head.weight"));
  EXPECT_FALSE(layer(*facts, 4).causal);
  const auto dspark =
      read_published(std::string(kDeepSpec) + R"("enable_confidence_head":true,"confidence_head_with_markov":true,
    "markov_rank":256,"markov_head_type":"vanilla"})");
  ASSERT_TRUE(dspark.ok()) << dspark.error().message;
  EXPECT_EQ(dspark->proposals, 7);
  EXPECT_EQ(dspark->selector.rank, 256);
  EXPECT_EQ(dspark->selector.top_k, 16);
  EXPECT_EQ(dspark->selector.scoring, ops::Scoring::kVanilla);
  EXPECT_EQ(dspark->selector.confidence, true);
  EXPECT_EQ(model::count(dspark->params) - model::count(facts->params), 2 * 151936 * 256 + 4096 + 256 + 1);
}

// What a target of another family leaves in the file says nothing of the drafter, whose heads turn whole.
TEST(PublishedDrafter, DeepSpecFormatOfAHybridTarget) {
  std::string text(kDeepSpec);
  constexpr std::string_view kTheta = R"("rope_theta":1000000,)";
  text.erase(text.find(kTheta), kTheta.size());
  text += R"("enable_confidence_head":false,"markov_rank":0,"attn_output_gate":true,"full_attention_interval":4,
    "linear_num_key_heads":16,"linear_num_value_heads":48,"output_gate_type":"swish","partial_rotary_factor":0.25,
    "rope_parameters":{"mrope_interleaved":true,"mrope_section":[11,11,10],"partial_rotary_factor":0.25,
    "rope_theta":10000000,"rope_type":"default"}})";
  const auto facts = read_published(text);
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(facts->decoder.ropes[0].theta, 1e7);
  EXPECT_EQ(facts->decoder.ropes[0].rotated, 0);
  const size_t at = text.find("Qwen3DSparkModel");
  const auto dflash = read_published(text.replace(at, std::string_view("Qwen3DSparkModel").size(), "DFlashDraftModel"));
  ASSERT_FALSE(dflash.ok());
  EXPECT_NE(dflash.error().message.find("partial_rotary_factor"), std::string::npos) << dflash.error().message;
}

// SpecForge's: RadixArk's for Qwen3.8 27B.
TEST(PublishedDrafter, SpecForgesDSpark) {
  const auto facts =
      read_published(R"({"architectures":["DSparkDraftModel"],"attention_bias":false,"attention_dropout":0.0,
    "block_size":7,"dflash_config":{"attention_mode":"gqa","confidence_head_alpha":1.0,
    "confidence_head_with_markov":true,"enable_confidence_head":true,"markov_head_type":"vanilla","markov_rank":256,
    "mask_token_id":248070,"projector_type":"dspark","target_layer_ids":[4,16,28,40,52]},"dtype":"bfloat16",
    "head_dim":128,"hidden_act":"silu","hidden_size":5120,"intermediate_size":17408,"layer_types":["full_attention",
    "full_attention","full_attention","full_attention","full_attention"],"max_position_embeddings":262144,
    "model_type":"qwen3","num_attention_heads":40,"num_hidden_layers":5,"num_key_value_heads":8,"num_target_layers":64,
    "rms_norm_eps":1e-06,"rope_theta":10000000,"sliding_window":null,"tie_word_embeddings":false,
    "use_sliding_window":false,"vocab_size":248320})");
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(facts->architecture, "DSparkDraftModel");
  EXPECT_EQ(facts->proposals, 7);
  EXPECT_EQ(facts->selector.rank, 256);
  EXPECT_EQ(facts->selector.confidence, true);
}

// Muse Glimmer 30B's, then one in the speculators library's format, whose windows are bidirectional by default.
TEST(PublishedDrafter, DFlash2) {
  const auto facts =
      read_published(R"({"architectures":["DFlash2DraftModel"],"attention_bias":false,"attention_dropout":0.0,
    "dflash_config":{"block_size":16,"conv_group_size":16,"conv_kernel_size":2,"final_logit_softcapping":20.0,
    "mask_token_id":201818,"output_multiplier":0.19611613,"selector_rank":256,"selector_top_k":16,
    "target_layer_ids":[1,13,25,37,49]},"dtype":"bfloat16","head_dim":128,"hidden_act":"silu","hidden_size":6656,
    "intermediate_size":19968,"is_causal":false,"layer_types":["sliding_attention","sliding_attention",
    "sliding_attention","sliding_attention","sliding_attention"],"max_position_embeddings":131072,"model_type":"qwen3",
    "num_attention_heads":32,"num_hidden_layers":5,"num_key_value_heads":8,"num_target_layers":52,"rms_norm_eps":1e-06,
    "rope_parameters":{"rope_theta":500000,"rope_type":"default"},"sliding_window":2048,"use_sliding_window":true,
    "tie_word_embeddings":false,"vocab_size":202048})");
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(facts->proposals, 15);
  EXPECT_EQ(facts->decoder.block_conv.coefficients(6656), 1664);
  EXPECT_FLOAT_EQ(facts->decoder.logits_end.scale, 0.19611613f);
  EXPECT_EQ(layer(*facts, 4).window, 2048);
  EXPECT_FALSE(layer(*facts, 4).causal);
  const auto other = [](const char* more) {
    return read_published(
        std::string(R"({"architectures":["DFlash2Speculator"],"aux_hidden_state_layer_ids":[6,20],"block_size":8,
      "conv_group_size":16,"conv_kernel_size":2,"selector_rank":256,"selector_top_k":16,"mask_token_id":248070,
      "draft_vocab_size":248320,)") +
        more + R"("speculators_model_type":"dflash2","transformer_layer_config":{"head_dim":128,
      "hidden_act":"silu","hidden_size":5120,"intermediate_size":17408,"layer_types":["sliding_attention"],
      "max_position_embeddings":262144,"model_type":"qwen3","num_attention_heads":32,"num_hidden_layers":1,
      "num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_theta":10000000,"sliding_window":2048,
      "use_sliding_window":true,"vocab_size":248320}})");
  };
  for (const auto& [more, causal] : {std::pair{"", false}, {R"("sliding_window_non_causal":false,)", true}}) {
    const auto converted = other(more);
    ASSERT_TRUE(converted.ok()) << converted.error().message;
    EXPECT_EQ(converted->architecture, "DFlash2DraftModel");
    EXPECT_THAT(converted->feature_layers, ElementsAre(5, 19));
    EXPECT_EQ(converted->selector.rank, 256);
    EXPECT_EQ(layer(*converted, 0).causal, causal) << more;
  }
}

TEST(PublishedDrafter, SoftcappedLogits) {
  const auto facts =
      read_published(usual(R"("attention_bias":false,"head_dim":128,"hidden_size":5376,"intermediate_size":10752,
    "max_position_embeddings":262144,"num_attention_heads":64,"num_hidden_layers":5,"num_key_value_heads":8,
    "rms_norm_eps":1e-06,"rope_theta":1000000,"sliding_window":2048,"use_sliding_window":true,"vocab_size":262144,
    "num_target_layers":60,"final_logit_softcapping":30.0,"layer_types":["sliding_attention","sliding_attention",
    "sliding_attention","sliding_attention","full_attention"],"dflash_config":{"block_size":16,"mask_token_id":4,
    "target_layer_ids":[1,12,23,35,46,57]})"));
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(facts->decoder.logits_end.cap, 30);
  EXPECT_EQ(layer(*facts, 0).window, 2048);
}

// DeepSpec's drafter of Gemma 4 has its target's layers, all of them full, under its target's fields.
TEST(PublishedDrafter, HasLayersOfItsTarget) {
  const auto facts = read_published(R"({"architectures":["Gemma4DSparkModel"],"attention_bias":false,
    "attention_k_eq_v":true,"block_size":7,"confidence_head_with_markov":true,"enable_confidence_head":true,
    "enable_moe_block":false,"final_logit_softcapping":30.0,"global_head_dim":512,"head_dim":256,
    "hidden_activation":"gelu_pytorch_tanh","hidden_size":3840,"intermediate_size":15360,"layer_types":[
    "full_attention","full_attention"],"markov_head_type":"vanilla","markov_rank":256,"mask_token_id":4,
    "max_position_embeddings":262144,"model_type":"gemma4_unified_text","num_anchors":512,"num_attention_heads":16,
    "num_global_key_value_heads":1,"num_hidden_layers":2,"num_key_value_heads":8,"num_target_layers":48,
    "rms_norm_eps":1e-06,"sliding_window":1024,"target_layer_ids":[5,17,29,41,46],
    "target_model_type":"gemma4_unified","tie_word_embeddings":false,"vocab_size":262144})");
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  const model::Attention& a = layer(*facts, 1);
  EXPECT_EQ(a.head_dim, 512);
  EXPECT_EQ(a.kv_heads, 1);
  EXPECT_TRUE(a.v_from_k && a.v_norm && !a.causal);
  ASSERT_EQ(facts->decoder.ropes.size(), 1u);
  EXPECT_EQ(facts->decoder.ropes[0].turning, 64);
  EXPECT_TRUE(facts->decoder.layers[0].ffn_end.factor);
  EXPECT_EQ(facts->proposals, 7);
  EXPECT_EQ(facts->selector.rank, 256);
  EXPECT_EQ(facts->decoder.logits_end.cap, 30);
}

}  // namespace
}  // namespace volley::decode::dflash

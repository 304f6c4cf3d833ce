// Protects: config.json of published drafters of every schema, with all the fields that their makers wrote, becomes
// what they were trained as; what is not built is refused by its name.
#include "families/config_for_test.h"
#include "spec/dflash/config.h"

namespace volley::spec::dflash {
namespace {

using families::ConfigFolder;
using testing::ElementsAre;

Result<ProposerFacts> read(const std::string& config) {
  if (config[0] != '{') return read_config("models/shapes/" + config);
  const ConfigFolder folder;
  folder.write("config.json", config);
  return read_config(folder.path());
}

// What all of them state, around their own fields.
std::string usual(const std::string& own) {
  return R"({"architectures":["DFlashDraftModel"],"attention_dropout":0.0,"auto_map":{"AutoModel":"dflash.DFlashDraftModel"},
    "bos_token_id":1,"eos_token_id":2,"pad_token_id":null,"dtype":"bfloat16","hidden_act":"silu",
    "initializer_range":0.02,"model_type":"qwen3","tie_word_embeddings":false,"transformers_version":"4.57.3",
    "use_cache":true,)" +
         own + "}";
}

const model::Attention& layer(const ProposerFacts& facts, size_t i) {
  return *facts.decoder.attention(i);
}

TEST(PublishedDrafter, FirstSchema) {
  for (const auto& [shape, block] : {std::pair{"qwen3-8b-dflash", 16}, std::pair{"llama-3.1-8b-dflash", 10}}) {
    const auto facts = read(shape);
    ASSERT_TRUE(facts.ok()) << facts.error().message;
    EXPECT_EQ(facts->block_size, block);
    EXPECT_EQ(facts->feature_layers.size(), 5u);
    EXPECT_FALSE(layer(*facts, 4).causal);
  }
  const auto facts = read("qwen3-30b-a3b-dflash");
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(model::count(facts->params), 473995264);
}

// Eight features for six layers; its own fields in dflash_config.
TEST(PublishedDrafter, SecondSchemaWithSlidingWindows) {
  const auto facts = read(usual(R"("attention_bias":false,"head_dim":128,"hidden_size":2048,"intermediate_size":6144,
    "max_position_embeddings":262144,"max_window_layers":6,"num_attention_heads":32,"num_hidden_layers":6,
    "num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_parameters":{"rope_theta":10000000,"rope_type":"default"},
    "sliding_window":4096,"use_sliding_window":true,"vocab_size":248320,"num_target_layers":40,"layer_types":
    ["sliding_attention","sliding_attention","sliding_attention","sliding_attention","sliding_attention",
    "full_attention"],"dflash_config":{"block_size":16,"mask_token_id":248077,
    "target_layer_ids":[1,6,11,16,22,27,32,37]})"));
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(facts->block_size, 16);
  EXPECT_EQ(facts->feature_layers.size(), 8u);
  EXPECT_EQ(layer(*facts, 4).window, 4096);
  EXPECT_TRUE(layer(*facts, 4).causal);
  EXPECT_EQ(layer(*facts, 5).window, 0);
  EXPECT_FALSE(layer(*facts, 5).causal);
}

TEST(PublishedDrafter, BiasesAndStretchedRotations) {
  const auto facts = read(usual(R"("attention_bias":true,"head_dim":64,"hidden_size":2880,"intermediate_size":7680,
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
  const auto facts = read(R"({"architectures":["DFlashDraftModel"],"auto_map":{"":"config.DFlashSpeculatorConfig"},
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

TEST(PublishedDrafter, SoftcappedLogits) {
  const auto facts = read(usual(R"("attention_bias":false,"head_dim":128,"hidden_size":5376,"intermediate_size":10752,
    "max_position_embeddings":262144,"num_attention_heads":64,"num_hidden_layers":5,"num_key_value_heads":8,
    "rms_norm_eps":1e-06,"rope_theta":1000000,"sliding_window":2048,"use_sliding_window":true,"vocab_size":262144,
    "num_target_layers":60,"final_logit_softcapping":30.0,"layer_types":["sliding_attention","sliding_attention",
    "sliding_attention","sliding_attention","full_attention"],"dflash_config":{"block_size":16,"mask_token_id":4,
    "target_layer_ids":[1,12,23,35,46,57]})"));
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  EXPECT_EQ(facts->logit_softcap, 30);
  EXPECT_EQ(layer(*facts, 0).window, 2048);
}

}  // namespace
}  // namespace volley::spec::dflash

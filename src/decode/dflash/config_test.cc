// Protects: a drafter runs as it was trained, or is refused by the name of the missing feature. Otherwise it would give
// the right text at no gain in speed.
#include "decode/dflash/config.h"

#include <algorithm>

#include "families/config_for_test.h"
#include "weights/fixtures_for_test.h"

namespace volley::decode::dflash {

using families::BadConfig;
using families::expect_refused;
using families::patched;
using families::windows;

namespace {

using nlohmann::json;
using testing::ElementsAre;

json good_config() {
  return json::parse(R"({
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": 96, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 200, "vocab_size": 151, "num_hidden_layers": 3,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 50000.0, "hidden_act": "silu",
    "attention_bias": false, "tie_word_embeddings": false, "block_size": 16, "num_target_layers": 36,
    "dflash_config": {"mask_token_id": 150, "target_layer_ids": [1, 17, 33]}})");
}

Result<Facts> read(const json& config) {
  const TempFolder folder;
  folder.write("config.json", config.dump());
  return read_config(folder.path());
}

Facts accepted(const char* patch) {
  const auto spec = read(patched(good_config(), patch));
  EXPECT_TRUE(spec.ok()) << spec.error().message;
  return spec.ok() ? *spec : Facts();
}

std::vector<bool> causal(const Facts& spec) {
  std::vector<bool> list;
  for (size_t i = 0; i < spec.decoder.layers.size(); ++i) list.push_back(spec.decoder.attention(i)->causal);
  return list;
}

TEST(DraftConfig, ReadsEveryField) {
  const Facts spec = accepted("{}");
  EXPECT_EQ(spec.architecture, "DFlashDraftModel");
  EXPECT_EQ(spec.decoder.hidden, 96);
  EXPECT_EQ(spec.decoder.layers.size(), 3u);
  EXPECT_EQ(spec.proposals, 15);
  EXPECT_EQ(spec.target_layers, 36);
  EXPECT_EQ(spec.mask_token, 150);
  EXPECT_THAT(spec.feature_layers, ElementsAre(1, 17, 33));
  EXPECT_THAT(causal(spec), ElementsAre(false, false, false));
  EXPECT_THAT(windows(spec), ElementsAre(0, 0, 0));
  EXPECT_THAT(spec.likely_mistake, testing::HasSubstr("target_layer_ids"));
}

TEST(DraftConfig, OwnFieldsMayStandInEitherPlaceAndDflashConfigCountsFirst) {
  const Facts top = accepted(R"({"dflash_config":null,"mask_token_id":9,"target_layer_ids":[4,5]})");
  EXPECT_EQ(top.mask_token, 9);
  EXPECT_THAT(top.feature_layers, ElementsAre(4, 5));
  const Facts inside = accepted(R"({"dflash_config":{"block_size":8,"num_target_layers":40},"mask_token_id":9})");
  EXPECT_EQ(inside.proposals, 7);
  EXPECT_EQ(inside.target_layers, 40);
  EXPECT_EQ(inside.mask_token, 150);
}

// The expected values come from the reference implementation's formula, with Python's round().
TEST(DraftConfig, DefaultLayersAreSpreadEvenlyWithHalvesToEven) {
  const auto layers = [](int draft_layers, int target_layers) {
    json config = patched(good_config(), R"({"dflash_config":{"target_layer_ids":null}})");
    config["num_hidden_layers"] = draft_layers;
    config["num_target_layers"] = target_layers;
    const auto spec = read(config);
    EXPECT_TRUE(spec.ok()) << spec.error().message;
    return spec.ok() ? spec->feature_layers : std::vector<int32_t>();
  };
  EXPECT_THAT(layers(1, 36), ElementsAre(18));
  EXPECT_THAT(layers(1, 1), ElementsAre(0));
  EXPECT_THAT(layers(2, 8), ElementsAre(1, 5));
  EXPECT_THAT(layers(5, 36), ElementsAre(1, 9, 17, 25, 33));
  EXPECT_THAT(layers(3, 37), ElementsAre(1, 18, 34)) << "17.5 rounds up to 18";
  EXPECT_THAT(layers(3, 35), ElementsAre(1, 16, 32)) << "16.5 rounds down to 16";
  EXPECT_THAT(layers(4, 28), ElementsAre(1, 9, 17, 25));
  EXPECT_THAT(layers(8, 48), ElementsAre(1, 7, 14, 20, 26, 32, 39, 45));
}

// dflash_config and is_causal may decide for all layers. Without them sliding layers are causal and full ones are not.
TEST(DraftConfig, CausalityComesFromTheCheckpoint) {
  const char* sliding = R"("layer_types":["sliding_attention","full_attention","sliding_attention"],
                           "sliding_window":512,"use_sliding_window":true)";
  const auto with = [&](const std::string& more) { return accepted(("{" + more + sliding + "}").c_str()); };
  EXPECT_THAT(windows(with("")), ElementsAre(512, 0, 512));
  EXPECT_THAT(causal(with("")), ElementsAre(true, false, true));
  EXPECT_THAT(causal(with(R"("is_causal":false,)")), ElementsAre(false, false, false));
  EXPECT_THAT(causal(with(R"("is_causal":true,)")), ElementsAre(true, true, true));
  EXPECT_THAT(causal(with(R"("dflash_config":{"causal":false},)")), ElementsAre(false, false, false));
  EXPECT_THAT(causal(with(R"("dflash_config":{"causal":true},)")), ElementsAre(true, true, true));
  EXPECT_THAT(causal(with(R"("is_causal":false,"dflash_config":{"causal":true},)")), ElementsAre(false, false, false));
}

TEST(DraftConfig, WindowsMayComeFromTheDrafterItself) {
  const char* three = R"("layer_types":["sliding_attention","full_attention","sliding_attention"],)";
  const auto with = [](const std::string& fields) { return accepted(("{" + fields + "}").c_str()); };
  const auto all = with(R"("dflash_config":{"use_swa":true,"swa_window_size":64})");
  EXPECT_THAT(windows(all), ElementsAre(64, 64, 64));
  EXPECT_THAT(causal(all), ElementsAre(false, false, false));
  const auto top = with(R"("sliding_window":32,"dflash_config":{"use_swa":true})");
  EXPECT_THAT(windows(top), ElementsAre(32, 32, 32));
  const auto some = with(three + std::string(R"("sliding_window":32,
    "dflash_config":{"use_swa":true,"swa_window_size":64})"));
  EXPECT_THAT(windows(some), ElementsAre(64, 0, 64)) << "use_swa leaves layers alone that layer_types names";
  EXPECT_THAT(causal(some), ElementsAre(true, false, true));
  EXPECT_THAT(windows(with(three + std::string(R"("dflash_config":{"swa_window_size":64})"))), ElementsAre(64, 0, 64));
  // transformers derives the kinds of layers the same way.
  const auto derived = with(R"("use_sliding_window":true,"sliding_window":16,"max_window_layers":2)");
  EXPECT_THAT(windows(derived), ElementsAre(0, 0, 16));
  EXPECT_THAT(causal(derived), ElementsAre(false, false, true));
  EXPECT_THAT(windows(with(R"("use_sliding_window":true,"sliding_window":16)")), ElementsAre(0, 0, 0));
}

// These are DFlash 2's fields, added to those of good_config().
constexpr const char* kDFlash2 = R"({"architectures":["DFlash2DraftModel"],"dflash_config":{"conv_kernel_size":2,
    "conv_group_size":16,"selector_rank":12,"selector_top_k":8}})";

TEST(DraftConfig, DFlash2IsRead) {
  const Facts plain = accepted(kDFlash2);
  EXPECT_EQ(plain.architecture, "DFlash2DraftModel");
  EXPECT_EQ(plain.decoder.block_conv.taps, 2);
  EXPECT_EQ(plain.decoder.block_conv.group, 16);
  EXPECT_EQ(plain.selector.rank, 12);
  EXPECT_EQ(plain.selector.top_k, 8);
  EXPECT_EQ(plain.embedding_scale, 1.0f) << "raw rows, whatever the target does";
  EXPECT_TRUE(plain.decoder.logits_end.is_plain());
  const auto& list = plain.params;
  const auto shape_of = [&](const std::string& name) {
    for (const model::Param& param : list) {
      if (param.parts[0].name == name) return param.stored_shape(param.parts[0]);
    }
    return std::vector<int64_t>();
  };
  EXPECT_THAT(shape_of("layers.2.mlp_conv.base_kernel"), ElementsAre(2, 2, 96));
  EXPECT_THAT(shape_of("layers.0.attention_conv.kernel_projection.weight"), ElementsAre(2 * 2 * 6, 96));
  EXPECT_THAT(shape_of("candidate_selector.hidden_projection.weight"), ElementsAre(12, 96));
  EXPECT_THAT(shape_of("candidate_selector.successor_codebook"), ElementsAre(151, 12));
  const auto factors = read(patched(patched(good_config(), kDFlash2), R"({"dflash_config":{"output_multiplier":0.5,
      "final_logit_softcapping":20.0,"input_embedding_scale":3.0}})"));
  ASSERT_TRUE(factors.ok()) << factors.error().message;
  EXPECT_EQ(factors->decoder.logits_end.scale, 0.5f);
  EXPECT_EQ(factors->decoder.logits_end.cap, 20.0f);
  EXPECT_EQ(factors->embedding_scale, 3.0f);
  EXPECT_FALSE(accepted("{}").embedding_scale);
  EXPECT_EQ(accepted("{}").selector.rank, 0);
}

TEST(DraftConfig, DFlash2IsRefusedByWhatIsWrong) {
  for (const auto& [patch, code, word] :
       {std::tuple{R"({"dflash_config":{"conv_group_size":36}})", ErrorCode::kInvalidArgument, "conv_group_size"},
        {R"({"dflash_config":{"conv_kernel_size":null}})", ErrorCode::kInvalidArgument, "conv_kernel_size"},
        {R"({"dflash_config":{"selector_rank":0}})", ErrorCode::kInvalidArgument, "selector_rank"},
        {R"({"dflash_config":{"selector_top_k":33}})", ErrorCode::kInvalidArgument, "selector_top_k"},
        {R"({"dflash_config":{"output_multiplier":0.0}})", ErrorCode::kInvalidArgument, "output_multiplier"},
        {R"({"draft_vocab_size":100})", ErrorCode::kUnimplemented, "draft_vocab_size"},
        {R"({"dflash_config":{"selector_shape":1}})", ErrorCode::kUnimplemented, "selector_shape"}}) {
    const auto refused = read(patched(patched(good_config(), kDFlash2), patch));
    ASSERT_FALSE(refused.ok()) << word;
    EXPECT_EQ(refused.error().code, code) << refused.error().message;
    EXPECT_THAT(refused.error().message, testing::HasSubstr(word));
  }
}

// DSpark's fields as SpecForge has them, beside those of good_config().
constexpr const char* kDSpark = R"({"architectures":["DSparkDraftModel"],"dflash_config":{"projector_type":"dspark",
    "markov_rank":12,"markov_head_type":"rnn","enable_confidence_head":true,"confidence_head_with_markov":true}})";

TEST(DraftConfig, DSparkIsRead) {
  const auto with = [](const char* patch) {
    const auto facts = read(patched(patched(good_config(), kDSpark), patch));
    EXPECT_TRUE(facts.ok()) << facts.error().message;
    return facts.ok() ? *facts : Facts();
  };
  const Facts facts = with("{}");
  EXPECT_EQ(facts.proposals, 16) << "each row proposes";
  EXPECT_EQ(facts.selector.scoring, ops::Scoring::kRecurrent);
  EXPECT_EQ(facts.selector.confidence, true);
  const auto shape_of = [](const Facts& of, const std::string& role) {
    for (const model::Param& param : of.params) {
      if (param.role == role) return param.stored_shape(param.parts[0]);
    }
    return std::vector<int64_t>();
  };
  EXPECT_THAT(shape_of(facts, "selector.hidden"), ElementsAre(36, 24 + 96));
  EXPECT_THAT(shape_of(facts, "selector.bias"), ElementsAre(36));
  EXPECT_THAT(shape_of(facts, "confidence.others"), ElementsAre(1, 96 + 12));
  const Facts gated = with(R"({"draft_vocab_size":100,"dflash_config":{"markov_head_type":"gated",
      "confidence_head_with_markov":null}})");
  EXPECT_EQ(gated.selector.scoring, ops::Scoring::kGated);
  EXPECT_THAT(shape_of(gated, "selector.others"), ElementsAre(12, 96 + 12));
  EXPECT_THAT(shape_of(gated, "confidence.hidden"), ElementsAre(1, 96));
  EXPECT_THAT(shape_of(gated, "selector.predecessor"), ElementsAre(151, 12));
  EXPECT_THAT(shape_of(gated, "selector.successor"), ElementsAre(100, 12)) << "its own vocabulary's";
  // A head whose loss had a weight is there.
  const char* unsaid = R"({"model_type":"dspark","dflash_config":{"projector_type":null,"enable_confidence_head":null,
      "confidence_head_alpha":0.5}})";
  EXPECT_TRUE(with(unsaid).selector.confidence);
  EXPECT_FALSE(with(R"({"dflash_config":{"enable_confidence_head":null}})").selector.confidence);
  EXPECT_EQ(with(R"({"dflash_config":{"shift_label":false}})").first_proposal, 1);
  // NVIDIA's schema.
  const char* nvidias = R"({"architectures":["DFlashDraftModel"],"dflash_config":{"shift_label":true,
      "enable_confidence_head":null,"confidence_head_with_markov":null,"use_confidence_head":true}})";
  EXPECT_EQ(with(nvidias).proposals, 16);
  EXPECT_EQ(with(nvidias).selector.confidence, true);
  EXPECT_EQ(with(nvidias).selector.scoring, ops::Scoring::kRecurrent);
}

TEST(DraftConfig, DSparkIsRefusedByWhatIsWrong) {
  for (const auto& [patch, code, word] :
       {std::tuple{R"({"dflash_config":{"markov_head_type":"ngram"}})", ErrorCode::kUnimplemented, "ngram"},
        {R"({"dflash_config":{"markov_rank":0}})", ErrorCode::kUnimplemented, "enable_confidence_head"},
        {R"({"dflash_config":{"markov_rank":1025}})", ErrorCode::kInvalidArgument, "markov_rank"},
        {R"({"dflash_config":{"attention_mode":"mla"}})", ErrorCode::kUnimplemented, "attention_mode"},
        {R"({"dflash_config":{"projector_type":"domino"}})", ErrorCode::kUnimplemented, "domino"},
        {R"({"dflash_config":{"dspark_backbone_conv_enabled":true}})", ErrorCode::kUnimplemented, "backbone_conv"},
        {R"({"architectures":["DFlashDraftModel"],"dflash_config":{"projector_type":null}})", ErrorCode::kUnimplemented,
         "with_markov"}}) {
    const auto refused = read(patched(patched(good_config(), kDSpark), patch));
    ASSERT_FALSE(refused.ok()) << word;
    EXPECT_EQ(refused.error().code, code) << refused.error().message;
    EXPECT_THAT(refused.error().message, testing::HasSubstr(word));
  }
}

TEST(DraftConfig, BiasesAreRead) {
  const Facts facts = accepted(R"({"attention_bias":true})");
  EXPECT_TRUE(facts.decoder.attention(2)->bias);
  const auto bias = std::find_if(facts.params.begin(), facts.params.end(),
                                 [](const model::Param& param) { return param.role == "injection.kv_bias"; });
  ASSERT_NE(bias, facts.params.end());
  EXPECT_EQ(bias->parts.size(), 6u) << "k and v of three layers";
}

const model::Param* find_param(const Facts& facts, const char* role) {
  const auto found = std::find_if(facts.params.begin(), facts.params.end(),
                                  [role](const model::Param& param) { return param.role == role; });
  return found == facts.params.end() ? nullptr : &*found;
}

// The vocabulary is a part of the target's, with an output head of the drafter's own and a map between the two.
TEST(DraftConfig, AVocabularyOfItsOwnBringsAHeadAndAMap) {
  EXPECT_EQ(find_param(accepted("{}"), "head"), nullptr);
  EXPECT_EQ(accepted(R"({"draft_vocab_size":151})").draft_vocab, 0) << "the target's";
  EXPECT_TRUE(accepted("{}").borrows_head);
  EXPECT_EQ(accepted("{}").proposed_vocab, 0);
  EXPECT_EQ(accepted(R"({"dflash_config":{"proposed_vocab_size":100}})").proposed_vocab, 100);
  for (const char* patch : {R"({"draft_vocab_size":100})", R"({"dflash_config":{"draft_vocab_size":100}})"}) {
    const Facts facts = accepted(patch);
    EXPECT_EQ(facts.draft_vocab, 100);
    EXPECT_FALSE(facts.borrows_head);
    EXPECT_EQ(facts.decoder.vocab, 151);
    ASSERT_NE(find_param(facts, "head"), nullptr);
    EXPECT_EQ(find_param(facts, "head")->parts[0].name, "lm_head.weight");
    EXPECT_EQ(find_param(facts, "head")->elements(), 100 * 96);
    ASSERT_NE(find_param(facts, "target_offsets"), nullptr);
    EXPECT_EQ(model::count(facts.params), model::count(accepted("{}").params) + 100 * 96) << "a map is no parameter";
    EXPECT_THAT(facts.names.copies, ElementsAre("t2d"));
  }
}

TEST(DraftConfig, LogitsMayBeSoftcapped) {
  EXPECT_EQ(accepted("{}").decoder.logits_end.cap, 0);
  EXPECT_EQ(accepted(R"({"final_logit_softcapping":30.0})").decoder.logits_end.cap, 30);
  EXPECT_EQ(accepted(R"({"dflash_config":{"final_logit_softcapping":2.5}})").decoder.logits_end.cap, 2.5f);
}

json speculators_config() {
  return json::parse(R"({
    "architectures": ["DFlashSpeculator"], "auto_map": {"": "config.DFlashSpeculatorConfig"},
    "aux_hidden_state_layer_ids": [2, 18, 34], "block_size": 8, "draft_vocab_size": 151, "dtype": "bfloat16",
    "mask_token_id": 150, "max_anchors": 1024, "sliding_window_non_causal": false, "projector_type": "dflash",
    "emb_dim": 256, "gru_hidden_dim": 1024, "pure_draft_prefix_len": 1, "lambda_base_start": 1.0, "auf": false,
    "shift_label": false, "speculators_model_type": "dflash", "speculators_version": "0.7.0",
    "speculators_config": {"algorithm": "dflash", "default_proposal_method": "greedy", "proposal_methods":
      [{"proposal_type": "greedy", "speculative_tokens": 7}], "verifier": {"architectures": [], "name_or_path": "x"}},
    "target_hidden_size": null, "tie_word_embeddings": false, "transformers_version": "5.10.2",
    "transformer_layer_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1, "head_dim": 32,
      "hidden_act": "silu", "hidden_size": 96, "initializer_range": 0.02, "intermediate_size": 200, "layer_types":
      ["full_attention", "sliding_attention", "full_attention"], "max_position_embeddings": 4096, "max_window_layers": 3,
      "model_type": "qwen3", "num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads": 2,
      "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"}, "sliding_window": 64,
      "tie_word_embeddings": false, "use_cache": true, "use_sliding_window": true, "vocab_size": 151}})");
}

Facts speculators(const char* patch) {
  const auto facts = read(patched(speculators_config(), patch));
  EXPECT_TRUE(facts.ok()) << facts.error().message;
  return facts.ok() ? *facts : Facts();
}

// The speculators library counts feature layers from the embedding, so its number is one more than the DFlash format's.
TEST(SpeculatorsFormat, SaysTheSameInOtherWords) {
  const Facts facts = speculators("{}");
  EXPECT_THAT(facts.feature_layers, ElementsAre(1, 17, 33));
  EXPECT_EQ(facts.proposals, 7);
  EXPECT_EQ(facts.mask_token, 150);
  EXPECT_EQ(facts.target_layers, 0);
  EXPECT_EQ(facts.decoder.hidden, 96);
  EXPECT_EQ(facts.decoder.ropes[0].theta, 50000.0);
  EXPECT_THAT(windows(facts), ElementsAre(0, 64, 0));
  EXPECT_THAT(causal(facts), ElementsAre(false, true, false));
  EXPECT_THAT(causal(speculators(R"({"sliding_window_non_causal":true})")), ElementsAre(false, false, false));
  EXPECT_THAT(windows(speculators(R"({"layer_types":["full_attention","full_attention","sliding_attention"],
    "sliding_window":32})")),
              ElementsAre(0, 0, 32));
  EXPECT_THAT(facts.names.copies, testing::Contains("embed_tokens.weight"));
  EXPECT_THAT(facts.names.copies, testing::Contains("lm_head.weight")) << "of a whole vocabulary it is the target's";
  const Facts part = speculators(R"({"draft_vocab_size":100})");
  EXPECT_EQ(part.draft_vocab, 100);
  EXPECT_THAT(part.names.copies, testing::Not(testing::Contains("lm_head.weight")));
  EXPECT_EQ(speculators(R"({"transformer_layer_config":{"model_type":"llama","mlp_bias":false}})").proposals, 7);
}

// The library's defaults where its files do not say: a vanilla head of rank 256, and one for the confidence.
TEST(SpeculatorsFormat, DSparkProposesFromTheAnchorUnlessItSaysNo) {
  constexpr const char* kBare = R"({"speculators_config":null,"speculators_model_type":"dspark"})";
  const Facts bare = speculators(kBare);
  EXPECT_EQ(bare.architecture, "DSparkDraftModel");
  EXPECT_EQ(bare.proposals, 8);
  EXPECT_EQ(bare.selector.rank, 256);
  EXPECT_EQ(bare.selector.scoring, ops::Scoring::kVanilla);
  EXPECT_EQ(bare.selector.confidence, true);
  const Facts other = speculators(R"({"speculators_config":{"algorithm":"dspark"},"sample_from_anchor":false,
    "markov_rank":0,"enable_confidence_head":false})");
  EXPECT_EQ(other.proposals, 7);
  EXPECT_EQ(other.selector.rank, 0);
}

REFUSES_CONFIGS(BadSpeculators, speculators_config())

INSTANTIATE_TEST_SUITE_P(
    All, BadSpeculators,
    testing::Values(
        BadConfig{"anchor", R"({"sample_from_anchor":true})", ErrorCode::kUnimplemented, {"sample_from_anchor"}},
        BadConfig{"domino", R"({"projector_type":"domino"})", ErrorCode::kUnimplemented, {"projector_type", "domino"}},
        BadConfig{"unknown_inside",
                  R"({"transformer_layer_config":{"logit_scale":0.5}})",
                  ErrorCode::kUnimplemented,
                  {"logit_scale"}},
        BadConfig{"other_body",
                  R"({"transformer_layer_config":{"model_type":"gpt_oss"}})",
                  ErrorCode::kUnimplemented,
                  {"model_type", "gpt_oss"}},
        BadConfig{"no_layers",
                  R"({"aux_hidden_state_layer_ids":null})",
                  ErrorCode::kInvalidArgument,
                  {"aux_hidden_state_layer_ids"}},
        BadConfig{"the_embedding",
                  R"({"aux_hidden_state_layer_ids":[0,3]})",
                  ErrorCode::kInvalidArgument,
                  {"aux_hidden_state_layer_ids", "0"}},
        BadConfig{"no_block", R"({"block_size":null})", ErrorCode::kInvalidArgument, {"block_size"}},
        BadConfig{"no_mask", R"({"mask_token_id":null})", ErrorCode::kInvalidArgument, {"mask_token_id"}}),
    families::name_of_bad);

TEST(DraftConfig, ExtensionsThatAreSwitchedOffDoNoHarm) {
  accepted(
      R"({"mask_token":"<|MASK|>","use_aux_hidden_state":true,"norm_before_fc":false,"attention_sink_bias":false,"markov_rank":0,"output_multiplier":1.0,"draft_vocab_size":151,
               "target_hidden_size":96,"dflash_config":{"fc_layernorm":false,"use_swa":false,
               "final_logit_softcapping":0,"input_embedding_scale":1.0}})");
}

REFUSES_CONFIGS(BadDraftConfig, good_config())

constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
constexpr ErrorCode kUnbuilt = ErrorCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    All, BadDraftConfig,
    testing::Values(
        BadConfig{"other_type", R"({"model_type":"llama"})", kUnbuilt, {"model_type", "llama"}},
        BadConfig{"speculators_without_sizes",
                  R"({"speculators_config":{"algorithm":"dflash"}})",
                  kInvalid,
                  {"transformer_layer_config"}},
        BadConfig{"domino", R"({"projector_type":"domino"})", kUnbuilt, {"projector_type", "domino"}},
        BadConfig{"no_head_norms", R"({"use_qk_norm":false})", kUnbuilt, {"use_qk_norm"}},
        BadConfig{"no_features", R"({"use_aux_hidden_state":false})", kUnbuilt, {"use_aux_hidden_state"}},
        BadConfig{"features_normed", R"({"norm_before_fc":true})", kUnbuilt, {"norm_before_fc"}},
        BadConfig{"target_norm", R"({"dflash_config":{"use_target_norm":true}})", kUnbuilt, {"use_target_norm"}},
        BadConfig{"no_block_size", R"({"block_size":null})", kInvalid, {"block_size", "missing"}},
        BadConfig{"block_of_one", R"({"block_size":1})", kInvalid, {"block_size", "2"}},
        BadConfig{"block_size_text", R"({"block_size":"16"})", kInvalid, {"block_size"}},
        BadConfig{"no_target_layers", R"({"num_target_layers":null})", kInvalid, {"num_target_layers"}},
        BadConfig{"target_layers_zero", R"({"num_target_layers":0})", kInvalid, {"num_target_layers"}},
        BadConfig{"no_mask", R"({"dflash_config":{"mask_token_id":null}})", kInvalid, {"mask_token_id", "missing"}},
        BadConfig{"no_dflash_config", R"({"dflash_config":null})", kInvalid, {"mask_token_id", "missing"}},
        BadConfig{"dflash_config_list", R"({"dflash_config":[1]})", kInvalid, {"dflash_config"}},
        BadConfig{"mask_negative", R"({"dflash_config":{"mask_token_id":-1}})", kInvalid, {"mask_token_id", "-1"}},
        BadConfig{"ids_empty", R"({"dflash_config":{"target_layer_ids":[]}})", kInvalid, {"target_layer_ids", "empty"}},
        BadConfig{"ids_number", R"({"dflash_config":{"target_layer_ids":3}})", kInvalid, {"target_layer_ids"}},
        BadConfig{
            "id_negative", R"({"dflash_config":{"target_layer_ids":[1,-2]}})", kInvalid, {"target_layer_ids", "-2"}},
        BadConfig{"no_default_ids",
                  R"({"num_target_layers":3,"dflash_config":{"target_layer_ids":null}})",
                  kInvalid,
                  {"target_layer_ids", "3"}},
        BadConfig{"causal_text", R"({"dflash_config":{"causal":"yes"}})", kInvalid, {"causal"}},
        BadConfig{"is_causal_number", R"({"is_causal":0})", kInvalid, {"is_causal"}},
        BadConfig{"unknown_key", R"({"dflash_config":{"use_tree":true}})", kUnbuilt, {"dflash_config", "use_tree"}},
        BadConfig{"swa_without_size", R"({"dflash_config":{"use_swa":true}})", kInvalid, {"sliding_window", "missing"}},
        BadConfig{"swa_size_zero",
                  R"({"dflash_config":{"use_swa":true,"swa_window_size":0}})",
                  kInvalid,
                  {"swa_window_size"}},
        BadConfig{"swa_size_past_all_positions",
                  R"({"dflash_config":{"use_swa":true,"swa_window_size":2147483647}})",
                  kInvalid,
                  {"swa_window_size", "16777216"}},
        BadConfig{"unknown_object", R"({"dflash_config":{"selector":{"a":1}}})", kUnbuilt, {"selector"}},
        BadConfig{"sinks", R"({"dflash_config":{"attention_sink_bias":true}})", kUnbuilt, {"attention_sink_bias"}},
        BadConfig{"sinks_at_the_top", R"({"attention_sink_bias":true})", kUnbuilt, {"attention_sink_bias"}},
        BadConfig{"markov", R"({"markov_rank":256})", kUnbuilt, {"markov_rank"}},
        BadConfig{"softcap_negative",
                  R"({"dflash_config":{"final_logit_softcapping":-30.0}})",
                  kInvalid,
                  {"final_logit_softcapping"}},
        BadConfig{"scale", R"({"dflash_config":{"input_embedding_scale":2.0}})", kUnbuilt, {"input_embedding_scale"}},
        BadConfig{"own_vocab_larger", R"({"draft_vocab_size":152})", kInvalid, {"draft_vocab_size", "152"}},
        BadConfig{"proposed_vocab_larger",
                  R"({"dflash_config":{"proposed_vocab_size":152}})",
                  kInvalid,
                  {"proposed_vocab_size", "152"}},
        BadConfig{"proposed_of_its_own",
                  R"({"draft_vocab_size":100,"proposed_vocab_size":50})",
                  kUnbuilt,
                  {"proposed_vocab_size"}},
        BadConfig{"own_width", R"({"target_hidden_size":64})", kUnbuilt, {"target_hidden_size"}},
        BadConfig{"sliding_without_window",
                  R"({"layer_types":["sliding_attention","full_attention","full_attention"]})",
                  kInvalid,
                  {"sliding_window", "missing"}},
        BadConfig{"window_zero",
                  R"({"layer_types":["sliding_attention","full_attention","full_attention"],"sliding_window":0})",
                  kInvalid,
                  {"sliding_window"}},
        BadConfig{"window_contradiction",
                  R"({"layer_types":["sliding_attention","full_attention","full_attention"],"sliding_window":8,
                      "use_sliding_window":false})",
                  kInvalid,
                  {"use_sliding_window"}},
        BadConfig{"other_layer",
                  R"({"layer_types":["full_attention","chunked_attention","full_attention"]})",
                  kUnbuilt,
                  {"layer_types", "chunked_attention"}},
        BadConfig{"layer_types_long",
                  R"({"layer_types":["full_attention","full_attention","full_attention","full_attention"]})",
                  kInvalid,
                  {"layer_types", "4", "3"}}),
    families::name_of_bad);

TEST(DraftConfig, OddValuesAnywhereNeverBreakIt) {
  const json values[] = {nullptr,  true,          0, -1, 1e300, 18446744073709551615ull, "", "x", json::array(),
                         {1, "a"}, json::object()};
  const json config = good_config();
  const auto try_one = [](const json& changed) {
    const auto spec = read(changed);
    if (!spec.ok()) {
      EXPECT_THAT(spec.error().message, testing::HasSubstr("config.json"));
    }
  };
  for (const json& value : values) {
    for (const auto& [key, original] : config.items()) {
      json changed = config;
      changed[key] = value;
      try_one(changed);
    }
    for (const auto& [key, original] : config["dflash_config"].items()) {
      json changed = config;
      changed["dflash_config"][key] = value;
      try_one(changed);
    }
  }
}

class FixtureDrafter : public testing::TestWithParam<std::string> {};

TEST_P(FixtureDrafter, FitsItsTargetAndNoOther) {
  const auto draft = read_config("tests/data/drafters/" + GetParam());
  ASSERT_TRUE(draft.ok()) << draft.error().message;
  for (const std::string& name : weights::folders("targets")) {
    const auto target = families::read_target("tests/data/targets/" + name);
    ASSERT_TRUE(target.ok()) << target.error().message;
    EXPECT_EQ(make_spec(*draft)->check_target(target->decoder).ok(), name == weights::target_of_drafter(GetParam()))
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FixtureDrafter, testing::ValuesIn(weights::folders("drafters")),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace volley::decode::dflash

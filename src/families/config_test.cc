// Protects: the engine runs what a target's config.json and generation_config.json say; a value that is not built or
// makes no sense is refused with the name of its field, never guessed.
#include "families/generation.h"
#include "families/target_config_for_test.h"
#include "weights/fixtures_for_test.h"

namespace volley::families {
namespace {

using nlohmann::json;

TEST(TargetConfig, ReadsEveryField) {
  const TargetConfig spec = accepted("{}");
  EXPECT_EQ(spec.decoder.family, "qwen3");
  EXPECT_EQ(spec.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(spec.decoder.hidden, 96);
  EXPECT_EQ(spec.decoder.attention(0)->heads, 6);
  EXPECT_EQ(spec.decoder.attention(0)->kv_heads, 2);
  EXPECT_EQ(spec.decoder.attention(0)->head_dim, 32);
  EXPECT_EQ(std::get<model::Dense>(spec.decoder.layers[0].ffn).inner, 200);
  EXPECT_EQ(spec.decoder.vocab, 151);
  EXPECT_FLOAT_EQ(spec.decoder.norm_eps, 1e-5f);
  EXPECT_TRUE(spec.decoder.attention(0)->qk_norm);
  EXPECT_TRUE(spec.decoder.tied_embeddings);
  EXPECT_EQ(spec.max_positions, 4096);
  EXPECT_EQ(spec.decoder.ropes[0].theta, 50000.0);
  EXPECT_EQ(spec.decoder.ropes[0].scaling, model::RopeSpec::Scaling::kNone);
  EXPECT_EQ(spec.eos_ids, std::vector<TokenId>{7});
  ASSERT_EQ(spec.decoder.layers.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(spec.decoder.attention(i)->window, 0);
    EXPECT_TRUE(spec.decoder.attention(i)->causal);
    EXPECT_FLOAT_EQ(spec.decoder.attention(i)->scale, 1 / std::sqrt(32.0f));
  }
}

TEST(TargetConfig, DefaultsAreThoseOfTheFormat) {
  const TargetConfig spec = accepted(R"({"num_key_value_heads":null, "head_dim":null, "rms_norm_eps":null,
    "rope_theta":null, "rope_scaling":null, "hidden_act":null, "attention_bias":null, "tie_word_embeddings":null,
    "use_sliding_window":null, "eos_token_id":null, "layer_types":null})");
  EXPECT_EQ(spec.decoder.attention(0)->kv_heads, 6);
  EXPECT_EQ(spec.decoder.attention(0)->head_dim, 16);
  EXPECT_FLOAT_EQ(spec.decoder.norm_eps, 1e-6f);
  EXPECT_EQ(spec.decoder.ropes[0].theta, 10000.0);
  EXPECT_FALSE(spec.decoder.tied_embeddings);
  EXPECT_TRUE(spec.eos_ids.empty());
}

TEST(TargetConfig, NullIsAbsent) {
  EXPECT_EQ(accepted(R"({"head_dim":"@null"})").decoder.attention(0)->head_dim, 16);
}

TEST(TargetConfig, ReadsBothSpellingsOfRopeScaling) {
  for (const char* patch :
       {R"({"rope_scaling":{"type":"linear","factor":4}})", R"({"rope_scaling":{"rope_type":"linear","factor":4.0}})",
        R"({"rope_theta":null,"rope_parameters":{"rope_type":"linear","factor":4,"rope_theta":50000}})",
        R"({"rope_parameters":{"rope_type":"linear","factor":4}})"}) {
    const model::RopeSpec rope = accepted(patch).decoder.ropes[0];
    EXPECT_EQ(rope.scaling, model::RopeSpec::Scaling::kLinear) << patch;
    EXPECT_EQ(rope.factor, 4.0) << patch;
    EXPECT_EQ(rope.theta, 50000.0) << patch;
  }
}

TEST(TargetConfig, ReadsLlama3Scaling) {
  const model::RopeSpec rope = accepted(R"({"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.5,
    "high_freq_factor":4.5,"original_max_position_embeddings":512}})")
                                   .decoder.ropes[0];
  EXPECT_EQ(rope.scaling, model::RopeSpec::Scaling::kLlama3);
  EXPECT_EQ(rope.factor, 8.0);
  EXPECT_EQ(std::pair(rope.low_freq_factor, rope.high_freq_factor), std::pair(1.5, 4.5));
  EXPECT_EQ(rope.original_max_position, 512);
}

TEST(TargetConfig, ReadsYarnScaling) {
  const model::RopeSpec rope =
      accepted(R"({"rope_scaling":{"type":"yarn","factor":4.0,"attention_factor":1.25,"mscale":0.7,
    "mscale_all_dim":0.9,"beta_fast":20,"beta_slow":2,"truncate":false,"original_max_position_embeddings":1024}})")
          .decoder.ropes[0];
  EXPECT_EQ(rope.scaling, model::RopeSpec::Scaling::kYarn);
  EXPECT_EQ(rope.attention_factor, 1.25);
  EXPECT_EQ(std::pair(rope.mscale.value_or(0), rope.mscale_all_dim.value_or(0)), std::pair(0.7, 0.9));
  EXPECT_EQ(std::pair(rope.beta_fast, rope.beta_slow), std::pair(20.0, 2.0));
  EXPECT_FALSE(rope.truncate);
  EXPECT_EQ(rope.original_max_position, 1024);
}

TEST(TargetConfig, YarnFillsInWhatIsMissing) {
  const model::RopeSpec rope =
      accepted(R"({"rope_scaling":{"type":"yarn","original_max_position_embeddings":1024}})").decoder.ropes[0];
  EXPECT_EQ(rope.factor, 4.0) << "max_position_embeddings over the original length";
  EXPECT_FALSE(rope.attention_factor.has_value());
  EXPECT_EQ(std::pair(rope.beta_fast, rope.beta_slow), std::pair(32.0, 1.0));
  EXPECT_TRUE(rope.truncate);
  const model::RopeSpec beside = accepted(R"({"original_max_position_embeddings":2048,
    "rope_scaling":{"type":"yarn","factor":2,"original_max_position_embeddings":1024}})")
                                     .decoder.ropes[0];
  EXPECT_EQ(beside.original_max_position, 2048) << "the field beside the dictionary counts";
  EXPECT_EQ(accepted(R"({"rope_scaling":{"type":"yarn","factor":2}})").decoder.ropes[0].original_max_position, 4096);
}

// transformers ignores the field; the models that state it were made with the product.
TEST(TargetConfig, AttnFactorMultipliesWhatYarnComputes) {
  const model::RopeSpec rope =
      accepted(R"({"rope_scaling":{"type":"yarn","factor":4.0,"attn_factor":0.8782488562869419}})").decoder.ropes[0];
  ASSERT_TRUE(rope.attention_factor.has_value());
  EXPECT_DOUBLE_EQ(*rope.attention_factor, 1.0);
  EXPECT_EQ(
      accepted(R"({"rope_scaling":{"type":"yarn","factor":1.0,"attn_factor":0.5}})").decoder.ropes[0].attention_factor,
      0.5);
}

// The usual recipe for longer contexts: rope_scaling alone, beside an unchanged max_position_embeddings.
TEST(TargetConfig, YarnStretchesTheContextToFactorTimesTheLengthBefore) {
  const auto positions = [](const char* scaling) {
    return accepted((std::string(R"({"rope_scaling":)") + scaling + "}").c_str()).max_positions;
  };
  EXPECT_EQ(positions(R"({"type":"yarn","factor":4.0,"original_max_position_embeddings":4096})"), 16384);
  EXPECT_EQ(positions(R"({"type":"yarn","factor":2.0,"original_max_position_embeddings":1024})"), 4096)
      << "config.json states the stretched length";
  EXPECT_EQ(positions(R"({"type":"yarn","factor":4.0})"), 4096) << "nothing says what was stretched";
  EXPECT_EQ(positions(R"({"type":"linear","factor":4.0})"), 4096);
}

TEST(TargetConfig, ADefaultRopeTypeIsNoScaling) {
  EXPECT_EQ(accepted(R"({"rope_theta":null,"rope_parameters":{"rope_type":"default","rope_theta":1e6}})")
                .decoder.ropes[0]
                .theta,
            1e6);
  EXPECT_EQ(accepted(R"({"rope_scaling":{"type":"default"}})").decoder.ropes[0].scaling,
            model::RopeSpec::Scaling::kNone);
}

// As in transformers: a chat model's text does not end at config.json's id if generation_config.json has others.
TEST(TargetConfig, EndOfSequenceIdsAreThoseOfTheGenerationConfigWhereItHasAny) {
  EXPECT_EQ(accepted(R"({"eos_token_id":[7,9,7]})").eos_ids, (std::vector<TokenId>{7, 9}));
  EXPECT_EQ(accepted("{}", R"({"eos_token_id":[9,0]})").eos_ids, (std::vector<TokenId>{9, 0}));
  EXPECT_EQ(accepted(R"({"eos_token_id":null})", R"({"eos_token_id":150})").eos_ids, std::vector<TokenId>{150});
  EXPECT_EQ(accepted("{}", R"({"temperature":0.5})").eos_ids, std::vector<TokenId>{7});
  EXPECT_EQ(accepted("{}", R"({"eos_token_id":[]})").eos_ids, std::vector<TokenId>{7});
}

// The sampling defaults of a model with this generation_config.json; empty: no file.
Result<SamplingParams> sampling_of(const std::string& generation) {
  const TempFolder folder;
  if (!generation.empty()) folder.write("generation_config.json", generation);
  return read_default_sampling(folder.path(), {});
}

TEST(GenerationConfig, WithoutAFileTheLibrarysDefaultsHold) {
  const SamplingParams sampling = sampling_of("").value();
  EXPECT_EQ(sampling.temperature, 1.0f);
  EXPECT_EQ(sampling.top_p, 1.0f);
  EXPECT_EQ(sampling.top_k, 0);
}

TEST(GenerationConfig, ReadsEveryField) {
  const SamplingParams sampling = sampling_of(R"({"do_sample":true,"temperature":0.6,"top_p":0.95,"top_k":20,
    "min_p":0.05,"repetition_penalty":1.05,"transformers_version":"4.51.0"})")
                                      .value();
  EXPECT_FLOAT_EQ(sampling.temperature, 0.6f);
  EXPECT_FLOAT_EQ(sampling.top_p, 0.95f);
  EXPECT_EQ(sampling.top_k, 20);
  EXPECT_FLOAT_EQ(sampling.min_p, 0.05f);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty, 1.05f);
}

TEST(GenerationConfig, WithoutSamplingTheTemperatureIsZero) {
  EXPECT_EQ(sampling_of(R"({"do_sample":false,"temperature":0.6})").value().temperature, 0.0f);
  EXPECT_EQ(sampling_of(R"({"temperature":null})").value().temperature, 1.0f);
}

// The operator's values take precedence over the model's file.
TEST(DefaultSampling, SourcesAndOverrides) {
  const TempFolder folder;
  folder.write("generation_config.json", R"({"do_sample": false, "temperature": 0.6, "top_k": 20, "eos_token_id": 5})");
  const auto sampling = [&](const SamplingSource& source) {
    const auto read = read_default_sampling(folder.path(), source);
    EXPECT_TRUE(read.ok()) << read.error().message;
    return read.ok() ? *read : SamplingParams();
  };
  EXPECT_EQ(sampling({}).temperature, 0.0f);
  EXPECT_EQ(sampling({}).top_k, 20);
  EXPECT_EQ(sampling({.config = "none"}).temperature, 1.0f);
  EXPECT_EQ(sampling({.config = "none"}).top_k, 0);
  EXPECT_EQ(sampling({.overrides = R"({"top_k": 7})"}).temperature, 0.0f);
  EXPECT_EQ(sampling({.overrides = R"({"top_k": 7})"}).top_k, 7);
  EXPECT_EQ(sampling({.overrides = R"({"temperature": 0.5})"}).temperature, 0.5f) << "who names one wants to sample";
  EXPECT_EQ(sampling({.overrides = R"({"temperature": null, "do_sample": true})"}).temperature, 1.0f);
  const TempFolder other;
  other.write("generation_config.json", R"({"top_k": 9})");
  EXPECT_EQ(sampling({.config = other.path()}).top_k, 9);
  EXPECT_EQ(sampling({.config = other.path()}).temperature, 1.0f);
}

// Temperature 1 over all tokens may be meant, or may only be what remains when no default was stated.
TEST(DefaultSampling, WhetherAnythingWasSaid) {
  const auto said = [](const std::string& generation, const SamplingSource& source = {}) {
    const TempFolder folder;
    if (!generation.empty()) folder.write("generation_config.json", generation);
    return says_sampling(folder.path(), source);
  };
  for (const char* nothing : {"", "{}", R"({"eos_token_id": 2})", R"({"do_sample": true})", R"({"temperature": null})",
                              R"({"repetition_penalty": 1.1})", "no JSON"}) {
    EXPECT_FALSE(said(nothing)) << nothing;
  }
  for (const char* something : {R"({"temperature": 1.0})", R"({"top_p": 0.9})", R"({"top_k": 50})", R"({"min_p": 0.1})",
                                R"({"do_sample": false})"}) {
    EXPECT_TRUE(said(something)) << something;
  }
  EXPECT_TRUE(said("", {.config = "none"})) << "the operator wants it so";
  EXPECT_TRUE(said("", {.overrides = R"({"temperature": 1})"}));
  EXPECT_FALSE(said(R"({"temperature": 0.6})", {.overrides = R"({"temperature": null})"}));
}

TEST(DefaultSampling, AnOverrideThatCannotBeIsNamed) {
  for (const auto& [overrides, named] :
       std::vector<std::pair<const char*, const char*>>{{R"({"max_new_tokens": 5})", "max_new_tokens"},
                                                        {R"({"top_p": 2})", "top_p"},
                                                        {R"({"temperature": "hot"})", "temperature"},
                                                        {"[1]", "JSON object"},
                                                        {"{", "JSON object"}}) {
    const Status checked = check_sampling_overrides(overrides);
    ASSERT_FALSE(checked.ok()) << overrides;
    EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(checked.error().message.find(named), std::string::npos) << checked.error().message;
  }
}

class BadSampling : public testing::TestWithParam<BadConfig> {};

// Defaults that an operator sets or discards replace the file's, so bad ones there do no harm.
TEST_P(BadSampling, IsRefusedByNameWhereItCounts) {
  const auto sampling = sampling_of(GetParam().patch);
  expect_refused(sampling, GetParam());
  EXPECT_THAT(sampling.error().message, testing::HasSubstr("generation_config.json"));
  const auto target = read(good_config(), GetParam().patch);
  EXPECT_TRUE(target.ok()) << target.error().message;
}

class BadGenerationConfig : public testing::TestWithParam<BadConfig> {};

TEST_P(BadGenerationConfig, IsRefusedByName) {
  const BadConfig& bad = GetParam();
  const auto spec = read(good_config(), bad.patch);
  expect_refused(spec, bad);
  EXPECT_THAT(spec.error().message, testing::HasSubstr("generation_config.json"));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadSampling,
    testing::Values(BadConfig{"temperature", R"({"temperature":-1})", kInvalid, {"temperature"}},
                    BadConfig{"temperature_text", R"({"temperature":"hot"})", kInvalid, {"temperature", "hot"}},
                    BadConfig{"top_p_zero", R"({"top_p":0})", kInvalid, {"top_p"}},
                    BadConfig{"top_p_large", R"({"top_p":1.5})", kInvalid, {"top_p"}},
                    BadConfig{"top_k", R"({"top_k":-2})", kInvalid, {"top_k"}},
                    BadConfig{"top_k_fraction", R"({"top_k":2.5})", kInvalid, {"top_k"}},
                    BadConfig{"min_p", R"({"min_p":-0.1})", kInvalid, {"min_p"}},
                    BadConfig{"repetition", R"({"repetition_penalty":0})", kInvalid, {"repetition_penalty"}},
                    BadConfig{"repetition_tiny", R"({"repetition_penalty":1e-38})", kInvalid, {"repetition_penalty"}},
                    BadConfig{"do_sample", R"({"do_sample":1})", kInvalid, {"do_sample"}}),
    name_of_bad);

INSTANTIATE_TEST_SUITE_P(
    All, BadGenerationConfig,
    testing::Values(BadConfig{"eos", R"({"eos_token_id":151})", kInvalid, {"eos_token_id", "151"}},
                    BadConfig{"eos_in_list", R"({"eos_token_id":[7,-1]})", kInvalid, {"eos_token_id", "-1"}},
                    BadConfig{"damaged", R"({"eos_token_id":)", ErrorCode::kDataLoss, {}}),
    name_of_bad);

REFUSES_CONFIGS(BadTargetConfig, good_config())

INSTANTIATE_TEST_SUITE_P(
    Fields, BadTargetConfig,
    testing::Values(
        BadConfig{"no_architecture", R"({"architectures":null})", kInvalid, {"architectures"}},
        BadConfig{"architecture_no_list", R"({"architectures":"Qwen3ForCausalLM"})", kInvalid, {"architectures"}},
        BadConfig{"architecture_number", R"({"architectures":[3]})", kInvalid, {"architectures"}},
        BadConfig{"other_family",
                  R"({"architectures":["GPTNeoXForCausalLM"]})",
                  kUnbuilt,
                  {"GPTNeoXForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"}},
        BadConfig{"a_drafter", R"({"architectures":["DFlashDraftModel"]})", kInvalid, {"drafter"}},
        BadConfig{"other_type", R"({"model_type":"qwen3_moe"})", kUnbuilt, {"model_type", "qwen3_moe"}},
        BadConfig{"no_hidden", R"({"hidden_size":null})", kInvalid, {"hidden_size", "missing"}},
        BadConfig{"hidden_zero", R"({"hidden_size":0})", kInvalid, {"hidden_size"}},
        BadConfig{"hidden_negative", R"({"hidden_size":-64})", kInvalid, {"hidden_size", "-64"}},
        BadConfig{"hidden_text", R"({"hidden_size":"96"})", kInvalid, {"hidden_size"}},
        BadConfig{"hidden_float", R"({"hidden_size":96.0})", kInvalid, {"hidden_size"}},
        BadConfig{"hidden_huge", R"({"hidden_size":18446744073709551615})", kInvalid, {"hidden_size"}},
        BadConfig{"hidden_past_int32", R"({"hidden_size":4294967392})", kInvalid, {"hidden_size"}},
        BadConfig{"no_layers", R"({"num_hidden_layers":null})", kInvalid, {"num_hidden_layers"}},
        BadConfig{"layers_zero", R"({"num_hidden_layers":0})", kInvalid, {"num_hidden_layers"}},
        BadConfig{"no_heads", R"({"num_attention_heads":null})", kInvalid, {"num_attention_heads"}},
        BadConfig{
            "kv_heads_do_not_divide", R"({"num_key_value_heads":4})", kInvalid, {"num_key_value_heads", "4", "6"}},
        BadConfig{"more_kv_heads", R"({"num_key_value_heads":12})", kInvalid, {"num_key_value_heads", "12", "6"}},
        BadConfig{
            "heads_do_not_divide_hidden", R"({"head_dim":null,"hidden_size":100})", kInvalid, {"head_dim", "100", "6"}},
        BadConfig{"head_dim_odd", R"({"head_dim":33})", kInvalid, {"head_dim", "33", "even"}},
        BadConfig{"head_dim_step", R"({"head_dim":40})", kUnbuilt, {"head_dim", "40", "16"}},
        BadConfig{"head_dim_large", R"({"head_dim":528})", kUnbuilt, {"head_dim", "528", "512"}},
        BadConfig{"no_ffn", R"({"intermediate_size":null})", kInvalid, {"intermediate_size"}},
        BadConfig{"no_vocab", R"({"vocab_size":null})", kInvalid, {"vocab_size"}},
        BadConfig{"no_positions", R"({"max_position_embeddings":null})", kInvalid, {"max_position_embeddings"}},
        BadConfig{"eps_zero", R"({"rms_norm_eps":0})", kInvalid, {"rms_norm_eps"}},
        BadConfig{"tied_number", R"({"tie_word_embeddings":1})", kInvalid, {"tie_word_embeddings"}},
        BadConfig{"gelu", R"({"hidden_act":"gelu"})", kUnbuilt, {"hidden_act", "gelu", "silu"}},
        BadConfig{"no_head_norms", R"({"use_qk_norm":false})", kUnbuilt, {"use_qk_norm"}},
        BadConfig{"quantised",
                  R"({"quantization_config":{"quant_method":"bitnet"}})",
                  kUnbuilt,
                  {"quantization_config", "bitnet"}},
        BadConfig{"sliding_layer",
                  R"({"layer_types":["full_attention","sliding_attention","full_attention"]})",
                  kInvalid,
                  {"layer_types", "use_sliding_window"}},
        BadConfig{"no_window",
                  R"({"use_sliding_window":true,"sliding_window":null,
                      "layer_types":["full_attention","sliding_attention","full_attention"]})",
                  kInvalid,
                  {"sliding_window", "missing"}},
        BadConfig{"a_window_past_all_positions",
                  R"({"use_sliding_window":true,"sliding_window":2147483647,"max_window_layers":0,"layer_types":null})",
                  kInvalid,
                  {"sliding_window", "16777216"}},
        BadConfig{"not_causal", R"({"is_causal":false})", kUnbuilt, {"is_causal"}},
        BadConfig{"no_window_and_no_types",
                  R"({"use_sliding_window":true,"sliding_window":null,"max_window_layers":1,"layer_types":null})",
                  kInvalid,
                  {"sliding_window", "missing"}},
        BadConfig{"window_list",
                  R"({"use_sliding_window":true,"sliding_window":[8,16],"max_window_layers":1,"layer_types":null})",
                  kInvalid,
                  {"sliding_window"}},
        BadConfig{"linear_layer",
                  R"({"layer_types":["full_attention","linear_attention","full_attention"]})",
                  kUnbuilt,
                  {"layer_types", "linear_attention"}},
        BadConfig{"layer_types_short", R"({"layer_types":["full_attention"]})", kInvalid, {"layer_types", "1", "3"}},
        BadConfig{"eos_past_vocab", R"({"eos_token_id":151})", kInvalid, {"eos_token_id", "151", "150"}},
        BadConfig{"eos_text", R"({"eos_token_id":"</s>"})", kInvalid, {"eos_token_id"}}),
    name_of_bad);

INSTANTIATE_TEST_SUITE_P(
    Rope, BadTargetConfig,
    testing::Values(
        BadConfig{"theta_text", R"({"rope_theta":"big"})", kInvalid, {"rope_theta"}},
        BadConfig{"theta_one", R"({"rope_theta":1.0})", kInvalid, {"rope_theta"}},
        BadConfig{"scaling_text", R"({"rope_scaling":"yarn"})", kInvalid, {"rope_scaling"}},
        BadConfig{"dynamic",
                  R"({"rope_scaling":{"rope_type":"dynamic","factor":2}})",
                  kUnbuilt,
                  {"rope_type", "dynamic", "yarn"}},
        BadConfig{"longrope", R"({"rope_scaling":{"type":"longrope"}})", kUnbuilt, {"longrope"}},
        BadConfig{"type_missing", R"({"rope_scaling":{"factor":2}})", kInvalid, {"rope_type"}},
        BadConfig{"type_number", R"({"rope_scaling":{"type":2}})", kInvalid, {"type"}},
        BadConfig{"linear_without_factor", R"({"rope_scaling":{"type":"linear"}})", kInvalid, {"factor"}},
        BadConfig{"factor_zero", R"({"rope_scaling":{"type":"linear","factor":0}})", kInvalid, {"factor"}},
        BadConfig{"llama3_without_low",
                  R"({"rope_scaling":{"type":"llama3","factor":8,"high_freq_factor":4}})",
                  kInvalid,
                  {"low_freq_factor"}},
        BadConfig{"llama3_without_width",
                  R"({"rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4}})",
                  kInvalid,
                  {"high_freq_factor", "low_freq_factor"}},
        BadConfig{"yarn_betas",
                  R"({"rope_scaling":{"type":"yarn","factor":2,"beta_fast":1,"beta_slow":32}})",
                  kInvalid,
                  {"beta_fast", "beta_slow"}},
        BadConfig{
            "yarn_truncate", R"({"rope_scaling":{"type":"yarn","factor":2,"truncate":"no"}})", kInvalid, {"truncate"}},
        BadConfig{"attn_factor_twice",
                  R"({"rope_scaling":{"type":"yarn","factor":2,"attn_factor":1,"attention_factor":1}})",
                  kInvalid,
                  {"attn_factor", "attention_factor"}},
        BadConfig{"attn_factor_zero",
                  R"({"rope_scaling":{"type":"yarn","factor":2,"attn_factor":0}})",
                  kInvalid,
                  {"attn_factor"}},
        BadConfig{"interleaved", R"({"rope_interleaved":true})", kUnbuilt, {"rope_interleaved"}},
        BadConfig{"partial", R"({"partial_rotary_factor":0.5})", kUnbuilt, {"partial_rotary_factor"}},
        BadConfig{"partial_inside",
                  R"({"rope_parameters":{"rope_type":"default","partial_rotary_factor":0.5}})",
                  kUnbuilt,
                  {"partial_rotary_factor"}},
        BadConfig{
            "mrope", R"({"rope_scaling":{"type":"default","mrope_section":[8,4,4]}})", kUnbuilt, {"mrope_section"}},
        BadConfig{"by_layer_type",
                  R"({"rope_parameters":{"full_attention":{"rope_type":"default"}}})",
                  kUnbuilt,
                  {"full_attention"}},
        BadConfig{
            "both_dictionaries",
            R"({"rope_scaling":{"type":"yarn","factor":4},"rope_parameters":{"rope_type":"default","rope_theta":1e6}})",
            kInvalid,
            {"rope_scaling", "rope_parameters"}}),
    name_of_bad);

TEST(TargetConfig, MissingAndDamagedFilesAreNamed) {
  const TempFolder folder;
  const auto missing = read_target(folder.path());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, testing::HasSubstr(folder.path() + "/config.json"));
  for (const char* text : {"", "{", "[]", "3", "{\"a\":1,\"a\":2}", "{\"a\":NaN}", "\xff\xfe{}"}) {
    folder.write("config.json", text);
    const auto damaged = read_target(folder.path());
    ASSERT_FALSE(damaged.ok()) << text;
    EXPECT_EQ(damaged.error().code, ErrorCode::kDataLoss) << text;
    EXPECT_THAT(damaged.error().message, testing::HasSubstr("config.json"));
  }
}

TEST(TargetConfig, AGitLfsPointerIsNamed) {
  for (const char* name : {"config.json", "generation_config.json"}) {
    const TempFolder folder;
    folder.write("config.json", good_config().dump());
    folder.write(name, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n");
    const auto target = read_target(folder.path());
    ASSERT_FALSE(target.ok()) << name;
    EXPECT_THAT(target.error().message, testing::HasSubstr(std::string(name) + " is a Git LFS pointer"));
  }
}

// Any value in any field gives an error or a spec, nothing else.
TEST(TargetConfig, OddValuesAnywhereNeverBreakIt) {
  const json values[] = {
      nullptr,           true, 0, -1, 1e300, 18446744073709551615ull, "", "x", json::array(), {1, "a"}, json::object(),
      {{"type", "yarn"}}};
  const json config =
      patched(good_config(), R"({"rope_scaling":{"type":"yarn","factor":2},"quantization_config":null})");
  for (const auto& [key, original] : config.items()) {
    for (const json& value : values) {
      json changed = config;
      changed[key] = value;
      const auto spec = read(changed);
      if (!spec.ok()) {
        EXPECT_THAT(spec.error().message, testing::HasSubstr("config.json"));
      }
    }
  }
}

class FixtureTarget : public testing::TestWithParam<std::string> {};

TEST_P(FixtureTarget, IsAccepted) {
  const auto spec = read_target("tests/data/targets/" + GetParam());
  EXPECT_TRUE(spec.ok()) << spec.error().message;
}

INSTANTIATE_TEST_SUITE_P(All, FixtureTarget, testing::ValuesIn(weights::folders("targets")),
                         [](const auto& info) { return info.param; });

TEST(TargetConfig, ReadsThePocketModel) {
  const auto spec = read_target("models/pocket");
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->decoder.layers.size(), 8u);
  EXPECT_EQ(spec->eos_ids, (std::vector<TokenId>{2, 0}));
  EXPECT_EQ(read_default_sampling("models/pocket", {}).value().temperature, 0.0f);
}

}  // namespace
}  // namespace volley::families

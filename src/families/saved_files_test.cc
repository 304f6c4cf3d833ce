// Protects: files are accepted as today's writers leave them. A field that states the default, and a fact that stands
// in two places, change nothing.
#include "families/generation.h"
#include "families/target_config_for_test.h"

namespace volley::families {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// transformers 4 wrote its generation defaults into config.json; some versions wrote all of them.
TEST(SavedConfig, DefaultsOfGenerationChangeNothing) {
  accepted(R"({"num_beams":1,"num_beam_groups":1,"num_return_sequences":1,"length_penalty":1.0,"typical_p":1.0,
    "temperature":1.0,"top_p":1.0,"top_k":50,"repetition_penalty":1.0,"diversity_penalty":0.0,"early_stopping":false,
    "no_repeat_ngram_size":0,"encoder_no_repeat_ngram_size":0,"min_length":0,"max_length":20,"do_sample":false,
    "return_dict_in_generate":false,"output_scores":false,"bad_words_ids":"@null","pruned_heads":{},
    "is_encoder_decoder":false,"add_cross_attention":false,"torchscript":false,"remove_invalid_values":false})");
  for (const char* patch : {R"({"num_beams":4})", R"({"length_penalty":2.0})", R"({"typical_p":0.9})",
                            R"({"top_k":20})", R"({"no_repeat_ngram_size":3})"}) {
    const auto refused = read(patched(good_config(), patch));
    ASSERT_FALSE(refused.ok()) << patch;
    EXPECT_EQ(refused.error().code, kUnbuilt);
  }
}

// Families whose layers are alike do not read layer_types.
TEST(SavedConfig, LayerTypesMaySayThatAllAreAlike) {
  constexpr const char* kLlama = R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
      "use_sliding_window":null,"sliding_window":null})";
  constexpr const char* kMistral = R"({"architectures":["MistralForCausalLM"],"model_type":"mistral",
      "use_sliding_window":null,"sliding_window":"@null"})";
  constexpr const char* kExperts = R"({"architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe",
      "num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":40})";
  constexpr const char* kSliding = R"({"layer_types":["full_attention","sliding_attention","full_attention"]})";
  for (const char* family : {kLlama, kMistral, kExperts}) {
    const auto alike = read(patched(good_config(), family));
    EXPECT_TRUE(alike.ok()) << alike.error().message;
    const auto unlike = read(patched(patched(good_config(), family), kSliding));
    ASSERT_FALSE(unlike.ok()) << family;
    EXPECT_THAT(unlike.error().message, HasSubstr("layer_types"));
  }
  constexpr const char* kAllSliding = R"({"sliding_window":64,"layer_types":
      ["sliding_attention","sliding_attention","sliding_attention"]})";
  EXPECT_TRUE(read(patched(patched(good_config(), kMistral), kAllSliding)).ok());
  const auto contradiction = read(patched(patched(good_config(), kMistral), R"({"sliding_window":64})"));
  ASSERT_FALSE(contradiction.ok());
  EXPECT_THAT(contradiction.error().message, AllOf(HasSubstr("layer_types"), HasSubstr("sliding_window")));
}

TEST(SavedConfig, EqualFactsInTwoPlacesAreNoContradiction) {
  for (const char* patch : {
           R"({"rope_theta":null,"rope_parameters":{"rope_type":"yarn","factor":4,"rope_theta":50000},
               "rope_scaling":{"type":"yarn","factor":4.0}})",
           R"({"rope_parameters":{"rope_type":"yarn","factor":4,"rope_theta":50000},"rope_scaling":{"factor":4}})",
           R"({"rope_parameters":{"rope_theta":50000.0},"rope_scaling":{"rope_type":"yarn","type":"yarn","factor":4}})",
           R"({"rope_parameters":{"rope_type":"yarn","factor":4},"rope_scaling":{}})",
           R"({"partial_rotary_factor":1.0,"rope_parameters":{"rope_type":"yarn","factor":4,
               "partial_rotary_factor":1}})"}) {
    const model::RopeSpec rope = accepted(patch).decoder.ropes[0];
    EXPECT_EQ(rope.scaling, model::RopeSpec::Scaling::kYarn) << patch;
    EXPECT_EQ(rope.factor, 4.0) << patch;
    EXPECT_EQ(rope.theta, 50000.0) << patch;
  }
}

TEST(SavedConfig, DifferentFactsInTwoPlacesAreNamedWithBoth) {
  struct Case {
    const char *patch, *field, *one, *other;
  };
  for (const auto& [patch, field, one, other] :
       {Case{R"({"rope_parameters":{"rope_type":"yarn","factor":4},"rope_scaling":{"type":"yarn","factor":8}})",
             "\"factor\"", "rope_scaling", "rope_parameters"},
        Case{R"({"rope_parameters":{"rope_type":"linear","factor":4},"rope_scaling":{"type":"yarn"}})", "\"type\"",
             "rope_scaling", "rope_parameters"},
        Case{R"({"rope_scaling":{"type":"yarn","rope_type":"linear","factor":4}})", "\"type\"", "yarn", "linear"},
        Case{R"({"rope_parameters":{"rope_type":"default","rope_theta":1e6}})", "\"rope_theta\"", "50000",
             "rope_parameters"},
        Case{R"({"rope_parameters":{"rope_theta":50000},"rope_scaling":{"type":"default","rope_theta":60000}})",
             "\"rope_theta\"", "60000", "50000"}}) {
    const auto refused = read(patched(good_config(), patch));
    ASSERT_FALSE(refused.ok()) << patch;
    EXPECT_EQ(refused.error().code, kInvalid);
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr(field), HasSubstr(one), HasSubstr(other), HasSubstr("contradicts")))
        << patch;
  }
}

// The end-of-answer ids of a folder with these files. Null: no such file.
TargetConfig ending(const char* generation, const char* tokenizer, const char* map = nullptr) {
  const TempFolder folder;
  folder.write("config.json", patched(good_config(), R"({"eos_token_id":0})").dump());
  if (generation != nullptr) folder.write("generation_config.json", generation);
  if (tokenizer != nullptr) folder.write("tokenizer_config.json", tokenizer);
  if (map != nullptr) folder.write("special_tokens_map.json", map);
  const auto target = read_target(folder.path());
  EXPECT_TRUE(target.ok()) << target.error().message;
  return target.ok() ? *target : TargetConfig();
}

TEST(EndOfText, TheTokenizersTokenCountsWhereGenerationConfigNamesNone) {
  constexpr const char* kToken = R"({"eos_token":"<|im_end|>"})";
  for (const TargetConfig& target : {
           ending(nullptr, kToken),
           ending("{}", kToken),
           ending(R"({"eos_token_id":null})", kToken),
           ending(R"({"eos_token_id":[]})", kToken),
           ending(nullptr, R"({"eos_token":{"__type":"AddedToken","content":"<|im_end|>","lstrip":false}})"),
           ending(nullptr, nullptr, kToken),
           ending(nullptr, "{}", kToken),
           ending(nullptr, R"({"eos_token":null})", R"({"eos_token":{"content":"<|im_end|>"}})"),
           ending(nullptr, kToken, R"({"eos_token":"</s>"})"),
       }) {
    EXPECT_EQ(target.end_token, "<|im_end|>");
    EXPECT_THAT(target.eos_ids, ElementsAre(0)) << "config.json's stays";
  }
  EXPECT_EQ(ending(R"({"eos_token_id":7})", kToken).end_token, std::nullopt);
  EXPECT_THAT(ending(R"({"eos_token_id":[7,8]})", kToken).eos_ids, ElementsAre(7, 8));
  for (const char* odd : {R"({"eos_token":""})", R"({"eos_token":7})", R"({"eos_token":{"content":[]}})", "[]", "{"}) {
    EXPECT_EQ(ending(nullptr, odd).end_token, std::nullopt) << odd;
  }
}

TEST(SavedGenerationConfig, WhatIsNotDoneIsSaid) {
  const auto warnings = [](const char* generation) { return ending(generation, nullptr).warnings; };
  EXPECT_THAT(warnings(R"({"num_beams":1,"length_penalty":1.0,"typical_p":1.0,"top_k":50,"temperature":0.6,
    "do_sample":true,"max_new_tokens":512,"num_assistant_tokens":20,"assistant_lookbehind":10,"target_lookbehind":10,
    "cache_implementation":"hybrid","epsilon_cutoff":0.0,"renormalize_logits":true,"suppress_tokens":null,
    "bos_token_id":1,"pad_token_id":0,"transformers_version":"4.57.0","_from_model_config":true,"use_cache":true})"),
              testing::IsEmpty());
  EXPECT_THAT(warnings(R"({"num_beams":4,"no_repeat_ngram_size":3,"top_p":0.9,"suppress_tokens":[5]})"),
              testing::UnorderedElementsAre(AllOf(HasSubstr("generation_config.json"), HasSubstr("\"num_beams\" is 4")),
                                            HasSubstr("no_repeat_ngram_size"), HasSubstr("suppress_tokens")));
}

}  // namespace
}  // namespace volley::families

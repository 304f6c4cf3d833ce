// Protects: a published "quantization_config" is accepted with all its fields, and one that asks for more than is built
// is refused by name.
#include "families/target_config_for_test.h"

namespace volley::families {
namespace {

using nlohmann::json;
using weights::Quantisation;

Result<TargetConfig> quantised(const char* dictionary) {
  json config = good_config();
  config["quantization_config"] = json::parse(dictionary);
  return read(config);
}

Quantisation accepted_dictionary(const char* dictionary) {
  const auto target = quantised(dictionary);
  EXPECT_TRUE(target.ok()) << target.error().message;
  return target.ok() && target->names.quantisation ? *target->names.quantisation : Quantisation();
}

// As Qwen2.5-7B-Instruct-GPTQ-Int4 has it.
TEST(QuantizationConfig, GptqWithAllThatOptimumWrites) {
  const Quantisation q = accepted_dictionary(R"({"batch_size": 1, "bits": 4, "block_name_to_quantize": null,
    "cache_block_outputs": true, "damp_percent": 0.01, "dataset": null, "desc_act": false,
    "exllama_config": {"version": 1}, "group_size": 128, "max_input_length": null, "model_seqlen": null,
    "module_name_preceding_first_block": null, "modules_in_block_to_quantize": null, "pad_token_id": null,
    "quant_method": "gptq", "sym": true, "tokenizer": null, "true_sequential": true, "use_cuda_fp16": false,
    "use_exllama": true})");
  EXPECT_EQ(q.integers, Quantisation::Integers::kGptq);
  EXPECT_TRUE(q.zeros_less_one);
  EXPECT_FALSE(q.act_order);
  EXPECT_THAT(q.groups, testing::ElementsAre(128));
  accepted_dictionary(R"({"bits": 4, "group_size": 128, "quant_method": "gptq", "disable_exllama": true,
    "max_input_length": 4096, "module_name_preceding_first_block": ["model.embed_tokens"]})");
}

// As Qwen3.5-27B-GPTQ-Int4 has it. What is left plain shows in the tensors.
TEST(QuantizationConfig, GptqThatLeavesModulesPlain) {
  EXPECT_EQ(accepted_dictionary(R"({"bits": 4, "checkpoint_format": "gptq", "desc_act": false, "dynamic": {
    "lm_head": {}, "model.language_model.embed_tokens": {}, "-:.*attn.*": {}, "-:.*shared_expert.*": {},
    "-:.*mtp.*": {}, "-:.*visual.*": true}, "group_size": 128, "lm_head": false, "pack_dtype": "int32",
    "quant_method": "gptq", "sym": true, "meta": {"quantizer": ["gptqmodel:5.0"]}})")
                .integers,
            Quantisation::Integers::kGptq);
  for (const char* settings : {R"({"lm_head": {"bits": 8}})", R"({"+:.*attn.*": {"group_size": 32}})",
                               R"({"-:.*attn.*": {}, "lm_head": true})", "[1]"}) {
    const auto target = quantised(
        (R"({"bits": 4, "group_size": 128, "quant_method": "gptq", "dynamic": )" + std::string(settings) + "}")
            .c_str());
    ASSERT_FALSE(target.ok()) << settings;
    EXPECT_THAT(target.error().message, testing::HasSubstr("\"dynamic\""));
  }
}

// GPT-QModel of today names the method twice.
TEST(QuantizationConfig, GptqWithItsMethodUnderTwoNames) {
  EXPECT_EQ(accepted_dictionary(R"({"bits": 4, "checkpoint_format": "gptq", "desc_act": false, "format": "gptq",
    "group_size": 128, "method": "gptq", "pack_dtype": "int32", "quant_method": "gptq", "sym": true})")
                .integers,
            Quantisation::Integers::kGptq);
  const auto target = quantised(R"({"bits": 4, "group_size": 128, "method": "awq", "quant_method": "gptq"})");
  ASSERT_FALSE(target.ok());
  EXPECT_THAT(target.error().message, testing::HasSubstr("\"method\" is \"awq\", and quant_method is \"gptq\""));
}

}  // namespace
}  // namespace volley::families

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

// As Qwen3.5-27B-GPTQ-Int4 has it. The tensors show which modules are plain.
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

std::string refused_dictionary(const std::string& dictionary) {
  const auto target = quantised(dictionary.c_str());
  EXPECT_FALSE(target.ok()) << dictionary;
  return target.ok() ? "" : target.error().message;
}

// As GPTQModel 6 writes it, and 5 of AWQ.
TEST(QuantizationConfig, TheMethodMayBeThereTwice) {
  EXPECT_EQ(accepted_dictionary(R"({"bits": 4, "checkpoint_format": "gptq", "desc_act": true, "format": "gptq",
    "group_size": 128, "lm_head": false, "method": "gptq", "quant_method": "gptq", "pack_dtype": "int32", "sym": true,
    "meta": {"quantizer": ["gptqmodel:6.0"]}})")
                .integers,
            Quantisation::Integers::kGptq);
  EXPECT_EQ(accepted_dictionary(R"({"bits": 4, "checkpoint_format": "gemm", "format": "gemm", "group_size": 128,
    "method": "AWQ", "quant_method": "awq", "zero_point": true, "version": "gemm"})")
                .integers,
            Quantisation::Integers::kAwq);
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(refused_dictionary(R"({"bits": 4, "group_size": 128, "method": "qqq", "quant_method": "gptq"})"),
              AllOf(HasSubstr("\"method\" is \"qqq\""), HasSubstr("gptq")));
  EXPECT_THAT(refused_dictionary(R"({"bits": 4, "checkpoint_format": "gemv", "quant_method": "awq"})"),
              AllOf(HasSubstr("\"checkpoint_format\""), HasSubstr("gemv")));
}

// AutoRound's record of its tuning changes nothing; its settings for activations matter.
TEST(QuantizationConfig, AutoRoundsTuningDescribes) {
  const auto with = [](const char* more) {
    return R"({"bits": 4, "group_size": 128, "sym": true, "desc_act": false, "damp_percent": 0.01, "amp": true,
      "act_data_type": "int", "act_dynamic": true, "act_group_size": 128, "act_sym": true, "autoround_version": "0.4.7",
      "batch_size": 8, "enable_minmax_tuning": true, "enable_norm_bias_tuning": true, "enable_quanted_input": true,
      "gradient_accumulate_steps": 1, "iters": 200, "low_gpu_mem_usage": true, "lr": 0.005, "minmax_lr": 0.005,
      "nsamples": 128, "scale_dtype": "torch.float16", "seqlen": 2048, "true_sequential": false, )" +
           std::string(more) + "}";
  };
  for (const char* method : {"gptq", "awq"}) {
    const std::string name = R"("quant_method": ")" + std::string(method) + "\", ";
    accepted_dictionary(with((name + R"("act_bits": 16, "data_type": "int")").c_str()).c_str());
    EXPECT_THAT(refused_dictionary(with((name + R"("act_bits": 8, "data_type": "int")").c_str())),
                testing::HasSubstr("\"act_bits\" is 8"));
    EXPECT_THAT(refused_dictionary(with((name + R"("act_bits": 16, "data_type": "mx_fp")").c_str())),
                testing::HasSubstr("\"data_type\" is \"mx_fp\""));
  }
}

// Cache scales that were made for another type than e4m3 are marked so.
TEST(QuantizationConfig, TheFormatOfTheCacheIsKept) {
  const auto of = [](const char* method, const char* more) {
    const std::string dictionary = R"({"quant_method": ")" + std::string(method) + "\", " + more + "}";
    return accepted_dictionary(dictionary.c_str()).kv_format;
  };
  const auto compressed = [&](const char* scheme) {
    return of("compressed-tensors", (R"("format": "float-quantized", "config_groups": {"group_0": {"weights":
      {"num_bits": 8, "type": "float"}}}, "kv_cache_scheme": )" +
                                     std::string(scheme))
                                        .c_str());
  };
  EXPECT_EQ(of("fp8", R"("activation_scheme": "static")"), "");
  EXPECT_EQ(of("fp8", R"("kv_cache_scheme": "static", "kv_cache_quant_targets": ["k_proj", "v_proj"])"), "");
  EXPECT_EQ(of("modelopt", R"("quant_algo": "FP8", "kv_cache_quant_algo": "FP8")"), "");
  EXPECT_EQ(of("modelopt", R"("quant_algo": "FP8", "kv_cache_quant_algo": null)"), "");
  EXPECT_EQ(of("modelopt", R"("quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4")"),
            "NVFP4 (\"kv_cache_quant_algo\")");
  EXPECT_EQ(compressed(R"({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false})"), "");
  EXPECT_EQ(compressed("null"), "");
  EXPECT_EQ(compressed(R"({"num_bits": 4, "type": "float", "strategy": "tensor"})"),
            "float of 4 bits (\"kv_cache_scheme\")");
  EXPECT_EQ(compressed(R"({"num_bits": 8, "type": "int", "strategy": "tensor"})"),
            "int of 8 bits (\"kv_cache_scheme\")");
  EXPECT_EQ(of("compressed-tensors", R"("format": "float-quantized", "config_groups": {"group_0": {"output_activations":
    {"num_bits": 8, "type": "int", "strategy": "tensor"}, "weights": {"num_bits": 8, "type": "float"}}})"),
            "int of 8 bits (\"output_activations\")");
}

// The matrices are plain then, and may be quantised at load.
TEST(QuantizationConfig, TheCacheMayBeQuantisedAlone) {
  for (const char* dictionary :
       {R"({"quant_method": "modelopt", "quant_algo": null, "kv_cache_quant_algo": "FP8", "exclude_modules": []})",
        R"({"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "ignore": [],
            "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}})"}) {
    EXPECT_EQ(accepted_dictionary(dictionary).name, "");
  }
  EXPECT_THAT(refused_dictionary(R"({"quant_method": "modelopt", "quant_algo": null})"),
              testing::HasSubstr("\"quant_algo\" is missing"));
}

// As Meta-Llama-3.1-405B-Instruct-FP8 has it.
TEST(QuantizationConfig, Fbgemm) {
  const Quantisation q = accepted_dictionary(R"({"activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head",
    "model.layers.0.self_attn.q_proj"], "quant_method": "fbgemm_fp8"})");
  EXPECT_EQ(q.name, "fbgemm_fp8");
  EXPECT_EQ(q.block_rows, 0);
}

TEST(QuantizationConfig, CompressedTensorsUnderItsFirstNames) {
  const auto with_block = [](const char* structure) {
    json config = good_config();
    config["compression_config"] = json::parse(R"({"format": "float-quantized", "config_groups": {"group_0": {"weights":
      {"num_bits": 8, "type": "float", "strategy": "block"}}}, "quantization_status": "frozen"})");
    config["compression_config"]["config_groups"]["group_0"]["weights"]["block_structure"] = json::parse(structure);
    return read(config);
  };
  for (const char* structure : {R"("64x128")", "[64, 128]"}) {
    const auto target = with_block(structure);
    ASSERT_TRUE(target.ok()) << target.error().message;
    ASSERT_TRUE(target->names.quantisation);
    EXPECT_EQ(target->names.quantisation->name, "compressed-tensors float-quantized");
    EXPECT_EQ(target->names.quantisation->block_rows, 64);
    EXPECT_EQ(target->names.quantisation->block_columns, 128);
  }
  for (const char* structure : {R"("128")", R"("128x")", R"("x128")", R"("128x128x")", R"("128x128x128")", R"("0x128")",
                                R"("-1x128")", R"("128x8")", R"("99999999999x128")", R"("")"}) {
    const auto target = with_block(structure);
    ASSERT_FALSE(target.ok()) << structure;
    EXPECT_THAT(target.error().message, testing::HasSubstr("\"block_structure\"")) << structure;
  }
}

}  // namespace
}  // namespace volley::families

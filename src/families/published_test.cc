// Protects: config.json of published checkpoints, with all the fields that their makers wrote, is accepted, and what is
// made of it has the number of parameters that they state.
#include <gtest/gtest.h>

#include "families/config_for_test.h"
#include "model/params.h"

namespace volley::families {
namespace {

struct Published {
  const char* name;
  const char* config;  // or a folder of models/shapes
  int64_t parameters;
  int32_t window = 0;  // of the last layer
  size_t end_ids = 1;
};
void PrintTo(const Published& model, std::ostream* os) {
  *os << model.name;
}

class PublishedTarget : public testing::TestWithParam<Published> {};

TEST_P(PublishedTarget, IsAcceptedWithAllItsParameters) {
  const Published& model = GetParam();
  const ConfigFolder folder;
  const bool shape = model.config[0] != '{';
  if (!shape) folder.write("config.json", model.config);
  const auto target = read_target(shape ? std::string("models/shapes/") + model.config : folder.path());
  ASSERT_TRUE(target.ok()) << target.error().message;
  EXPECT_EQ(model::count(model::params(target->decoder)), model.parameters);
  EXPECT_EQ(target->decoder.attention(target->decoder.layers.size() - 1)->window, model.window);
  EXPECT_EQ(target->eos_ids.size(), model.end_ids);
}

INSTANTIATE_TEST_SUITE_P(
    All, PublishedTarget,
    testing::Values(Published{"Llama_3_1_8B", "llama-3.1-8b", 8030261248, 0, 3},
                    Published{"Llama_3_2_1B", R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,
          "attention_dropout":0.0,"bos_token_id":128000,"eos_token_id":[128001,128008,128009],"head_dim":64,
          "hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,"intermediate_size":8192,
          "max_position_embeddings":131072,"mlp_bias":false,"model_type":"llama","num_attention_heads":32,
          "num_hidden_layers":16,"num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,
          "rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,
          "original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,
          "tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.45.0.dev0","use_cache":true,
          "vocab_size":128256})",
                              1235814400, 0, 3},
                    Published{"Llama_2_7B", R"({"_name_or_path":"Llama-2-7b","architectures":["LlamaForCausalLM"],
          "bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,
          "intermediate_size":11008,"max_length":4096,"max_position_embeddings":4096,"model_type":"llama",
          "num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,"pad_token_id":0,
          "pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":null,"tie_word_embeddings":false,
          "torch_dtype":"float16","transformers_version":"4.31.0.dev0","use_cache":true,"vocab_size":32000})",
                              6738415616},
                    Published{"Qwen2_5_7B_Instruct", R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,
          "bos_token_id":151643,"eos_token_id":151645,"hidden_act":"silu","hidden_size":3584,"initializer_range":0.02,
          "intermediate_size":18944,"max_position_embeddings":32768,"max_window_layers":28,"model_type":"qwen2",
          "num_attention_heads":28,"num_hidden_layers":28,"num_key_value_heads":4,"rms_norm_eps":1e-06,
          "rope_theta":1000000.0,"sliding_window":131072,"tie_word_embeddings":false,"torch_dtype":"bfloat16",
          "transformers_version":"4.43.1","use_cache":true,"use_sliding_window":false,"vocab_size":152064})",
                              7615616512},
                    Published{"Qwen2_5_0_5B", R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,
          "bos_token_id":151643,"eos_token_id":151643,"hidden_act":"silu","hidden_size":896,"initializer_range":0.02,
          "intermediate_size":4864,"max_position_embeddings":32768,"max_window_layers":24,"model_type":"qwen2",
          "num_attention_heads":14,"num_hidden_layers":24,"num_key_value_heads":2,"rms_norm_eps":1e-06,
          "rope_theta":1000000.0,"sliding_window":32768,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
          "transformers_version":"4.40.1","use_cache":true,"use_mrope":false,"use_sliding_window":false,
          "vocab_size":151936})",
                              494032768},
                    Published{"Qwen3_8B", "qwen3-8b", 8190735360},
                    Published{"Qwen3_30B_A3B", "qwen3-30b-a3b", 30532122624}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace volley::families

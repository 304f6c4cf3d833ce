// Protects: a GGUF file's metadata become the fields of config.json and generation_config.json, and unread values that
// would change results are refused.
#include "gguf/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/temp_folder_for_test.h"
#include "gguf/bytes_for_test.h"
#include "gguf/model_file.h"

namespace volley::gguf {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class GgufConfig : public testing::Test {
 protected:
  Result<std::string> read(const std::string& bytes, const std::string& name = "config.json") {
    folder_.write("m.gguf", bytes);
    const std::string path = folder_.path() + "/m.gguf/" + name;
    EXPECT_TRUE(lies_in_file(path));
    return read_model_file(path);
  }
  json fields(const Bytes& bytes, const std::string& name = "config.json") {
    const auto text = read(bytes.str(), name);
    EXPECT_TRUE(text.ok()) << text.error().message;
    return text.ok() ? json::parse(*text) : json();
  }
  std::string refusal(const Bytes& bytes) {
    const auto text = read(bytes.str());
    return text.ok() ? "" : text.error().message;
  }

  TempFolder folder_;
};

TEST_F(GgufConfig, FieldsAreThoseOfHuggingFace) {
  const json config = fields(tiny_model("llama"));
  const json expected = {{"architectures", json::array({"LlamaForCausalLM"})},
                         {"hidden_size", 32},
                         {"intermediate_size", 48},
                         {"num_hidden_layers", 2},
                         {"num_attention_heads", 2},
                         {"num_key_value_heads", 1},
                         {"head_dim", 16},
                         {"rms_norm_eps", 1e-5f},
                         {"max_position_embeddings", 128},
                         {"rope_theta", 5e5},
                         {"vocab_size", 10},
                         {"tie_word_embeddings", true}};
  EXPECT_EQ(config, expected);
  EXPECT_EQ(fields(tiny_model("llama").tensor("output.weight", {32, 10}, 0, 1280))["tie_word_embeddings"], false);
  EXPECT_EQ(fields(tiny_model("qwen3"))["architectures"][0], "Qwen3ForCausalLM");
}

TEST_F(GgufConfig, StretchesOfTheRotaryEmbedding) {
  const Bytes linear =
      tiny_model("qwen2").text("qwen2.rope.scaling.type", "linear").real("qwen2.rope.scaling.factor", 4);
  EXPECT_EQ(fields(linear)["rope_scaling"], (json{{"rope_type", "linear"}, {"factor", 4.0}}));
  EXPECT_FALSE(fields(tiny_model("qwen2").text("qwen2.rope.scaling.type", "none")).contains("rope_scaling"));
}

// The divisors that llama.cpp's converter writes for Llama 3.2.
TEST_F(GgufConfig, Llama3IsReadOffItsDivisors) {
  std::string bytes = tiny_model("llama").tensor("rope_freqs.weight", {8}, 0, 32).str();
  const auto fill = [&](double factor) {
    for (int i = 0; i < 8; ++i) {
      const double wave = 2 * M_PI * std::pow(5e5, i / 8.0);
      const double smooth = (8192 / wave - 1) / 3;
      const double divisor = wave < 2048 ? 1 : wave > 8192 ? factor : 1 / ((1 - smooth) / factor + smooth);
      const auto value = static_cast<float>(divisor);
      std::memcpy(bytes.data() + bytes.size() - 32 + i * 4, &value, sizeof(value));
    }
  };
  fill(32);
  const auto text = read(bytes);
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(json::parse(*text)["rope_scaling"]["factor"], 32.0);
  EXPECT_EQ(json::parse(*text)["rope_scaling"]["rope_type"], "llama3");
  bytes[bytes.size() - 30] ^= 0x40;
  const auto other = read(bytes);
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("rope_freqs.weight"));
}

TEST_F(GgufConfig, Gemma3HasItsOwnFields) {
  const json config = fields(tiny_model("gemma3").number("gemma3.attention.sliding_window", 512));
  EXPECT_EQ(config["query_pre_attn_scalar"], 16.0);
  EXPECT_EQ(config["sliding_window"], 512);
  EXPECT_EQ(config["sliding_window_pattern"], 6);
  EXPECT_EQ(config["rope_local_base_freq"], 10000.0);
}

TEST_F(GgufConfig, Gemma4HasTwoKindsOfHeads) {
  EXPECT_THAT(refusal(tiny_model("gemma4")), HasSubstr("\"gemma4.attention.sliding_window_pattern\""));
  Bytes bytes = tiny_model("gemma4").numbers<uint8_t>("gemma4.attention.sliding_window_pattern", 7, {1, 0});
  bytes.number("gemma4.attention.key_length_swa", 8).number("gemma4.attention.sliding_window", 4);
  const json config = fields(bytes);
  EXPECT_EQ(config["layer_types"], json::array({"sliding_attention", "full_attention"}));
  EXPECT_EQ(config["head_dim"], 8);
  EXPECT_EQ(config["global_head_dim"], 16);
  EXPECT_EQ(config["attention_k_eq_v"], true) << "the full layer has no V of its own";
  EXPECT_THAT(refusal(bytes.tensor("rope_freqs.weight", {8}, 0, 32)),
              HasSubstr("built are those of Llama 3.1 and Gem"));
}

// Older files lack groups of experts and the scores' function.
TEST_F(GgufConfig, DeepseeksFilesSayWhichTheyAre) {
  Bytes bytes = tiny_model("deepseek2").number("deepseek2.attention.kv_lora_rank", 8);
  bytes.number("deepseek2.rope.dimension_count", 4).number("deepseek2.expert_used_count", 8);
  bytes.number("deepseek2.expert_feed_forward_length", 8).number("deepseek2.attention.value_length", 12);
  Bytes v2 = bytes, v3 = bytes;
  json config = fields(v2.number("deepseek2.expert_count", 160));
  EXPECT_EQ(config["architectures"][0], "DeepseekV2ForCausalLM");
  EXPECT_EQ(config["topk_method"], "group_limited_greedy") << "which its family refuses";
  EXPECT_EQ(config["qk_nope_head_dim"], 12);
  EXPECT_EQ(config["v_head_dim"], 12);
  EXPECT_EQ(config["q_lora_rank"], nullptr);
  config = fields(v3.number("deepseek2.expert_count", 256).tensor("blk.0.exp_probs_b.bias", {256}, 0, 1024));
  EXPECT_EQ(config["architectures"][0], "DeepseekV3ForCausalLM");
  EXPECT_EQ(config["n_group"], 8);
  EXPECT_EQ(config["topk_group"], 4);
  EXPECT_THAT(refusal(v3.tensor("rope_freqs.weight", {2}, 0, 8)), HasSubstr("built are those of Llama 3.1 and Gemma"));
}

// The file of Qwen3.5 that tests/parity_test.cc reads says the rest.
TEST_F(GgufConfig, LayersThatDraftAreNotCounted) {
  Bytes bytes = tiny_model("qwen35").number("qwen35.ssm.group_count", 2).number("qwen35.ssm.time_step_rank", 4);
  bytes.number("qwen35.ssm.state_size", 16).number("qwen35.ssm.inner_size", 80).number("qwen35.ssm.conv_kernel", 4);
  const json config = fields(bytes.number("qwen35.nextn_predict_layers", 1));
  EXPECT_EQ(config["num_hidden_layers"], 1);
  EXPECT_EQ(config["mtp_num_hidden_layers"], 1);
  EXPECT_EQ(config["linear_value_head_dim"], 20);
  EXPECT_EQ(config["partial_rotary_factor"], 1.0) << "the whole head turns unless the file says otherwise";
  EXPECT_EQ(config["full_attention_interval"], 4);
}

// Layers are counted from the embedding in the file, and from 0 in config.json.
TEST_F(GgufConfig, DraftersHaveTheFieldsOfTheirFolders) {
  Bytes bytes = tiny_model("dflash").numbers<int32_t>("dflash.target_layers", 5, {2, 17});
  bytes.number("dflash.block_size", 8).number("tokenizer.ggml.mask_token_id", 9).number("dflash.selector_rank", 0);
  const json config = fields(bytes.boolean("dflash.attention.causal", true));
  EXPECT_EQ(config["architectures"], json::array({"DFlashDraftModel"}));
  EXPECT_EQ(config["dflash_config"], (json{{"target_layer_ids", {1, 16}}, {"mask_token_id", 9}}));
  EXPECT_EQ(config["block_size"], 8);
  EXPECT_EQ(config["is_causal"], true);
  EXPECT_THAT(refusal(bytes.tensor("d2t", {4}, 26, 16)), HasSubstr("a vocabulary of its own"));
  EXPECT_THAT(refusal(tiny_model("dflash-draft")), HasSubstr("\"dflash-draft\", which is not built"));
}

TEST_F(GgufConfig, WhatIsMissingOrNotReadIsNamed) {
  EXPECT_THAT(refusal(Bytes().text("general.architecture", "llama")), HasSubstr("token_embd.weight"));
  EXPECT_THAT(refusal(Bytes().text("general.architecture", "llama").tensor("token_embd.weight", {4, 4}, 0, 64)),
              HasSubstr("\"llama.embedding_length\""));
  EXPECT_THAT(refusal(tiny_model("llama").number("llama.expert_count", 8)),
              HasSubstr("\"llama.expert_count\" is not built"));
  EXPECT_THAT(refusal(tiny_model("llama").number("llama.attention.value_length", 8)), HasSubstr("differ in size"));
  Bytes other = tiny_model("qwen3moe").number("qwen3moe.expert_count", 4).number("qwen3moe.expert_used_count", 2);
  other.number("qwen3moe.expert_feed_forward_length", 8).number("qwen3moe.expert_gating_func", 2);
  EXPECT_THAT(refusal(other), HasSubstr("another \"qwen3moe.expert_gating_func\" than 1"));
  Bytes uneven = tiny_model("qwen3moe").number("qwen3moe.expert_count", 4).number("qwen3moe.expert_used_count", 2);
  uneven.numbers<uint32_t>("qwen3moe.expert_feed_forward_length", 4, {8, 16});
  EXPECT_THAT(refusal(uneven), HasSubstr("differs between layers"));
}

TEST_F(GgufConfig, EndsAndSamplingAreTheMakers) {
  const Bytes bytes = tiny_model("qwen3")
                          .texts("tokenizer.ggml.tokens", {"a", "<|endoftext|>", "<|im_end|>", "b"})
                          .number("tokenizer.ggml.eos_token_id", 2)
                          .number("general.sampling.top_k", 20)
                          .real("general.sampling.temp", 0.5f);
  EXPECT_EQ(fields(bytes, "generation_config.json"),
            (json{{"eos_token_id", {2, 1}}, {"top_k", 20}, {"temperature", 0.5}}));
  EXPECT_EQ(fields(tiny_model("qwen3"), "generation_config.json"), json::object());
}

TEST_F(GgufConfig, OtherFilesAreNotThere) {
  const auto text = read(tiny_model("qwen3").str(), "chat_template.jinja");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(lies_in_file("models/pocket/config.json"));
}

}  // namespace
}  // namespace volley::gguf

// Protects: a tied model computes with the output head in its files, an equal one takes no memory, and checkpoints may
// hold tables that are computed anyway.
#include "model/output_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "model/params.h"
#include "weights/named.h"
#include "weights/test_files.h"

namespace volley::model {
namespace {

using testing::HasSubstr;

constexpr int32_t kVocab = 6, kHidden = 4;

Decoder tied_decoder() {
  Decoder decoder;
  decoder.vocab = kVocab;
  decoder.hidden = kHidden;
  decoder.tied_embeddings = true;
  return decoder;
}

struct Tensor {
  std::string name, dtype, shape, bytes;
};

// Values that both dtypes hold exactly: 1.0 + 0.5 * i, the last of them with `more` added.
template <typename T>
std::string values(T (*of)(float), float more = 0) {
  std::string bytes;
  for (int i = 0; i < kVocab * kHidden; ++i) {
    const T value = of(1 + 0.5f * static_cast<float>(i) + (i + 1 == kVocab * kHidden ? more : 0));
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return bytes;
}
BFloat16 bf16(float x) {
  return to_bfloat16(x);
}
float f32(float x) {
  return x;
}
Tensor table(const std::string& name, float more = 0) {
  return {name, "BF16", "[6,4]", values(bf16, more)};
}

std::string file_of(const std::vector<Tensor>& tensors) {
  std::string header, data;
  for (const Tensor& tensor : tensors) {
    header += (header.empty() ? "{\"" : ",\"") + tensor.name + R"(":{"dtype":")" + tensor.dtype + R"(","shape":)" +
              tensor.shape + R"(,"data_offsets":[)" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + tensor.bytes.size()) + "]}";
    data += tensor.bytes;
  }
  return weights::safetensors_bytes(header + "}", data);
}

struct Settled {
  Decoder decoder;
  Result<std::optional<std::string>> sentence;
  Result<int64_t> tensors = 0;
};

Settled settle(const TempFolder& folder, weights::NameRules names = {},
               weights::FileAccess access = weights::FileAccess::kMap) {
  auto files = weights::open_safetensors(folder.path(), access);
  EXPECT_TRUE(files.ok()) << files.error().message;
  const auto checkpoint = weights::with_names(std::move(*files), std::move(names));
  Settled settled{tied_decoder(), std::optional<std::string>()};
  settled.sentence = settle_output_head(*checkpoint, settled.decoder);
  settled.tensors = check_tensors(*checkpoint, params(settled.decoder));
  return settled;
}

Settled settle(const std::vector<Tensor>& tensors, const weights::NameRules& names = {},
               weights::FileAccess access = weights::FileAccess::kMap) {
  const TempFolder folder;
  std::vector<Tensor> all = tensors;
  all.push_back({"model.norm.weight", "F32", "[4]", std::string(16, '\0')});
  folder.write("model.safetensors", file_of(all));
  return settle(folder, names, access);
}

const Tensor kEmbedding = table("model.embed_tokens.weight");

TEST(OutputHead, AnEqualOneStaysTheEmbedding) {
  for (const auto& tensors : std::vector<std::vector<Tensor>>{
           {kEmbedding},
           {kEmbedding, table("lm_head.weight")},
           {kEmbedding, {"lm_head.weight", "F32", "[6,4]", values(f32)}},
           {{"model.embed_tokens.weight", "F32", "[6,4]", values(f32)}, table("lm_head.weight")}}) {
    for (const auto access : {weights::FileAccess::kMap, weights::FileAccess::kRead}) {
      const Settled settled = settle(tensors, {}, access);
      ASSERT_TRUE(settled.sentence.ok()) << settled.sentence.error().message;
      EXPECT_FALSE(settled.sentence->has_value()) << **settled.sentence;
      EXPECT_TRUE(settled.decoder.tied_embeddings);
      EXPECT_TRUE(settled.tensors.ok()) << settled.tensors.error().message;
    }
  }
}

TEST(OutputHead, OneThatDiffersCounts) {
  for (const auto& head : {table("lm_head.weight", 0.5f), table("model.lm_head.weight", 0.5f),
                           Tensor{"lm_head.weight", "F32", "[6,4]", values(f32, 1e-6f)},
                           Tensor{"lm_head.weight", "BF16", "[6,4]", std::string(48, '\0')}}) {
    for (const auto access : {weights::FileAccess::kMap, weights::FileAccess::kRead}) {
      const Settled settled = settle({kEmbedding, head}, {}, access);
      ASSERT_TRUE(settled.sentence.ok() && settled.sentence->has_value());
      EXPECT_THAT(**settled.sentence, testing::AllOf(HasSubstr("differs"), HasSubstr("tie_word_embeddings")));
      EXPECT_FALSE(settled.decoder.tied_embeddings);
      EXPECT_EQ(head_param(settled.decoder).parts[0].name, "lm_head.weight");
      EXPECT_TRUE(settled.tensors.ok()) << settled.tensors.error().message;
    }
  }
}

TEST(OutputHead, ItMayBeInAnotherShard) {
  const TempFolder folder;
  folder.write("one.safetensors", file_of({kEmbedding, {"model.norm.weight", "F32", "[4]", std::string(16, '\0')}}));
  folder.write("two.safetensors", file_of({table("lm_head.weight", 0.5f)}));
  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"model.embed_tokens.weight":"one.safetensors","x":"two.safetensors"}})");
  EXPECT_FALSE(settle(folder).decoder.tied_embeddings);
}

TEST(OutputHead, AQuantisedOneCounts) {
  weights::NameRules names;
  names.quantisation = std::make_shared<weights::Quantisation>(weights::Quantisation{.name = "fp8"});
  const Settled settled = settle({kEmbedding,
                                  {"lm_head.weight", "F8_E4M3", "[6,4]", std::string(24, '\x38')},
                                  {"lm_head.weight_scale", "F32", "[6,1]", std::string(24, '\0')}},
                                 names);
  ASSERT_TRUE(settled.sentence.ok()) << settled.sentence.error().message;
  ASSERT_TRUE(settled.sentence->has_value());
  EXPECT_THAT(**settled.sentence, HasSubstr("is quantised"));
  EXPECT_FALSE(settled.decoder.tied_embeddings);
}

TEST(OutputHead, OneOfAnotherShapeIsNamed) {
  const Settled settled = settle({kEmbedding, {"lm_head.weight", "BF16", "[5,4]", std::string(40, '\0')}});
  ASSERT_FALSE(settled.sentence.ok());
  EXPECT_THAT(settled.sentence.error().message, testing::AllOf(HasSubstr("lm_head.weight"), HasSubstr("[5, 4]")));
}

// As transformers 5 ties them: to whichever tensor exists.
TEST(OutputHead, ATiedModelMayHoldTheHeadAlone) {
  weights::NameRules names;
  names.aliases.push_back({"embed_tokens.", "lm_head."});
  const Settled settled = settle({table("lm_head.weight")}, names);
  EXPECT_TRUE(settled.decoder.tied_embeddings);
  EXPECT_TRUE(settled.tensors.ok()) << settled.tensors.error().message;
}

TEST(CheckTensors, TablesThatAreComputedAreNotAsked) {
  const std::string four(4, '\0');
  for (const char* name :
       {"model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.0.self_attn.rotary_emb.cos_cached", "model.layers.0.self_attn.rotary_emb.sin_cached",
        "model.embeddings.position_ids", "model.layers.0.attn.masked_bias", "model.causal_mask"}) {
    const Settled settled = settle({kEmbedding, {name, "F32", "[1]", four}});
    EXPECT_TRUE(settled.tensors.ok()) << settled.tensors.error().message;
  }
  const auto mask = [&](const char* name, const char* shape) {
    return settle({kEmbedding, {name, "BOOL", shape, four}}).tensors.ok();
  };
  EXPECT_TRUE(mask("model.layers.0.attn.bias", "[1,1,2,2]"));
  EXPECT_TRUE(mask("model.layers.0.self_attn.bias", "[1,1,2,2]"));
  EXPECT_FALSE(mask("model.layers.0.self_attn.bias", "[4]")) << "that is a bias";
  EXPECT_FALSE(mask("model.layers.0.attn.bias", "[1,1,1,4]"));
}

}  // namespace
}  // namespace volley::model

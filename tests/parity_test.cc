// Models in float32 against references computed elsewhere (tests/data/README.md): targets against transformers,
// drafters against tests/make/dflash_reference.py and tests/make/make_selector_fixtures.py. Runs the forward pass that
// the engine runs.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "base/temp_folder_for_test.h"
#include "decode/dflash/config.h"
#include "fixtures.h"
#include "gguf/bytes_for_test.h"
#include "model/params.h"
#include "model_runner.h"
#include "weights/coded_files_for_test.h"
#include "weights/gguf/blocks.h"
#include "weights/named.h"

namespace volley::testing {
namespace {

TEST(TargetParity, LogitsAreThoseOfTransformers) {
  const auto names = folders("targets");
  ASSERT_GE(names.size(), 17u);
  int chunked = 0;
  for (const std::string& name : names) {
    const std::string dir = "tests/data/targets/" + name;
    const Fixture expected(dir + "/expected");
    ModelRunner model(dir, "", ComputeType::kFloat32, 64);
    const auto ids = expected.ids("prompt_ids", 40);
    const auto reference = expected.matrix("logits", 40, model.spec().vocab);
    const auto logits = model.logits(ids);
    const double error = relative_error(logits, reference);
    std::printf("%-18s relative error %.1e\n", name.c_str(), error);
    const bool recurrent = expected.has("chunked_logits");
    EXPECT_LT(error, recurrent ? kRecurrentTolerance : kTolerance) << name;
    // In chunks that fit neither pages nor tiles the bits stay the same.
    EXPECT_EQ(model.logits(ids, 7), logits) << name;
    if (!recurrent) continue;
    // Recurrent layers: the reference above goes token by token, as this does; this one goes by chunks of 64.
    ++chunked;
    const double apart = relative_error(logits, expected.matrix("chunked_logits", 40, model.spec().vocab));
    std::printf("%-18s relative error %.1e against the form in chunks\n", name.c_str(), apart);
    EXPECT_LT(apart, kRecurrentTolerance) << name;
  }
  if (kTestDevice == "cpu") EXPECT_GE(chunked, 6);
}

TEST(TargetParity, LogitsOfAGgufFileAreThoseOfItsFolder) {
  for (const std::string name : {"gemma4_experts", "latent_groups", "latent_softmax", "llama_tied", "llama_bias",
                                 "qwen2_tied", "plain", "moe_single"}) {
    const std::string dir = "tests/data/targets/" + name;
    const auto ids = Fixture(dir + "/expected").ids("prompt_ids", 40);
    ModelRunner folder(dir, "", ComputeType::kFloat32, 64);
    ModelRunner file("tests/data/gguf/" + name + ".gguf", "", ComputeType::kFloat32, 64);
    EXPECT_EQ(file.logits(ids), folder.logits(ids)) << name;
  }
  const auto ids = Fixture("tests/data/quantised/mxfp4_blocks/expected").ids("prompt_ids", 40);
  ModelRunner folder("tests/data/quantised/mxfp4_blocks", "", ComputeType::kFloat32, 64);
  ModelRunner file("tests/data/gguf/mxfp4_blocks.gguf", "", ComputeType::kFloat32, 64);
  EXPECT_EQ(file.logits(ids), folder.logits(ids));
}

// These files' values are not bit for bit those of the folder: converters put a 1 into norms and an exponential into
// the decay.
TEST(TargetParity, LogitsOfAConvertedGgufFileAreThoseOfTransformers) {
  for (const std::string name : {"gemma_windows", "hybrid_tied", "hybrid_wide", "hybrid_experts", "next_experts"}) {
    const Fixture expected("tests/data/targets/" + name + "/expected");
    ModelRunner model("tests/data/gguf/" + name + ".gguf", "", ComputeType::kFloat32, 64);
    const auto reference = expected.matrix("logits", 40, model.spec().vocab);
    const double error = relative_error(model.logits(expected.ids("prompt_ids", 40)), reference);
    EXPECT_LT(error, expected.has("chunked_logits") ? kRecurrentTolerance : kTolerance) << name;
  }
}

// A router whose rounding differs would send rows elsewhere before the logits show much of it.
TEST(TargetParity, ExpertsAreThoseOfTransformers) {
  int rows = 0;
  for (const std::string& name : folders("targets")) {
    const std::string dir = "tests/data/targets/" + name;
    const Fixture expected(dir + "/expected");
    ModelRunner model(dir, "", ComputeType::kFloat32, 64);
    const auto& layers = model.spec().layers;
    const auto ids = expected.ids("prompt_ids", 40);
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto* experts = std::get_if<model::Experts>(&layers[i].ffn);
      if (experts == nullptr) continue;
      const int top_k = experts->router.top_k;
      EXPECT_EQ(model.experts(ids, top_k)[i], expected.ids("experts." + std::to_string(i), 40 * top_k))
          << name << ", layer " << i;
      rows += 40;
    }
  }
  EXPECT_GE(rows, 200) << "rows of layers with experts";
}

// A greedy answer through the engine: 64 tokens.
std::vector<TokenId> answer_of(const std::string& model, std::vector<TokenId> prompt) {
  EngineOptions options;
  options.model_dir = model;
  options.skip_tokenizer = true;
  options.device = kTestDevice;
  options.speculation = Speculation::kOff;
  options.dtype = ComputeType::kFloat32;
  options.threads = 1;
  options.max_num_seqs = 1;
  const auto engine = make_engine(options);
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = 64;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  request.sampling.repetition_penalty = 1.5f;  // as in make_fixtures.py
  return run_all(*engine, {request}, 1)[0].tokens;
}
void expect_answer(const std::string& dir, const Fixture& expected) {
  EXPECT_EQ(answer_of(dir, expected.ids("prompt_ids", 40)), expected.ids("greedy_ids", 64)) << dir;
}

// Targets of every family; some have windows shorter than the prompt.
TEST(TargetParity, AnswersAreThoseOfTransformers) {
  int with_answer = 0;
  for (const std::string& name : folders("targets")) {
    const std::string dir = "tests/data/targets/" + name;
    const Fixture expected(dir + "/expected");
    if (!expected.has("greedy_ids")) continue;  // made before answers were kept
    ++with_answer;
    expect_answer(dir, expected);
  }
  EXPECT_GE(with_answer, 7);
}

// Checkpoints that are quantised already (tests/make/make_quantised_fixtures.py), against the same weights widened:
// codes are multiplied as they are, so nothing but the order of sums differs.
TEST(QuantisedParity, LogitsAreThoseOfTheWidenedWeights) {
  for (const std::string& name : folders("quantised")) {
    const std::string dir = "tests/data/quantised/" + name;
    const Fixture expected(dir + "/expected");
    ModelRunner model(dir, "", ComputeType::kFloat32, 64);
    const auto ids = expected.ids("prompt_ids", 40);
    const auto logits = model.logits(ids);
    const double error = relative_error(logits, expected.matrix("logits", 40, model.spec().vocab));
    std::printf("%-18s relative error %.1e\n", name.c_str(), error);
    EXPECT_LT(error, model.spec().state_layers() > 0 ? kRecurrentTolerance : kTolerance) << name;
    EXPECT_EQ(model.logits(ids, 7), logits) << name;
  }
}

TEST(QuantisedParity, AnswersAreThoseOfTheWidenedWeights) {
  for (const std::string& name : folders("quantised")) {
    const std::string dir = "tests/data/quantised/" + name;
    expect_answer(dir, Fixture(dir + "/expected"));
  }
}

// A GGUF file with blocks of most types in mixtures such as llama-quantize makes, and one with their values in fp32.
class BlockModel {
 public:
  BlockModel() {
    folder_.write("blocks.gguf", bytes(false));
    folder_.write("values.gguf", bytes(true));
    std::string blocks = bytes(false), values = bytes(true);
    const auto block_file = gguf::open_file(path("blocks")), value_file = gguf::open_file(path("values"));
    for (const gguf::Tensor& tensor : block_file.value().header().tensors()) {
      auto* from = blocks.data() + tensor.begin;
      auto* to = reinterpret_cast<float*>(values.data() + value_file.value().tensor(tensor.name)->begin);
      const gguf::TypeFacts facts = facts_of(tensor.type);
      const auto count = static_cast<int64_t>(tensor.end - tensor.begin) / facts.bytes;
      for (int64_t i = 0; i < count; ++i) fill(tensor.type, facts.bytes, from + i * facts.bytes);
      weights::widen_blocks(tensor.type, reinterpret_cast<const std::byte*>(from), count, to);
    }
    folder_.write("blocks.gguf", blocks);
    folder_.write("values.gguf", values);
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name + ".gguf"; }

 private:
  using Type = gguf::TensorType;

  // All bytes of tensors are zero.
  static std::string bytes(bool widened) {
    gguf::Bytes model;
    model.text("general.architecture", "llama").number("llama.block_count", 2).number("llama.context_length", 128);
    model.number("llama.embedding_length", 256).number("llama.feed_forward_length", 256);
    model.number("llama.attention.head_count", 4).number("llama.attention.head_count_kv", 2);
    model.real("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    const auto matrix = [&](const std::string& name, uint64_t rows, Type type) {
      const Type stored = widened ? Type::kF32 : type;
      const gguf::TypeFacts facts = gguf::facts_of(stored);
      model.tensor(name + ".weight", {256, rows}, static_cast<uint32_t>(stored),
                   rows * 256 / static_cast<uint64_t>(facts.values) * static_cast<uint64_t>(facts.bytes));
    };
    const auto norm = [&](const std::string& name) { model.tensor(name + ".weight", {256}, 0, 1024); };
    constexpr Type kTypes[2][7] = {
        {Type::kQ4_K, Type::kQ6_K, Type::kQ4_K, Type::kQ5_K, Type::kQ5_0, Type::kQ5_0, Type::kQ6_K},
        {Type::kQ4_1, Type::kQ4_1, Type::kQ4_1, Type::kQ5_1, Type::kQ8_0, Type::kQ4_1, Type::kQ8_0}};
    constexpr const char* kNames[7] = {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"};
    matrix("token_embd", 48, Type::kQ8_0);
    norm("output_norm");
    for (int layer = 0; layer < 2; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      norm(prefix + "attn_norm");
      norm(prefix + "ffn_norm");
      for (int i = 0; i < 7; ++i) matrix(prefix + kNames[i], i == 1 || i == 2 ? 128 : 256, kTypes[layer][i]);
    }
    return model.str();
  }

  // Random bytes with a small scale and minimum; a norm's value is 1.
  void fill(Type type, int64_t size, char* block) {
    if (type == Type::kF32) {
      const float one = 1;
      std::memcpy(block, &one, sizeof(one));
      return;
    }
    for (int64_t i = 0; i < size; ++i) block[i] = static_cast<char>(random_());
    block[type == Type::kQ6_K ? 209 : 1] = 0x11;  // the upper byte of an fp16 of about 2^-11
    if (weights::integers_of(type)->minimums) block[3] = 0x19;
  }

  std::mt19937 random_{40};
  TempFolder folder_;
};

// In float32 the arithmetic on codes has the bits of that on their values.
TEST(QuantisedParity, BlocksOfAGgufFileAreTheirValues) {
  const BlockModel model;
  std::vector<TokenId> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(i * 7 % 48);
  ModelRunner blocks(model.path("blocks"), "", ComputeType::kFloat32, 64);
  ModelRunner values(model.path("values"), "", ComputeType::kFloat32, 64);
  const auto logits = values.logits(ids);
  EXPECT_EQ(blocks.logits(ids), logits);
  EXPECT_NE(logits[0], logits[1]);
  EXPECT_EQ(answer_of(model.path("blocks"), ids), answer_of(model.path("values"), ids));
}

TEST(TargetParity, ThePocketTargetToo) {
  const Fixture expected("tests/data/pocket");
  for (const int n : {24, 48, 96}) {
    const std::string suffix = "." + std::to_string(n);
    ModelRunner model("models/pocket", "", ComputeType::kFloat32, 128);
    const auto logits = model.logits(expected.ids("prompt_ids" + suffix, n));
    EXPECT_LT(relative_error({logits.back()}, {expected.vector("last_logits" + suffix, 2048)}), kTolerance) << n;
    const auto choice = expected.ids("argmax" + suffix, n);
    const auto margin = expected.vector("margin" + suffix, n);
    for (int i = 0; i < n; ++i) {
      if (margin[i] < 1e-3f) continue;
      EXPECT_EQ(std::max_element(logits[i].begin(), logits[i].end()) - logits[i].begin(), choice[i]) << i;
    }
  }
}

// A drafter of tests/data beside its target.
struct DrafterFixture {
  explicit DrafterFixture(const std::string& name)
      : dir("tests/data/drafters/" + name),
        facts(*decode::dflash::read_config(dir)),
        expected(dir + "/expected"),
        model("tests/data/targets/" + target_of_drafter(name), dir, ComputeType::kFloat32, 64),
        features(expected.matrix("features", 40, std::ssize(facts.feature_layers) * facts.decoder.hidden)) {}

  std::vector<std::vector<float>> context(int n) const { return {features.begin(), features.begin() + n}; }
  std::vector<TokenId> block(int context) const {
    return expected.ids("block_ids." + std::to_string(context), block_size());
  }
  int32_t block_size() const { return facts.first_proposal + facts.proposals; }

  const std::string dir;
  const decode::dflash::Facts facts;
  const Fixture expected;
  ModelRunner model;
  const std::vector<std::vector<float>> features;
};

TEST(DrafterParity, HiddenStatesAreThoseOfTheReference) {
  ASSERT_GE(folders("drafters").size(), 13u);
  for (const std::string& name : folders("drafters")) {
    DrafterFixture drafter(name);
    for (const int context : {1, 9, 40}) {
      const auto reference = drafter.expected.matrix("hidden." + std::to_string(context), drafter.block_size(),
                                                     drafter.facts.decoder.hidden);
      const auto got = drafter.model.draft_hidden(drafter.context(context), drafter.block(context));
      const double error = relative_error(got, reference);
      std::printf("%-22s context %2d  relative error %.1e\n", name.c_str(), context, error);
      EXPECT_LT(error, kTolerance) << name << ", context " << context;
    }
  }
}

TEST(DrafterParity, AGgufFileIsItsFolder) {
  for (const std::string name : {"markov_vanilla", "selector", "window_causal"}) {
    DrafterFixture drafter(name);
    const std::string path = "tests/data/gguf/draft_" + name + ".gguf";
    const auto facts = decode::dflash::read_config(path);
    ASSERT_TRUE(facts.ok()) << facts.error().message;
    EXPECT_EQ(facts->feature_layers, drafter.facts.feature_layers);
    EXPECT_EQ(facts->mask_token, drafter.facts.mask_token);
    EXPECT_EQ(facts->first_proposal, drafter.facts.first_proposal);
    EXPECT_EQ(facts->proposals, drafter.facts.proposals);
    ModelRunner file("tests/data/targets/" + target_of_drafter(name), path, ComputeType::kFloat32, 64);
    for (const int context : {1, 9, 40}) {
      const auto features = drafter.context(context);
      const auto block = drafter.block(context);
      EXPECT_EQ(file.draft_hidden(features, block), drafter.model.draft_hidden(features, block)) << name;
      if (facts->selector.rank == 0) continue;
      EXPECT_EQ(file.draft_choices(features, block).tokens, drafter.model.draft_choices(features, block).tokens)
          << name;
    }
  }
}

// A drafter's head on its hidden states: for a part of the vocabulary, with a softcap.
TEST(DrafterParity, LogitsAreThoseOfTheReference) {
  int with_logits = 0;
  for (const std::string& name : folders("drafters")) {
    DrafterFixture drafter(name);
    if (!drafter.expected.has("logits.1")) continue;  // the target's own
    ++with_logits;
    for (const int context : {1, 9, 40}) {
      auto reference = drafter.expected.matrix("logits." + std::to_string(context), drafter.block_size(),
                                               drafter.facts.decoder.vocab);
      auto got = drafter.model.draft_logits(drafter.context(context), drafter.block(context));
      int absent = 0;
      for (size_t i = 0; i < reference.size(); ++i) {
        for (size_t token = 0; token < reference[i].size(); ++token) {
          ASSERT_EQ(std::isinf(got[i][token]), std::isinf(reference[i][token])) << name << ", token " << token;
          if (!std::isinf(got[i][token])) continue;
          EXPECT_LT(got[i][token], 0);
          got[i][token] = reference[i][token] = 0;
          ++absent;
        }
      }
      const int32_t known = drafter.facts.draft_vocab > 0 ? drafter.facts.draft_vocab : drafter.facts.decoder.vocab;
      EXPECT_EQ(absent, drafter.block_size() * (drafter.facts.decoder.vocab - known)) << name;
      EXPECT_LT(relative_error(got, reference), kTolerance) << name << ", context " << context;
    }
  }
  EXPECT_GE(with_logits, 4);
}

// The walk of a selector or a Markov head goes by hidden states and logits; where it did not, the highest logits would
// be chosen.
TEST(DrafterParity, ChoicesAreThoseOfTheReference) {
  int walks = 0, with_head = 0;
  for (const std::string& name : folders("drafters")) {
    DrafterFixture drafter(name);
    if (drafter.facts.selector.rank == 0) continue;
    ++walks;
    for (const int context : {1, 9, 40}) {
      const std::string suffix = "." + std::to_string(context);
      const auto reference = drafter.expected.ids("drafts" + suffix, drafter.facts.proposals);
      const auto choices = drafter.model.draft_choices(drafter.context(context), drafter.block(context));
      EXPECT_EQ(choices.tokens, reference) << name << ", context " << context;
      if (!drafter.facts.selector.confidence) continue;
      ++with_head;
      const auto chances = drafter.expected.vector("confidence" + suffix, drafter.facts.proposals);
      EXPECT_LT(relative_error({choices.confidence}, {chances}), kTolerance) << name << ", context " << context;
    }
    for (const std::vector<float>& row : drafter.expected.matrix("blocks", 64, 2 + drafter.facts.proposals)) {
      const int context = static_cast<int>(row[0]);
      std::vector<TokenId> block = drafter.block(1);
      block[0] = static_cast<TokenId>(row[1]);
      EXPECT_EQ(drafter.model.draft_choices(drafter.context(context), block).tokens,
                std::vector<TokenId>(row.begin() + 2, row.end()))
          << name << ", token " << block[0] << " after " << context;
    }
  }
  EXPECT_GE(walks, 5);
  EXPECT_GE(with_head, 6);
}

// Linear layers that are codes, those of heads and their tables, too. What is an embedding stays as it is. The heads'
// tensors have NVIDIA's names.
TEST(QuantisedParity, DraftersAreTheirWidenedWeights) {
  const auto is_linear = [](const std::string& name) {
    return name.find("norm") == std::string::npos && name != "markov_head.markov_w1.weight" && name != "lm_head.weight";
  };
  for (const std::string name :
       {"one_layer", "selector", "selector_causal", "markov_vanilla", "markov_gated", "markov_rnn"}) {
    DrafterFixture plain(name);
    const auto features = plain.context(9);
    const std::vector<TokenId> block = plain.block(9);
    for (const weights::TestCoding& coding : weights::kTestCodings) {
      const weights::CodedFolders made(plain.dir, coding, is_linear, "markov_head.");
      const std::string target = "tests/data/targets/" + target_of_drafter(name);
      auto facts = *decode::dflash::read_config(made.codes());
      const auto files = weights::with_names(*weights::open_checkpoint(made.codes()), facts.names);
      const auto checked = model::check_tensors(*files, facts.params);
      EXPECT_TRUE(checked.ok()) << name << ", " << coding.name << ": " << checked.error().message;
      std::erase_if(facts.params, [](const model::Param& param) { return param.role == "hidden_norm"; });
      const auto unknown = model::check_tensors(*files, facts.params);
      ASSERT_FALSE(unknown.ok());
      EXPECT_NE(unknown.error().message.find("\"hidden_norm.weight\""), std::string::npos) << unknown.error().message;
      ModelRunner codes(target, made.codes(), ComputeType::kFloat32, 64);
      ModelRunner values(target, made.values(), ComputeType::kFloat32, 64);
      const auto hidden = values.draft_hidden(features, block);
      EXPECT_LT(relative_error(codes.draft_hidden(features, block), hidden), kTolerance) << name << ", " << coding.name;
      EXPECT_GT(relative_error(plain.model.draft_hidden(features, block), hidden), 0.1) << name << ", " << coding.name;
      if (plain.facts.selector.rank == 0) continue;
      const auto got = codes.draft_choices(features, block), wanted = values.draft_choices(features, block);
      EXPECT_EQ(got.tokens, wanted.tokens) << name << ", " << coding.name;
      if (!plain.facts.selector.confidence) continue;
      EXPECT_LT(relative_error({got.confidence}, {wanted.confidence}), kTolerance) << name << ", " << coding.name;
    }
  }
}

// Convolutions and walk go from left to right: where attention does, too, later rows change nothing.
TEST(DrafterParity, ShorterBlocksOfACausalDrafterAreItsBeginning) {
  int causal = 0;
  for (const std::string& name : folders("drafters")) {
    DrafterFixture drafter(name);
    const auto is_causal = [](const model::Layer& layer) { return std::get<model::Attention>(layer.mixer).causal; };
    if (!std::ranges::all_of(drafter.facts.decoder.layers, is_causal)) continue;
    ++causal;
    const auto context = drafter.context(9);
    const std::vector<TokenId> block = drafter.block(9);
    const auto hidden = drafter.model.draft_hidden(context, block);
    const bool walks = drafter.facts.selector.rank > 0;
    const auto chosen = walks ? drafter.model.draft_choices(context, block).tokens : std::vector<TokenId>();
    for (const int rows : {2, 3, drafter.block_size() - 1}) {
      const auto fewer = std::span(block).first(static_cast<size_t>(rows));
      EXPECT_EQ(drafter.model.draft_hidden(context, fewer), std::vector(hidden.begin(), hidden.begin() + rows)) << name;
      if (!walks) continue;
      EXPECT_EQ(drafter.model.draft_choices(context, fewer).tokens,
                std::vector<TokenId>(chosen.begin(), chosen.begin() + rows - drafter.facts.first_proposal))
          << name << ", " << rows;
    }
  }
  EXPECT_GE(causal, 3);
}

}  // namespace
}  // namespace volley::testing

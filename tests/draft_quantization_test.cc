// A quantised drafter, and one that proposes part of the vocabulary: the text is that of plain decoding, and the
// proposals are nearly as good as the full ones.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/temp_folder_for_test.h"
#include "harness.h"

namespace volley::testing {
namespace {

struct Answers {
  std::vector<std::vector<TokenId>> tokens;
  double tokens_per_step = 0;
};

Answers answer(Engine& engine, float temperature) {
  std::vector<GenerateRequest> requests;
  const auto cases = read_prompts("mixed_prompts.jsonl", 24);
  for (size_t i = 0; i < cases.size(); ++i) {
    requests.push_back(chat_request(engine, cases[i].prompt, 144));
    requests.back().sampling.temperature = temperature;
    requests.back().sampling.seed = 1000 + i;
  }
  Answers result;
  for (const Output& out : run_all(engine, std::move(requests), 8)) result.tokens.push_back(out.tokens);
  const EngineStats stats = engine.stats();
  result.tokens_per_step = 1 + static_cast<double>(stats.accepted_tokens) / static_cast<double>(stats.verify_steps);
  return result;
}

// A network of noise would give one token a step; the pocket pair's full drafter, several.
TEST(DraftQuantization, KeepsTheTextAndNearlyAllAcceptance) {
  EngineOptions options = pocket_options();
  options.max_num_seqs = 8;
  options.dtype = ComputeType::kBFloat16;
  options.draft_quantization = DraftQuantization::kFp8;
  const auto probe = Engine::create(options);
  if (!probe.ok() && probe.error().code == ErrorCode::kUnimplemented) GTEST_SKIP() << probe.error().message;
  options.draft_quantization = DraftQuantization::kAuto;
  EXPECT_EQ(make_engine(options)->info().draft_quantization, "fp8");
  for (const float temperature : {0.0f, 0.8f}) {
    const auto run_with = [&](Speculation speculation, DraftQuantization quantization, const std::string& used) {
      options.speculation = speculation;
      options.draft_quantization = quantization;
      const auto engine = make_engine(options);
      EXPECT_EQ(engine->info().draft_quantization, used);
      return answer(*engine, temperature);
    };
    const Answers plain = run_with(Speculation::kOff, DraftQuantization::kFp8, "");
    const Answers full = run_with(Speculation::kOn, DraftQuantization::kNone, "none");
    const Answers quantised = run_with(Speculation::kOn, DraftQuantization::kFp8, "fp8");
    EXPECT_EQ(quantised.tokens, plain.tokens);
    EXPECT_EQ(full.tokens, plain.tokens);
    std::printf("temperature %.1f: %.3f tokens a step with all of the drafter's bits, %.3f with fp8\n", temperature,
                full.tokens_per_step, quantised.tokens_per_step);
    EXPECT_GT(full.tokens_per_step, 2);
    EXPECT_GT(quantised.tokens_per_step, 0.95 * full.tokens_per_step);
  }
}

// A drafter that proposes only the first tokens of the vocabulary: the others come from the target alone.
TEST(ProposedVocabulary, KeepsTheText) {
  EngineOptions options = pocket_options();
  options.max_num_seqs = 8;
  TempFolder folder;
  std::filesystem::copy(options.draft_dir, folder.path(), std::filesystem::copy_options::recursive);
  auto config = nlohmann::json::parse(std::ifstream(options.draft_dir + "/config.json"));
  const Answers full = answer(*make_engine(options), 0.8f);
  config["dflash_config"]["proposed_vocab_size"] = 1000;
  folder.write("config.json", config.dump());
  options.draft_dir = folder.path();
  const Answers some = answer(*make_engine(options), 0.8f);
  EXPECT_EQ(some.tokens, full.tokens);
  EXPECT_GT(some.tokens_per_step, 1.2) << "of " << full.tokens_per_step;
  if (kTestDevice == "cpu") EXPECT_LT(some.tokens_per_step, full.tokens_per_step);  // a GPU proposes all of them
}

// Arithmetic in float32 is for checking: nothing is quantised unless asked for.
TEST(DraftQuantization, Float32IsLeftAlone) {
  EngineOptions options = pocket_options();
  options.dtype = ComputeType::kFloat32;
  EXPECT_EQ(make_engine(options)->info().draft_quantization, "none");
}

}  // namespace
}  // namespace volley::testing

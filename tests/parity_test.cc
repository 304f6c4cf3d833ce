// Models in float32 against references computed elsewhere (tests/data/README.md): targets against transformers,
// drafters against scripts/dflash_reference.py. Runs the forward pass that the engine runs.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "fixtures.h"
#include "model_runner.h"

namespace volley::testing {
namespace {

// ||a - b|| / ||b|| over all rows.
double relative_error(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  VOLLEY_CHECK_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    VOLLEY_CHECK_EQ(a[i].size(), b[i].size());
    for (size_t j = 0; j < a[i].size(); ++j) {
      difference += std::pow(double{a[i][j]} - double{b[i][j]}, 2);
      norm += std::pow(double{b[i][j]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

// Both sides are fp32 arithmetic in different orders: a few ulp of rounding remain (1.6e-7 to 8.3e-7 on CPUs and GPUs),
// far below the 1e-3 that one wrong rotation, norm or head would give.
constexpr double kTolerance = 1e-6;

TEST(TargetParity, LogitsAreThoseOfTransformers) {
  const auto names = folders("targets");
  ASSERT_GE(names.size(), 17u);
  for (const std::string& name : names) {
    const std::string dir = "tests/data/targets/" + name;
    const Fixture expected(dir + "/expected");
    ModelRunner model(dir, "", ComputeType::kFloat32, 64);
    const auto ids = expected.ids("prompt_ids", 40);
    const auto reference = expected.matrix("logits", 40, model.spec().vocab);
    const auto logits = model.logits(ids);
    const double error = relative_error(logits, reference);
    std::printf("%-18s relative error %.1e\n", name.c_str(), error);
    EXPECT_LT(error, kTolerance) << name;
    // In chunks that fit neither pages nor tiles the bits stay the same.
    EXPECT_EQ(model.logits(ids, 7), logits) << name;
  }
}

// Greedy answers through the engine, of every family: 64 tokens, windows shorter than the prompt among them.
TEST(TargetParity, AnswersAreThoseOfTransformers) {
  int with_answer = 0;
  for (const std::string& name : folders("targets")) {
    const std::string dir = "tests/data/targets/" + name;
    const Fixture expected(dir + "/expected");
    if (!expected.has("greedy_ids")) continue;  // made before answers were kept
    ++with_answer;
    EngineOptions options;
    options.model_dir = dir;
    options.skip_tokenizer = true;
    options.device = kTestDevice;
    options.speculation = Speculation::kOff;
    options.dtype = ComputeType::kFloat32;
    options.threads = 1;
    options.max_num_seqs = 1;
    const auto engine = make_engine(options);
    GenerateRequest request;
    request.prompt = expected.ids("prompt_ids", 40);
    request.max_tokens = 64;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sampling.repetition_penalty = 1.5f;  // as in make_fixtures.py
    const auto outputs = run_all(*engine, {request}, 1);
    EXPECT_EQ(outputs[0].tokens, expected.ids("greedy_ids", 64)) << name;
  }
  EXPECT_GE(with_answer, 7);
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

struct DrafterCase {
  std::string name, target;
  int block, features;
};

TEST(DrafterParity, HiddenStatesAreThoseOfTheReference) {
  const std::vector<DrafterCase> cases = {
      {"one_layer", "plain", 8, 1},
      {"three_features", "sharded", 16, 3},
      {"window_bidirectional", "narrow_fp32", 16, 2},
      {"window_causal", "wide_heads_yarn", 4, 1},
      {"causal", "mha_llama3", 8, 2},
      {"own_rope", "deep_yarn", 4, 2},
      {"speculators", "llama_llama3", 8, 2},
      {"aliases_bias", "qwen2_window", 8, 1},
      {"of_experts", "moe_mixed", 8, 2},
  };
  ASSERT_EQ(folders("drafters").size(), cases.size()) << "a fixture without a case here";
  for (const DrafterCase& c : cases) {
    const std::string dir = "tests/data/drafters/" + c.name;
    const Fixture expected(dir + "/expected");
    ModelRunner model("tests/data/targets/" + c.target, dir, ComputeType::kFloat32, 64);
    const int64_t hidden = model.spec().hidden;
    const auto features = expected.matrix("features", 40, c.features * hidden);
    for (const int context : {1, 9, 40}) {
      const std::string suffix = "." + std::to_string(context);
      const auto block = expected.ids("block_ids" + suffix, c.block);
      const auto reference = expected.matrix("hidden" + suffix, c.block, hidden);
      const auto got = model.draft_hidden({features.begin(), features.begin() + context}, block);
      const double error = relative_error(got, reference);
      std::printf("%-22s context %2d  relative error %.1e\n", c.name.c_str(), context, error);
      EXPECT_LT(error, kTolerance) << c.name << ", context " << context;
    }
  }
}

}  // namespace
}  // namespace volley::testing

// The pocket target solves its word problems, held-out ones, in every format of weights and of the cache, with
// speculation on and off alike; a quantised pair's drafts are nearly as good as the plain pair's.
#include <gtest/gtest.h>

#include "harness.h"

namespace volley::testing {
namespace {

struct Solved {
  int right = 0;
  double tokens_per_step = 0;
};

size_t problems() {
  return kSanitized ? 12 : full_matrix() ? 500 : 150;
}

// With speculation on; nullopt where the device has no such format.
std::optional<Solved> solve(Quantization quantization, KvCacheType cache = KvCacheType::kAuto) {
  auto cases = read_prompts("word_problems.jsonl");
  EXPECT_EQ(cases.size(), 500u);
  cases.resize(problems());
  EngineOptions options = pocket_options();
  options.quantization = quantization;
  options.kv_cache_dtype = cache;
  std::vector<std::vector<TokenId>> plain;
  Solved solved;
  for (const Speculation speculation : {Speculation::kOff, Speculation::kOn}) {
    options.speculation = speculation;
    auto made = Engine::create(options);
    if (!made.ok() && made.error().code == ErrorCode::kUnimplemented) return std::nullopt;
    if (!made.ok()) {
      ADD_FAILURE() << made.error().message;
      return Solved{};
    }
    Engine& engine = **made;
    std::vector<GenerateRequest> requests;
    for (const PromptCase& c : cases) requests.push_back(chat_request(engine, c.prompt));
    const auto outputs = run_all(engine, std::move(requests), 16);
    if (speculation == Speculation::kOff) {
      for (const Output& out : outputs) plain.push_back(out.tokens);
      continue;
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      solved.right += answer_value(outputs[i].text) == cases[i].expected;
      EXPECT_EQ(outputs[i].tokens, plain[i]) << "with and without speculation, problem " << i;
    }
    const EngineStats stats = engine.stats();
    solved.tokens_per_step =
        1 + static_cast<double>(stats.accepted_tokens) / static_cast<double>(std::max<int64_t>(1, stats.verify_steps));
  }
  std::printf("%d of %zu right, %.3f tokens a step\n", solved.right, cases.size(), solved.tokens_per_step);
  return solved;
}

const Solved& plain() {
  static const Solved solved = solve(Quantization::kNone).value();
  return solved;
}

// How many must be right, for so many of 500. Of a sanitizer's few one may be wrong.
int bar(int of_500) {
  const int asked = static_cast<int>(problems());
  return kSanitized ? asked - 1 : asked - (500 - of_500) * asked / 500;
}

TEST(Accuracy, WordProblemsAreSolved) {
  EXPECT_GE(plain().right, bar(495));
}

TEST(Accuracy, WordProblemsAreSolvedInFp8) {
  const auto fp8 = solve(Quantization::kFp8);
  if (!fp8) GTEST_SKIP() << "fp8 is not built for this device";
  EXPECT_GE(fp8->right, bar(495));
  EXPECT_GE(fp8->tokens_per_step, (kSanitized ? 0.85 : 0.95) * plain().tokens_per_step);
}

TEST(Accuracy, WordProblemsAreSolvedWithAnFp8Cache) {
  const auto fp8 = solve(Quantization::kNone, KvCacheType::kFp8);
  ASSERT_TRUE(fp8.has_value());
  EXPECT_GE(fp8->right, bar(495));
  EXPECT_GE(fp8->tokens_per_step, (kSanitized ? 0.85 : 0.95) * plain().tokens_per_step);
}

TEST(Accuracy, WordProblemsAreSolvedInInt4) {
  const auto int4 = solve(Quantization::kInt4);
  if (!int4) GTEST_SKIP() << "int4 is not built for this device";
  EXPECT_GE(int4->right, bar(485));
}

}  // namespace
}  // namespace volley::testing

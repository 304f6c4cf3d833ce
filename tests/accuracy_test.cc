// The pocket target solves its word problems, with speculation on and off alike: 500 held-out problems.
#include <gtest/gtest.h>

#include "harness.h"

namespace volley::testing {
namespace {

std::vector<Output> solve(Speculation speculation, const std::vector<PromptCase>& cases) {
  EngineOptions options = pocket_options();
  options.speculation = speculation;
  const auto engine = make_engine(options);
  std::vector<GenerateRequest> requests;
  for (const PromptCase& c : cases) requests.push_back(chat_request(*engine, c.prompt));
  return run_all(*engine, std::move(requests), 16);
}

TEST(Accuracy, WordProblemsAreSolved) {
  const auto cases = read_prompts("word_problems.jsonl", 12);
  ASSERT_EQ(cases.size(), kSanitized ? 12u : 500u);
  const auto with = solve(Speculation::kOn, cases), without = solve(Speculation::kOff, cases);
  int right = 0, differ = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    right += answer_value(with[i].text) == cases[i].expected;
    differ += with[i].tokens != without[i].tokens;
  }
  std::printf("%d of %zu right, %d differ between speculation on and off\n", right, cases.size(), differ);
  EXPECT_GE(right, 0.99 * static_cast<double>(cases.size()));
  EXPECT_EQ(differ, 0);
}

}  // namespace
}  // namespace volley::testing

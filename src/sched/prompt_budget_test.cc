#include "sched/prompt_budget.h"

#include <gtest/gtest.h>

#include "sched/scheduler_testing.h"

namespace volley::sched {
namespace {

// A row sees the positions before it and itself, so a chunk far into a prompt costs more than one at its beginning.
TEST(PromptBudget, CostsWhatItsRowsSee) {
  const PromptBudget budget{.seconds = 1, .row = 0.5, .position = 0.25};
  EXPECT_DOUBLE_EQ(budget.cost(0, 1), 0.5 + 0.25);
  EXPECT_DOUBLE_EQ(budget.cost(0, 3), 3 * 0.5 + 0.25 * (1 + 2 + 3));
  EXPECT_DOUBLE_EQ(budget.cost(10, 2), 2 * 0.5 + 0.25 * (11 + 12));
  EXPECT_EQ(budget.cost(10, 0), 0);
}

// rows_within() is the inverse of cost(): one row more would cost too much.
TEST(PromptBudget, FindsTheMostRowsThatFit) {
  for (const double position : {0.0, 1e-9, 1e-6, 1e-3}) {
    const PromptBudget budget{.seconds = 1, .row = 1e-4, .position = position};
    for (const int32_t start : {0, 1, 100, 32'000}) {
      for (const double allowed : {0.0, 1e-5, 3e-3, 0.025, 0.7}) {
        const int32_t rows = budget.rows_within(allowed, start, 2048);
        EXPECT_LE(budget.cost(start, rows), allowed) << position << " " << start << " " << allowed;
        if (rows < 2048) {
          EXPECT_GT(budget.cost(start, rows + 1), allowed) << position << " " << start << " " << allowed;
        }
      }
    }
  }
  const PromptBudget free;
  EXPECT_EQ(free.rows_within(free.seconds, 5, 300), 300) << "rows that cost nothing are not bounded";
}

TEST(PromptAllowance, GoesFromPromptToPromptUntilItIsSpent) {
  PromptAllowance allowance({.seconds = 100, .row = 1}, true);
  EXPECT_EQ(allowance.take(0, 60), 60);
  EXPECT_FALSE(allowance.empty());
  EXPECT_EQ(allowance.take(0, 60), 40);
  EXPECT_TRUE(allowance.empty());
}

// Every step computes some rows of a prompt, however expensive, and no step is cut into tiny segments.
TEST(PromptAllowance, AlwaysComputesSomeRowsOfTheFirstPrompt) {
  PromptAllowance dear({.seconds = 1, .row = 5}, true);
  EXPECT_EQ(dear.take(0, 100), PromptAllowance::kLeastRows);
  EXPECT_TRUE(dear.empty());
  EXPECT_EQ(dear.take(0, 100), 0);
  PromptAllowance short_prompt({.seconds = 1, .row = 5}, true);
  EXPECT_EQ(short_prompt.take(0, 3), 3);
  PromptAllowance crumbs({.seconds = 20, .row = 1}, true);
  EXPECT_EQ(crumbs.take(0, 15), 15);
  EXPECT_EQ(crumbs.take(0, 100), 0) << "five rows are not worth a segment";
  PromptAllowance none_decodes({.seconds = 1, .row = 5}, false);
  EXPECT_EQ(none_decodes.take(0, 100), 100) << "nobody waits for this step";
}

int32_t prompt_rows(const StepPlan& plan) {
  return plan.rows - plan.decode_rows;
}

// While other requests decode, prompts are computed in pieces that keep to the budget, and every prompt is finished;
// alone they are computed in whole chunks.
TEST(PromptBudgetInPlans, BoundsPromptsBesideStreams) {
  SchedulerConfig config = roomy();
  config.groups = {{.pages = 400}};
  config.max_model_len = 1000;
  config.prefill_chunk = 64;
  config.max_num_batched_tokens = 256;
  Scheduler scheduler(config);
  const PromptBudget budget{.seconds = 20, .row = 1};
  ASSERT_TRUE(scheduler.add(1, "", std::vector<TokenId>(40, 7), 300).ok());
  const StepPlan alone = scheduler.plan({}, budget);
  EXPECT_EQ(prompt_rows(alone), 40);
  scheduler.apply(std::vector<StepResult>{{1, {5}, false}});
  ASSERT_TRUE(scheduler.add(2, "", std::vector<TokenId>(90, 8), 4).ok());
  int32_t computed = 0, steps = 0;
  while (computed < 90) {
    const DecodingOutlook outlook = scheduler.decoding(budget);
    EXPECT_EQ(outlook.prompt_rows, std::min(20, 90 - computed)) << "what plan() will do";
    EXPECT_EQ(outlook.prompts_s, outlook.prompt_rows);
    EXPECT_EQ(outlook.prompts_wait, 90 - computed > 20);
    const StepPlan plan = scheduler.plan({}, budget);
    ASSERT_LE(prompt_rows(plan), 20);
    ASSERT_GT(prompt_rows(plan), 0);
    computed += prompt_rows(plan);
    std::vector<StepResult> results{{1, {5}, false}};
    if (computed == 90) results.push_back({2, {6}, false});
    scheduler.apply(results);
    ++steps;
  }
  EXPECT_EQ(steps, 5);
  scheduler.remove(1);
  scheduler.remove(2);
}

}  // namespace
}  // namespace volley::sched

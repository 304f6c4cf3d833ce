#include "engine/prompt_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace volley::engine {
namespace {

// A machine: what a step takes. Rows are free until the weights' reading no longer hides them, as on a GPU.
struct Machine {
  double base, row, position;
  int32_t free_rows = 0;
  double noise = 0;
  double seconds(int32_t decode_rows, int32_t start, int32_t rows, std::mt19937& random) const {
    const double positions = sched::PromptBudget{.position = 1}.cost(start, rows);
    const double base_s = decode_rows > 0 ? base : 0;
    const double exact = base_s + row * std::max(0, rows - free_rows) + position * positions;
    return exact * std::exp(std::normal_distribution<double>(0, noise)(random));
  }
};

sched::StepPlan plan_of(int32_t decode_rows, int32_t start, int32_t rows) {
  sched::StepPlan plan;
  if (decode_rows > 0) plan.segments.push_back({.id = 1, .known = 1, .chooses = true, .decodes = true});
  if (rows > 0) plan.segments.push_back({.id = 2, .start = start, .known = rows});
  plan.decode_rows = decode_rows;
  plan.rows = decode_rows + rows;
  return plan;
}

struct Steps {
  std::vector<double> seconds;
  std::vector<int32_t> rows;
};

// Streams alone, then one prompt of `length` after the other beside them.
Steps run(PromptPace& pace, const Machine& machine, int32_t length, int steps) {
  std::mt19937 random(5);
  Steps out;
  for (int i = 0; i < 20; ++i) pace.observe(plan_of(64, 0, 0), machine.seconds(64, 0, 0, random));
  int32_t start = 0;
  for (int i = 0; i < steps; ++i) {
    sched::PromptAllowance allowance(pace.next(), true);
    const int32_t rows = allowance.take(start, std::min(2048, length - start));
    const double seconds = machine.seconds(64, start, rows, random);
    pace.observe(plan_of(64, start, rows), seconds);
    out.seconds.push_back(seconds);
    out.rows.push_back(rows);
    start = start + rows >= length ? 0 : start + rows;
  }
  return out;
}

// Steps come near the target and stay there, from the beginning of a prompt of 32k tokens to its end, where a row costs
// twice as much as at its beginning; on machines a hundred times apart.
TEST(PromptPace, KeepsStepsAtTheTarget) {
  const Machine gpu{.base = 4e-3, .row = 30e-6, .position = 0.7e-9, .free_rows = 100, .noise = 0.03};
  const Machine slow{.base = 60e-3, .row = 4e-3, .position = 60e-9, .noise = 0.1};
  struct Case {
    const char* name;
    Machine machine;
    double target;
  };
  for (const Case& c : {Case{"gpu 15 ms", gpu, 15e-3}, Case{"gpu 25 ms", gpu, 25e-3}, Case{"gpu 50 ms", gpu, 50e-3},
                        Case{"slow 500 ms", slow, 0.5}}) {
    PromptPace pace(c.target);
    Steps steps = run(pace, c.machine, 32'768, 600);
    // The first steps are careful, and no step before the machine is known takes several times the target.
    EXPECT_LT(*std::ranges::max_element(steps.seconds), 2 * c.target) << c.name;
    std::vector<double> later(steps.seconds.begin() + 50, steps.seconds.end());
    std::ranges::sort(later);
    EXPECT_LT(later[later.size() * 95 / 100], 1.25 * c.target) << c.name;
    EXPECT_GT(later[later.size() / 2], 0.8 * c.target) << c.name << ": prompts get what there is";
  }
}

// Nothing is said of what was not seen. Once steps with prompts and without have been, one in twenty is shorter, and
// none takes much longer.
TEST(PromptPace, KnowsWhatAStepTakesAtLeast) {
  std::mt19937 random(7);
  PromptPace pace(25e-3);
  Machine machine{.base = 8e-3, .row = 30e-6, .position = 0.7e-9, .noise = 0.03};
  EXPECT_LT(pace.at_least(plan_of(64, 0, 0)), 1e-3) << "nothing was seen yet";
  run(pace, machine, 8192, 100);
  int shorter = 0;
  for (int i = 0; i < 400; ++i) {
    const int32_t rows = i % 3 == 0 ? 0 : 200 + i;
    const sched::StepPlan plan = plan_of(64, 1000, rows);
    const double at_least = pace.at_least(plan), seconds = machine.seconds(64, 1000, rows, random);
    shorter += seconds < at_least ? 1 : 0;
    if (i >= 3) EXPECT_GT(at_least, 0.5 * seconds) << i;
    pace.observe(plan, seconds);
    machine.base *= i % 40 < 20 ? 1.05 : 1 / 1.05;  // the load comes and goes
  }
  EXPECT_LE(shorter, 20);
  EXPECT_LT(pace.at_least(plan_of(1, 0, 0)), 0.05 * machine.base) << "nearly all have ended";
  EXPECT_EQ(PromptPace(0).at_least(plan_of(64, 0, 100)), 0);
}

// A step whose streams alone take longer than the target still computes prompts.
TEST(PromptPace, LeavesPromptsTheirShare) {
  PromptPace pace(10e-3);
  const Machine machine{.base = 30e-3, .row = 30e-6, .position = 0};
  const Steps steps = run(pace, machine, 4096, 100);
  EXPECT_GT(steps.rows.back(), 40) << "a fifth of the target is 66 rows";
}

// When the streams' part of a step becomes longer or shorter, prompts get less or more, and steps stay near the target.
TEST(PromptPace, FollowsTheLoad) {
  PromptPace pace(50e-3);
  Machine machine{.base = 5e-3, .row = 30e-6, .position = 0, .noise = 0.02};
  const auto last = [&] { return run(pace, machine, 100'000, 100).seconds.back(); };
  EXPECT_NEAR(last(), 50e-3, 7e-3);
  machine.base = 30e-3;
  EXPECT_NEAR(last(), 50e-3, 7e-3);
  machine.base = 5e-3;
  EXPECT_NEAR(last(), 50e-3, 7e-3);
}

TEST(PromptPace, WithoutATargetThereIsNoBound) {
  PromptPace pace(0);
  pace.observe(plan_of(4, 0, 100), 1.0);
  EXPECT_EQ(pace.next().rows_within(pace.next().seconds, 0, 2048), 2048);
  EXPECT_GT(pace.for_decoding(), 1e9);
  EXPECT_LT(PromptPace(0.1).for_decoding(), 0.5 * 0.1) << "prompts have the larger part";
}

}  // namespace
}  // namespace volley::engine

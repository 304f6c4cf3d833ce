#include "engine/run/prompt_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace volley::engine {
namespace {

// Simulates the time of a step. As on a GPU, rows are free while reading the weights hides them.
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

// Runs streams alone, then prompts of `length` beside them, one after the other.
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

// Steps stay near the target from the beginning of a prompt of 32k tokens to its end, where a row costs twice as much,
// on machines a hundred times apart.
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
    // The first steps are careful: on an unknown machine no step takes several times the target.
    EXPECT_LT(*std::ranges::max_element(steps.seconds), 2 * c.target) << c.name;
    std::vector<double> later(steps.seconds.begin() + 50, steps.seconds.end());
    std::ranges::sort(later);
    EXPECT_LT(later[later.size() * 95 / 100], 1.25 * c.target) << c.name;
    EXPECT_GT(later[later.size() / 2], 0.8 * c.target) << c.name << ": prompts get what there is";
  }
}

// Where a row costs many times the guess, one step is too long, and no more.
TEST(PromptPace, MendsAtOnceWhatTakesTooLong) {
  PromptPace pace(0.1);
  const Machine slow{.base = 45e-3, .row = 3e-3, .position = 0, .noise = 0.05};
  const Steps steps = run(pace, slow, 4096, 30);
  EXPECT_GT(steps.seconds[0], 0.3);
  EXPECT_LT(*std::max_element(steps.seconds.begin() + 1, steps.seconds.end()), 0.13);
}

// No statement is made about sizes that did not run. After steps with and without prompts, one in twenty is shorter
// than stated, and none takes much longer.
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
    machine.base *= i % 40 < 20 ? 1.05 : 1 / 1.05;  // the load varies
  }
  EXPECT_LE(shorter, 20);
  EXPECT_LT(pace.at_least(plan_of(1, 0, 0)), 0.05 * machine.base) << "nearly all have ended";
  EXPECT_EQ(PromptPace(0).at_least(plan_of(64, 0, 100)), 0);
}

// One read of the weights serves few rows or many: the time of one short prompt says little about seven.
TEST(PromptPace, IsNotSureOfMoreRowsThanItSaw) {
  constexpr int32_t kPrompt = 128, kSeven = 7 * kPrompt;
  sched::StepPlan one = plan_of(0, 0, kPrompt), seven = one;
  for (int i = 1; i < 7; ++i) seven.segments.push_back(one.segments.front());
  std::mt19937 random(7);
  const Machine machine{.base = 0, .row = 30e-6, .position = 0, .free_rows = kSeven};
  const auto seconds = [&](int32_t rows) { return 4e-3 + machine.seconds(0, 0, rows, random); };
  PromptPace pace(25e-3);
  const auto see_short_ones = [&] {
    for (int i = 0; i < 40; ++i) pace.observe(one, seconds(kPrompt));
  };
  see_short_ones();
  EXPECT_GT(pace.at_least(one), 0.7 * seconds(kPrompt));
  EXPECT_LE(pace.at_least(seven), seconds(kSeven));
  pace.observe(seven, seconds(kSeven));
  see_short_ones();
  EXPECT_LE(pace.at_least(seven), seconds(kSeven)) << "it was seen long ago";
  for (int i = 0; i < 40; ++i) pace.observe(seven, seconds(kSeven));
  EXPECT_GT(pace.at_least(seven), 0.7 * seconds(kSeven));
}

// A step whose streams alone exceed the target still computes prompts.
TEST(PromptPace, LeavesPromptsTheirShare) {
  PromptPace pace(10e-3);
  const Machine machine{.base = 30e-3, .row = 30e-6, .position = 0};
  const Steps steps = run(pace, machine, 4096, 100);
  EXPECT_GT(steps.rows.back(), 40) << "a fifth of the target is 66 rows";
}

// As the streams' part grows or shrinks, prompts get less or more, and steps stay near the target.
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

// The streams' part jumps, because they draft only in some steps, but a prediction announces it with a small error.
TEST(PromptPace, KnowsThePredictedPart) {
  std::mt19937 random(7);
  PromptPace pace(25e-3, true);
  std::vector<double> later;
  for (int i = 0; i < 300; ++i) {
    const double predicted = i % 3 == 0 ? 12e-3 : 5e-3;
    const Machine machine{.base = 1.1 * predicted, .row = 30e-6, .position = 0.7e-9, .noise = 0.03};
    const int32_t rows = pace.next(predicted).rows_within(pace.next(predicted).seconds, 0, 2048);
    const double seconds = machine.seconds(64, 0, rows, random);
    pace.observe(plan_of(64, 0, rows), seconds, predicted);
    if (i < 50) continue;
    later.push_back(seconds);
    EXPECT_NEAR(pace.at_least(plan_of(64, 0, rows), predicted), 0.8 * seconds, 0.2 * seconds) << i;
  }
  std::ranges::sort(later);
  EXPECT_GT(later[later.size() / 20], 0.85 * 25e-3);
  EXPECT_LT(later[later.size() * 19 / 20], 1.15 * 25e-3);
}

// Drafts may take what prompts leave, or at least their own small part.
TEST(PromptPace, DraftsComeAfterPrompts) {
  const PromptPace pace(0.1);
  EXPECT_DOUBLE_EQ(pace.for_decoding(0.03), 0.07);
  EXPECT_DOUBLE_EQ(pace.for_decoding(0.1), 0.015);
}

// The predictions are too low by a fifth.
TEST(PromptPace, BoundsDraftsByWhatTheyReallyTake) {
  PromptPace pace(0.1, true);
  for (int i = 0; i < 200; ++i) pace.observe(plan_of(64, 0, 0), 1.2 * 0.02, 0.02);
  EXPECT_NEAR(pace.for_decoding(0.04), 0.06 / 1.2, 1e-3);
  EXPECT_NEAR(pace.next(0.05).seconds, 0.1 - 1.2 * 0.05, 1e-3);
}

// The estimate relies on no longer decoding than was seen, because the prediction may be wrong there.
TEST(PromptPace, IsNotSureOfLongerDecodingThanItSaw) {
  PromptPace pace(25e-3, true);
  EXPECT_EQ(pace.at_least(plan_of(64, 0, 0), 20e-3), 0) << "nothing was seen yet";
  for (int i = 0; i < 50; ++i) pace.observe(plan_of(64, 0, 0), 5e-3, 5e-3);
  EXPECT_NEAR(pace.at_least(plan_of(64, 0, 0), 5e-3), 4.5e-3, 0.4e-3);
  EXPECT_LE(pace.at_least(plan_of(64, 0, 0), 20e-3), 5e-3);
  pace.observe(plan_of(64, 0, 0), 20e-3, 20e-3);
  EXPECT_GT(pace.at_least(plan_of(64, 0, 0), 20e-3), 15e-3);
}

TEST(PromptPace, WithoutATargetThereIsNoBound) {
  PromptPace pace(0);
  pace.observe(plan_of(4, 0, 100), 1.0);
  EXPECT_EQ(pace.next().rows_within(pace.next().seconds, 0, 2048), 2048);
  EXPECT_GT(pace.for_decoding(1), 1e9);
}

}  // namespace
}  // namespace volley::engine

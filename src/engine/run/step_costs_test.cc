// Protects: steps with prompts stay near the target step time, by costs that the steps teach.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "decode/budget/cost_model.h"
#include "sched/prompt_budget.h"

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

decode::RoundShape shape_of(int32_t decode_rows, int32_t start, int32_t rows) {
  return {.requests = decode_rows > 0 ? 1 : 0,
          .verify_rows = decode_rows,
          .other_rows = rows,
          .other_positions = static_cast<int64_t>(sched::PromptBudget{.position = 1}.cost(start, rows))};
}

// As the worker has them.
class Pace {
 public:
  explicit Pace(double target_s, decode::CostModel costs = {}) : target_{target_s}, costs_(std::move(costs)) {
    costs_.expect_steps(target_s, costs_.measured());
  }
  sched::PromptBudget next(int32_t decode_rows = 64) const {
    const auto [row, position] = costs_.prompt_price();
    return target_.prompts(costs_.decoding(shape_of(decode_rows, 0, 0)), row, position);
  }
  double at_least(const decode::RoundShape& shape) const { return costs_.at_least(shape); }
  void observe(const decode::RoundShape& shape, double seconds) { costs_.observe(shape, {0, seconds}); }
  double decoding(int32_t rows) const { return costs_.decoding(shape_of(rows, 0, 0)); }

 private:
  sched::TargetStep target_;
  decode::CostModel costs_;
};

// The device takes 0.1 ms for each row.
constexpr double kRowSeconds = 1e-4;
decode::CostModel measured() {
  return decode::CostModel({{shape_of(1, 0, 0), {0, kRowSeconds}}, {shape_of(200, 0, 0), {0, 200 * kRowSeconds}}}, {});
}

struct Steps {
  std::vector<double> seconds;
  std::vector<int32_t> rows;
};

// Streams alone, then one prompt of `length` after the other beside them.
Steps run(Pace& pace, const Machine& machine, int32_t length, int steps) {
  std::mt19937 random(5);
  Steps out;
  for (int i = 0; i < 20; ++i) pace.observe(shape_of(64, 0, 0), machine.seconds(64, 0, 0, random));
  int32_t start = 0;
  for (int i = 0; i < steps; ++i) {
    sched::PromptAllowance allowance(pace.next(), true);
    const int32_t rows = allowance.take(start, std::min(2048, length - start));
    const double seconds = machine.seconds(64, start, rows, random);
    pace.observe(shape_of(64, start, rows), seconds);
    out.seconds.push_back(seconds);
    out.rows.push_back(rows);
    start = start + rows >= length ? 0 : start + rows;
  }
  return out;
}

// Steps come near the target and stay there, from the beginning of a prompt of 32k tokens to its end, where a row costs
// twice as much as at its beginning; on machines a hundred times apart.
TEST(StepCosts, KeepStepsAtTheTarget) {
  const Machine gpu{.base = 4e-3, .row = 30e-6, .position = 0.7e-9, .free_rows = 100, .noise = 0.03};
  const Machine slow{.base = 60e-3, .row = 4e-3, .position = 60e-9, .noise = 0.1};
  struct Case {
    const char* name;
    Machine machine;
    double target;
  };
  for (const Case& c : {Case{"gpu 15 ms", gpu, 15e-3}, Case{"gpu 25 ms", gpu, 25e-3}, Case{"gpu 50 ms", gpu, 50e-3},
                        Case{"slow 500 ms", slow, 0.5}}) {
    Pace pace(c.target);
    Steps steps = run(pace, c.machine, 32'768, 600);
    // The first steps are careful: on an unknown machine no step takes several times the target.
    EXPECT_LT(*std::ranges::max_element(steps.seconds), 2 * c.target) << c.name;
    std::vector<double> later(steps.seconds.begin() + 50, steps.seconds.end());
    std::ranges::sort(later);
    EXPECT_LT(later[later.size() * 95 / 100], 1.25 * c.target) << c.name;
    EXPECT_GT(later[later.size() / 2], 0.8 * c.target) << c.name << ": prompts get what there is";
  }
}

// Where a row costs many times what was guessed one step is too long, and no more.
TEST(StepCosts, AreMendedAtOnceByWhatTakesTooLong) {
  Pace pace(0.1);
  const Machine slow{.base = 45e-3, .row = 3e-3, .position = 0, .noise = 0.05};
  const Steps steps = run(pace, slow, 4096, 30);
  EXPECT_GT(steps.seconds[0], 0.3);
  EXPECT_LT(*std::max_element(steps.seconds.begin() + 1, steps.seconds.end()), 0.13);
}

// Nothing is said of what was not seen. Once steps with prompts and without have been, one in twenty is shorter, and
// none takes much longer.
TEST(StepCosts, KnowWhatAStepTakesAtLeast) {
  std::mt19937 random(7);
  Pace pace(25e-3);
  Machine machine{.base = 8e-3, .row = 30e-6, .position = 0.7e-9, .noise = 0.03};
  EXPECT_LT(pace.at_least(shape_of(64, 0, 0)), 1e-3) << "nothing was seen yet";
  run(pace, machine, 8192, 100);
  int shorter = 0;
  for (int i = 0; i < 400; ++i) {
    const int32_t rows = i % 3 == 0 ? 0 : 200 + i;
    const decode::RoundShape shape = shape_of(64, 1000, rows);
    const double at_least = pace.at_least(shape), seconds = machine.seconds(64, 1000, rows, random);
    shorter += seconds < at_least ? 1 : 0;
    if (i >= 3) EXPECT_GT(at_least, 0.5 * seconds) << i;
    pace.observe(shape, seconds);
    machine.base *= i % 40 < 20 ? 1.05 : 1 / 1.05;  // the load comes and goes
  }
  EXPECT_LE(shorter, 20);
  EXPECT_LT(pace.at_least(shape_of(1, 0, 0)), 0.05 * machine.base) << "nearly all have ended";
}

// The weights are read once for few rows or many: how long one short prompt took says little of seven.
TEST(StepCosts, AreNotSureOfMoreRowsThanWereSeen) {
  constexpr int32_t kPrompt = 128, kSeven = 7 * kPrompt;
  const decode::RoundShape one = shape_of(0, 0, kPrompt);
  decode::RoundShape seven = one;
  seven.other_rows *= 7;
  seven.other_positions *= 7;
  std::mt19937 random(7);
  const Machine machine{.base = 0, .row = 30e-6, .position = 0, .free_rows = kSeven};
  const auto seconds = [&](int32_t rows) { return 4e-3 + machine.seconds(0, 0, rows, random); };
  Pace pace(25e-3);
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

// A step whose streams alone take longer than the target still computes prompts.
TEST(StepCosts, LeavePromptsTheirShare) {
  Pace pace(10e-3);
  const Machine machine{.base = 30e-3, .row = 30e-6, .position = 0};
  const Steps steps = run(pace, machine, 4096, 100);
  EXPECT_GT(steps.rows.back(), 40) << "a fifth of the target is 66 rows";
}

// When the streams' part of a step becomes longer or shorter, prompts get less or more, and steps stay near the target.
TEST(StepCosts, FollowTheLoad) {
  Pace pace(50e-3);
  Machine machine{.base = 5e-3, .row = 30e-6, .position = 0, .noise = 0.02};
  const auto last = [&] { return run(pace, machine, 100'000, 100).seconds.back(); };
  EXPECT_NEAR(last(), 50e-3, 7e-3);
  machine.base = 30e-3;
  EXPECT_NEAR(last(), 50e-3, 7e-3);
  machine.base = 5e-3;
  EXPECT_NEAR(last(), 50e-3, 7e-3);
}

// The streams' part jumps, as they draft in one step and not in the next, but it is predicted, if a little wrong.
TEST(StepCosts, KnowThePredictedPart) {
  std::mt19937 random(7);
  Pace pace(25e-3, measured());
  std::vector<double> later;
  for (int i = 0; i < 300; ++i) {
    const int32_t decoding = i % 3 == 0 ? 120 : 50;
    const Machine machine{.base = 1.1 * kRowSeconds * decoding, .row = 30e-6, .position = 0.7e-9, .noise = 0.03};
    const sched::PromptBudget budget = pace.next(decoding);
    const int32_t rows = budget.rows_within(budget.seconds, 0, 2048);
    const double seconds = machine.seconds(decoding, 0, rows, random);
    pace.observe(shape_of(decoding, 0, rows), seconds);
    if (i < 50) continue;
    later.push_back(seconds);
    EXPECT_NEAR(pace.at_least(shape_of(decoding, 0, rows)), 0.8 * seconds, 0.2 * seconds) << i;
  }
  std::ranges::sort(later);
  EXPECT_GT(later[later.size() / 20], 0.85 * 25e-3);
  EXPECT_LT(later[later.size() * 19 / 20], 1.15 * 25e-3);
}

// Drafts may take what prompts leave, and where these leave nothing, their own small part.
TEST(StepCosts, DraftsComeAfterPrompts) {
  constexpr sched::TargetStep kTarget{0.1};
  EXPECT_DOUBLE_EQ(kTarget.decoding(0.03), 0.07);
  EXPECT_DOUBLE_EQ(kTarget.decoding(0.1), 0.015);
}

// Where that is a fifth more than was measured.
TEST(StepCosts, CountWhatDecodingReallyTakes) {
  Pace pace(0.1, measured());
  for (int i = 0; i < 200; ++i) pace.observe(shape_of(200, 0, 0), 1.2 * 0.02);
  EXPECT_NEAR(pace.decoding(200), 1.2 * 0.02, 1e-3);
  EXPECT_NEAR(pace.next(200).seconds, 0.1 - 1.2 * 0.02, 1e-3);
}

// No longer decoding is relied on than was seen: the prediction may be wrong there.
TEST(StepCosts, AreNotSureOfLongerDecodingThanWasSeen) {
  Pace pace(25e-3, measured());
  EXPECT_EQ(pace.at_least(shape_of(200, 0, 0)), 0) << "nothing was seen yet";
  for (int i = 0; i < 50; ++i) pace.observe(shape_of(50, 0, 0), 5e-3);
  EXPECT_NEAR(pace.at_least(shape_of(50, 0, 0)), 4.5e-3, 0.4e-3);
  EXPECT_LE(pace.at_least(shape_of(200, 0, 0)), 5e-3);
  pace.observe(shape_of(200, 0, 0), 20e-3);
  EXPECT_GT(pace.at_least(shape_of(200, 0, 0)), 15e-3);
}

TEST(StepCosts, WithoutATargetThereIsNoBound) {
  Pace pace(0);
  pace.observe(shape_of(4, 0, 100), 1.0);
  EXPECT_EQ(pace.next().rows_within(pace.next().seconds, 0, 2048), 2048);
  EXPECT_EQ(pace.at_least(shape_of(4, 0, 100)), 0);
  EXPECT_GT(sched::TargetStep{}.decoding(1), 1e9);
}

// A new target finds the costs that were learned under the old one.
TEST(StepCosts, DoNotGoByTheTarget) {
  decode::CostModel costs;
  costs.expect_steps(0.1, false);
  for (int i = 0; i < 50; ++i) costs.observe(shape_of(0, 0, 100), {0, 100 * kRowSeconds});
  const double row = costs.prompt_price().row;
  costs.expect_steps(1, false);
  EXPECT_EQ(costs.prompt_price().row, row);
}

}  // namespace
}  // namespace volley::engine

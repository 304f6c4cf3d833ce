// Protects the figures of a window of the engine's counters.
#include "apps/bench/stats_window.h"

#include <gtest/gtest.h>

namespace volley::apps {
namespace {

EngineStats later(const EngineStats& before) {
  EngineStats after = before;
  after.steps += 10;
  after.generated_tokens += 80;
  after.device_s += 2;
  after.idle_s += 0.25;
  after.host_s += 0.5;
  EngineStats::Verify& verify = after.verify;
  verify.steps += 8;
  verify.probes += 1;
  verify.plain += 2;
  verify.rows += 200;
  verify.expected_tokens += 60;
  verify.draft_lengths = {2 + (before.verify.draft_lengths.empty() ? 0 : before.verify.draft_lengths[0]), 0, 0, 6};
  verify.verified_at = {50, 40};
  verify.survived_at = {45, 30};
  verify.predicted_at = {44.5, 29};
  return after;
}

TEST(StatsWindow, CountsWhatWasAdded) {
  EngineStats before;
  before.steps = 5;
  before.generated_tokens = 7;
  before.verify.steps = 3;
  before.verify.draft_lengths = {3};
  before.verify.verified_at = {10};
  before.verify.survived_at = {5};
  before.verify.predicted_at = {4.5};
  const StatsWindow window = window_between(before, later(before), {.on_cpu = false, .simulated = false});
  EXPECT_EQ(window.steps, 10);
  EXPECT_EQ(window.probes, 1);
  EXPECT_EQ(window.plain, 2);
  EXPECT_DOUBLE_EQ(window.seconds, 2.25);
  EXPECT_DOUBLE_EQ(window.tok_s(), 80 / 2.25);
  EXPECT_DOUBLE_EQ(window.step_ms(), 225);
  EXPECT_DOUBLE_EQ(window.draft, 18.0 / 8);
  EXPECT_DOUBLE_EQ(window.rows, 25);
  ASSERT_EQ(window.survival.size(), 2u);
  EXPECT_EQ(window.survival[0].verified, 40);
  EXPECT_EQ(window.survival[0].survived, 40);
  EXPECT_DOUBLE_EQ(window.survival[0].predicted, 40);
  EXPECT_EQ(window.survival[1].verified, 40);
}

TEST(StatsWindow, TheHostsTimeIsBetweenTheStepsOfACpu) {
  const EngineStats before;
  EXPECT_DOUBLE_EQ(window_between(before, later(before), {.on_cpu = true, .simulated = false}).seconds, 2.75);
}

TEST(StatsWindow, SimulatedAcceptanceCountsExpectedTokens) {
  const EngineStats before;
  EXPECT_DOUBLE_EQ(window_between(before, later(before), {.on_cpu = false, .simulated = true}).tokens, 60);
}

TEST(StatsWindow, NoStepsDivideByNothing) {
  const EngineStats stats = later({});
  const StatsWindow window = window_between(stats, stats, {});
  EXPECT_EQ(window.tok_s(), 0);
  EXPECT_EQ(window.step_ms(), 0);
  EXPECT_EQ(window.draft, 0);
  EXPECT_EQ(window.rows, 0);
}

}  // namespace
}  // namespace volley::apps

// Protects: a hanging GPU is found within seconds, and long computing does not count as a hang.
#include "engine/run/step_timeout.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "decode/proposers.h"
#include "engine/run/watchdog.h"
#include "families/family.h"

namespace volley::engine {
namespace {

ResolvedModels eight_billion(DeviceKind device) {
  ResolvedModels models;
  models.device.kind = device;
  models.target = families::read_target("models/shapes/qwen3-8b").value();
  models.drafters.emplace_back().spec = decode::read_proposer("models/shapes/qwen3-8b-dflash").value();
  models.target_numerics.activation = DType::kBF16;
  return models;
}

sched::StepPlan step_of(int32_t requests, const sched::PlannedSegment& segment) {
  sched::StepPlan plan;
  plan.segments.assign(static_cast<size_t>(requests), segment);
  plan.rows = requests * (segment.known + segment.draft);
  return plan;
}

double seconds(const StepTimeout& timeout, const sched::StepPlan& plan) {
  return timeout.least + timeout.more(plan);
}

TEST(StepTimeout, GoesByWhatAStepComputes) {
  const StepTimeout timeout = step_timeout({}, eight_billion(DeviceKind::kCuda));
  EXPECT_LT(seconds(timeout, step_of(1, {.start = 4000, .known = 1, .draft = 15})), 4.5);
  EXPECT_LT(seconds(timeout, step_of(8, {.start = 4000, .known = 1, .draft = 15})), 5);
  // These 8,192 rows of a prompt behind 120,000 positions take 2 s at 400 TFLOP/s.
  EXPECT_GT(seconds(timeout, step_of(1, {.start = 120'000, .known = 8192})), 20);
  const double rows = 2048, prompt = seconds(timeout, step_of(1, {.known = 2048}));
  EXPECT_NEAR(prompt, timeout.least + rows * 2 * 9.3e9 / 5e12 + rows * rows * 41 * 4 * 4096 / 5e12, 0.5);
  ResolvedModels exact = eight_billion(DeviceKind::kCuda);
  exact.target_numerics.activation = DType::kF32;
  EXPECT_NEAR(seconds(step_timeout({}, exact), step_of(1, {.known = 2048})) - timeout.least,
              10 * (prompt - timeout.least), 1e-6);
  EngineOptions patient;
  patient.grammar_mask_timeout_ms = 30'000;
  EXPECT_NEAR(step_timeout(patient, exact).least, 63.5, 1e-9) << "a step that waits for masks does not hang";
}

TEST(StepTimeout, OfDevicesThatWaitForOthersIsFixed) {
  const sched::StepPlan much = step_of(8, {.start = 100'000, .known = 2048});
  ResolvedModels models = eight_billion(DeviceKind::kCuda);
  models.nodes = 2;
  EXPECT_EQ(seconds(step_timeout({}, models), much), 60);
  models.nodes = 1;
  models.expert_replicas = 2;
  EXPECT_EQ(seconds(step_timeout({}, models), much), 60);
  EXPECT_EQ(seconds(step_timeout({}, eight_billion(DeviceKind::kCpu)), much), 1800);
}

TEST(StepTimeout, AnOptionHoldsWhateverAStepIs) {
  EngineOptions options;
  options.step_timeout_s = 7;
  EXPECT_EQ(seconds(step_timeout(options, eight_billion(DeviceKind::kCuda)), step_of(8, {.known = 2048})), 7);
  options.step_timeout_s = 0;
  EXPECT_EQ(step_timeout(options, eight_billion(DeviceKind::kCuda)).least, 0) << "no bound";
}

TEST(Watchdog, LetsAStepTakeWhatIsAllowed) {
  std::atomic<double> late{0};
  Watchdog watchdog(Watchdog::Seconds(0.2), [&](Watchdog::Seconds limit) {
    late = limit.count();
    return false;
  });
  watchdog.allow(Watchdog::Seconds(1'000'000));
  {
    const Watchdog::Step step(watchdog);
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  EXPECT_EQ(late, 0) << "it is allowed";
  const Watchdog::Step step(watchdog);
  watchdog.allow(Watchdog::Seconds(0.1));
  for (int i = 0; i < 30'000 && late == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_DOUBLE_EQ(late, 0.2 + 0.1);
}

}  // namespace
}  // namespace volley::engine

// How long the rows of prompts make a step, learned from the steps that run, and so what prompts may cost in the next
// one for it to stay under the target step time. Arithmetic only: times come in. Threads: one, the engine's.
#pragma once

#include <array>

#include "sched/prompt_budget.h"
#include "sched/scheduler.h"

namespace volley::engine {

// seconds = base + row * prompt rows + position * positions that they see
//
// base is what the step takes for those who decode; it moves with the load and with what is verified. An extended
// Kalman filter follows the logarithms of the three, with their covariances: rows and positions of a long prompt grow
// together, and it takes both its ends to tell what each of them costs. A target, not a bound: a step takes at least
// PromptAllowance::kLeastRows rows of a prompt, and what it takes without prompts is not theirs to change.
class PromptPace {
 public:
  // target_seconds: 0: none, and prompts come in whole chunks.
  explicit PromptPace(double target_seconds);

  sched::PromptBudget next() const;
  // What those who decode should take at most of a step in which prompts have to wait: drafts that take longer would
  // keep prompts from their part.
  double for_decoding() const;
  // What the device takes at least for a step behind one that has not ended: two standard deviations less than is
  // expected. 0: there is no target.
  double at_least(const sched::StepPlan& plan) const;
  // A step that ran, alone on the device.
  void observe(const sched::StepPlan& plan, double seconds);

 private:
  enum { kBase, kRow, kPosition, kCosts };
  using Vector = std::array<double, kCosts>;
  struct Expected {
    double seconds = 0;
    Vector parts = {};    // of the whole, which is also how its logarithm moves with those of the costs
    Vector known = {};    // covariance * parts
    double variance = 0;  // of the logarithm
  };
  Expected expect(const sched::StepPlan& plan) const;

  double target_;
  Vector costs_ = {};
  std::array<Vector, kCosts> covariance_ = {};  // of the costs' logarithms
  int32_t base_rows_ = 0;                       // that decoded in the last step that tells of the base
};

}  // namespace volley::engine

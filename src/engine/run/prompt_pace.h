// How long the rows of prompts make a step, learned from the steps that run, and so what prompts may cost in the next
// one for it to stay under the target step time. Arithmetic only: times come in. Threads: one, the engine's.
#pragma once

#include <array>

#include "sched/prompt_budget.h"
#include "sched/scheduler.h"

namespace volley::engine {

// seconds = base + row * prompt rows + position * positions that they see
//
// base is what the step takes for those who decode; it moves with the load and with what is verified. Where a cost
// model predicts it (decode/budget), only its factor is learned. An extended Kalman filter follows the logarithms of
// the three, with their covariances: rows and positions of a long prompt grow together, and it takes both its ends to
// tell what each of them costs. A target, not a bound: a step takes at least PromptAllowance::kLeastRows rows of a
// prompt, and what it takes without prompts is not theirs to change.
//
// decoding_s: what those who decode are predicted to take; without predictions it is ignored.
class PromptPace {
 public:
  // target_seconds: 0: none, and prompts come in whole chunks. predicted: whether there are predictions.
  explicit PromptPace(double target_seconds, bool predicted = false);

  sched::PromptBudget next(double decoding_s = 0) const;
  // What those who decode should be predicted to take at most of a step with prompts that cost prompts_s by next():
  // drafts that take longer would keep prompts from their part.
  double for_decoding(double prompts_s) const;
  // What the device takes at least for a step behind one that has not ended: two standard deviations less than is
  // expected, and for no more prompt rows and no longer decoding than were seen of late. 0: there is no target.
  double at_least(const sched::StepPlan& plan, double decoding_s = 0) const;
  // A step that ran, alone on the device.
  void observe(const sched::StepPlan& plan, double seconds, double decoding_s = 0);

 private:
  enum { kBase, kRow, kPosition, kCosts };
  using Vector = std::array<double, kCosts>;
  struct Expected {
    double seconds = 0;
    Vector parts = {};    // of the whole, which is also how its logarithm moves with those of the costs
    Vector known = {};    // covariance * parts
    double variance = 0;  // of the logarithm
  };
  double base(double decoding_s) const { return costs_[kBase] * (predicted_ ? decoding_s : 1); }
  Expected expect(const sched::StepPlan& plan, double decoding_s) const;

  double target_;
  bool predicted_;
  Vector costs_ = {};  // of the base: its factor, where it is predicted
  Vector drift_;
  std::array<Vector, kCosts> covariance_ = {};  // of the costs' logarithms
  int32_t base_rows_ = 0;                       // that decoded in the last step that tells of a base that is learned
  double prompt_rows_ = 0, decoding_s_ = 0;     // the most of a step of late
};

}  // namespace volley::engine

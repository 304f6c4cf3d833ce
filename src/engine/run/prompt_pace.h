// Learns how rows of prompts lengthen a step, from the steps that run. From that it bounds the prompt rows of the next
// step, so that it stays under the target time. Arithmetic only; callers pass times in. Threads: one, the engine's.
#pragma once

#include <array>

#include "sched/prompt_budget.h"
#include "sched/scheduler.h"

namespace volley::engine {

// Models a step as
//     seconds = base + row * prompt rows + position * positions that they see
// base is the time for decoding requests, which moves with the load and with what is verified. Where a cost model
// predicts it (decode/budget), only its factor is learned. An extended Kalman filter follows the logarithms of the
// three costs with their covariances, because rows and positions of a long prompt grow together: both its ends are
// needed to tell their costs apart. The target is no bound: a step takes at least PromptAllowance::kLeastRows rows of a
// prompt, and its time without prompts is not changed.
//
// decoding_s: predicted time of decoding requests; ignored without predictions.
class PromptPace {
 public:
  // target_seconds: 0: no target, prompts come in whole chunks. predicted: whether predictions will come.
  explicit PromptPace(double target_seconds, bool predicted = false);

  sched::PromptBudget next(double decoding_s = 0) const;
  // Bounds the predicted time of decoding requests in a step whose prompts cost prompts_s by next(). Longer drafts
  // would take the prompts' share.
  double for_decoding(double prompts_s) const;
  // The least time of a step that follows a running one: two standard deviations below the expected time, for no more
  // prompt rows and no longer decoding than recent steps had. 0: no target.
  double at_least(const sched::StepPlan& plan, double decoding_s = 0) const;
  // Learns from a step that ran alone on the device.
  void observe(const sched::StepPlan& plan, double seconds, double decoding_s = 0);

 private:
  enum { kBase, kRow, kPosition, kCosts };
  using Vector = std::array<double, kCosts>;
  struct Expected {
    double seconds = 0;
    Vector parts = {};    // shares of the total, which are also the gradient of its logarithm
    Vector known = {};    // covariance * parts
    double variance = 0;  // variance of its logarithm
  };
  double base(double decoding_s) const { return costs_[kBase] * (predicted_ ? decoding_s : 1); }
  Expected expect(const sched::StepPlan& plan, double decoding_s) const;

  double target_;
  bool predicted_;
  Vector costs_ = {};  // the base's cost (its factor where it is predicted), a row's and a position's
  Vector drift_;
  std::array<Vector, kCosts> covariance_ = {};  // covariance of the costs' logarithms
  int32_t base_rows_ = 0;                       // decoding rows of the last step that taught the unpredicted base
  double prompt_rows_ = 0, decoding_s_ = 0;     // the largest of recent steps
};

}  // namespace volley::engine

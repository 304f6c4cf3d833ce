// How long a step may take before the device is held to hang. A bound, not a prediction: decode::CostModel knows steps
// like those that it saw, and a hang must be told from one that it never saw.
#pragma once

#include <chrono>
#include <string>

#include "engine/start/models.h"
#include "sched/scheduler.h"

namespace volley::engine {

// For a step: `least`, and what its rows add, and the positions that they see. Seconds.
struct StepTimeout {
  double least = 0;  // 0: there is no bound
  double row = 0, position = 0;

  double more(const sched::StepPlan& plan) const;  // than `least`
};

// EngineOptions::step_timeout_s. Where that leaves it open: on the CPU half an hour. A GPU whose steps depend on no
// other replica and no other node has kLeastStepTimeout, the time that a step may wait for grammar masks, and the time
// of the step's arithmetic at a rate that a GPU exceeds at least tenfold (5 TFLOP/s, with fp32 0.5): so a hang ends
// every request within seconds, and a long prompt is none. Any other GPU has a minute.
StepTimeout step_timeout(const EngineOptions& options, const ResolvedModels& models);
inline constexpr double kLeastStepTimeout = 3.5;

// How long a process that loads models may neither read nor report anything; 0: for ever. A minute where requests wait
// for it, else five, as a driver may have to compile kernels; EngineOptions::step_timeout_s if that is more.
std::chrono::seconds load_silence(const EngineOptions& options, bool requests_wait);

// That a step has taken longer than so many seconds, in a sentence.
std::string step_hangs(double seconds);

}  // namespace volley::engine

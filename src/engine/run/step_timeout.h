// How long a step may take before the device is held to hang. A bound, not a prediction: decode::CostModel knows steps
// like those that it saw, and a hang must be told from one that it never saw.
#pragma once

#include <chrono>
#include <string>

#include "engine/start/models.h"
#include "sched/scheduler.h"

namespace volley::engine {

// Seconds: `least` for any step, and more for its rows and for the positions that they see.
struct StepTimeout {
  double least = 0;  // 0: no bound
  double row = 0, position = 0;

  double more(const sched::StepPlan& plan) const;  // beyond `least`
};

// Resolves EngineOptions::step_timeout_s. The default on the CPU is half an hour. A GPU whose steps depend on no other
// replica or node gets kLeastStepTimeout, the time that a step may wait for grammar masks, and the time of its
// arithmetic at a tenth or less of a GPU's rate (5 TFLOP/s; with fp32, and for plain attention, 0.5). So a hang ends
// every request within seconds, and a long prompt is no hang. Any other GPU gets a minute.
StepTimeout step_timeout(const EngineOptions& options, const ResolvedModels& models);
inline constexpr double kLeastStepTimeout = 3.5;

// How long a loading process may neither read nor report; 0: no bound. It is a minute while requests wait, else five,
// because a driver may have to compile kernels; EngineOptions::step_timeout_s if that is more.
std::chrono::seconds load_silence(const EngineOptions& options, bool requests_wait);

// A sentence that a step has taken longer than this.
std::string step_hangs(double seconds);

}  // namespace volley::engine

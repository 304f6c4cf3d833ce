// The engine's work between two snapshots of its counters. Arithmetic only.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <vector>

namespace volley::apps {

// Counts blocks that verified a position: all, those predicted to survive there (sum of chances), and those that did.
struct PositionSurvival {
  int64_t verified = 0, survived = 0;
  double predicted = 0;
};

struct StatsWindow {
  int64_t steps = 0;                       // target passes
  int64_t probes = 0, plain = 0;           // among steps that decode: drafted to learn; drafted nothing
  double seconds = 0, idle_s = 0;          // the steps and the time between them; the device's idle part of it
  double tokens = 0;                       // generated; with simulated acceptance, the expected number
  double draft = 0, rows = 0;              // means of a step: drafted tokens a request, rows of all that decode
  double experts = 0;                      // distinct experts of a step, over all layers
  double predicted_tokens = 0;             // with --verify auto: the policy's prediction for the same steps
  double predicted_s = 0, measured_s = 0;  // predicted and measured time of these steps
  std::vector<PositionSurvival> survival;  // by position in the block

  double tok_s() const { return seconds > 0 ? tokens / seconds : 0; }
  double step_ms() const { return steps > 0 ? seconds / static_cast<double>(steps) * 1e3 : 0; }
};

struct WindowKind {
  bool on_cpu = false;     // the host works between the steps; on a GPU it works beside them
  bool simulated = false;  // acceptance is simulated
};

StatsWindow window_between(const EngineStats& before, const EngineStats& after, const WindowKind& kind);

}  // namespace volley::apps

// What an engine did between two snapshots of its counters. Arithmetic only.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <vector>

namespace volley::apps {

// Blocks that verified a position: how many there are, in how many it and all before it were predicted to survive (sum
// of chances), and in how many they did.
struct PositionSurvival {
  int64_t verified = 0, survived = 0;
  double predicted = 0;
};

struct StatsWindow {
  int64_t steps = 0;                       // target passes
  int64_t probes = 0, plain = 0;           // of those that decode: drafted to learn; drafted nothing
  double seconds = 0, idle_s = 0;          // the steps and what was between them; of that, the device without work
  double tokens = 0;                       // generated; of simulated acceptance, the expected ones
  double draft = 0, rows = 0;              // means of a step: drafted tokens a request, rows of all that decode
  double experts = 0;                      // distinct experts that a step touched, over all layers
  double predicted_tokens = 0;             // with --verify auto: what the policy expected of the same steps
  double predicted_s = 0, measured_s = 0;  // and how long it thought that they take, and they took
  std::vector<PositionSurvival> survival;  // by position in the block

  double tok_s() const { return seconds > 0 ? tokens / seconds : 0; }
  double step_ms() const { return steps > 0 ? seconds / static_cast<double>(steps) * 1e3 : 0; }
};

struct WindowKind {
  bool on_cpu = false;     // the host's work comes between the steps; on a GPU it goes on beside them
  bool simulated = false;  // acceptance is
};

StatsWindow window_between(const EngineStats& before, const EngineStats& after, const WindowKind& kind);

}  // namespace volley::apps

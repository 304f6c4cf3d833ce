#include "apps/bench/stats_window.h"

#include <algorithm>

namespace volley::apps {
namespace {

// Increments by position; the older snapshot may have fewer positions.
template <typename Number>
Number growth(const std::vector<Number>& before, const std::vector<Number>& after, size_t i) {
  const Number now = i < after.size() ? after[i] : Number{0};
  return now - (i < before.size() ? before[i] : Number{0});
}

double mean_draft(const EngineStats::Verify& before, const EngineStats::Verify& after) {
  int64_t steps = 0, tokens = 0;
  for (size_t n = 0; n < after.draft_lengths.size(); ++n) {
    const int64_t count = growth(before.draft_lengths, after.draft_lengths, n);
    steps += count;
    tokens += count * static_cast<int64_t>(n);
  }
  return steps > 0 ? static_cast<double>(tokens) / static_cast<double>(steps) : 0;
}

}  // namespace

StatsWindow window_between(const EngineStats& before, const EngineStats& after, const WindowKind& kind) {
  const EngineStats::Verify &old = before.verify, &now = after.verify;
  StatsWindow window;
  window.steps = after.steps - before.steps;
  window.probes = now.probes - old.probes;
  window.plain = now.plain - old.plain;
  window.idle_s = after.idle_s - before.idle_s;
  window.seconds = after.device_s - before.device_s + window.idle_s + (kind.on_cpu ? after.host_s - before.host_s : 0);
  window.tokens = kind.simulated ? now.expected_tokens - old.expected_tokens
                                 : static_cast<double>(after.generated_tokens - before.generated_tokens);
  window.draft = mean_draft(old, now);
  if (now.steps > old.steps) {
    window.rows = static_cast<double>(now.rows - old.rows) / static_cast<double>(now.steps - old.steps);
  }
  if (window.steps > 0) {
    window.experts =
        static_cast<double>(after.experts_touched - before.experts_touched) / static_cast<double>(window.steps);
  }
  window.predicted_tokens = now.predicted_tokens - old.predicted_tokens;
  window.predicted_s = now.predicted_s - old.predicted_s;
  window.measured_s = now.measured_s - old.measured_s;
  for (size_t i = 0; i < now.verified_at.size(); ++i) {
    window.survival.push_back({growth(old.verified_at, now.verified_at, i), growth(old.survived_at, now.survived_at, i),
                               growth(old.predicted_at, now.predicted_at, i)});
  }
  return window;
}

}  // namespace volley::apps

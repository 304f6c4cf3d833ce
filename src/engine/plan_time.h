// When to plan the next step while one runs on the device: so late that requests that come meanwhile are in it, which
// would else wait for two steps, and early enough for the device not to wait. Arithmetic only: times come in. Threads:
// one, the engine's.
#pragma once

#include <chrono>
#include <deque>
#include <optional>

namespace volley::engine {

class PlanTime {
 public:
  using Clock = std::chrono::steady_clock;

  // A step was planned and enqueued from `begin` to `end`. The device takes at least `least_s` for it; 0: not known.
  void planned(Clock::time_point begin, Clock::time_point end, double least_s);
  // From `begin` on the results of the oldest step were waited for, and at `arrived` they were there.
  void landed(Clock::time_point begin, Clock::time_point arrived);

  // Until when to wait with the next step; nothing: it can be planned at once.
  std::optional<Clock::time_point> next() const;

 private:
  std::deque<Clock::duration> least_;       // of the steps under way, the oldest first
  std::optional<Clock::time_point> began_;  // when the device came to the oldest one, where that is known
  Clock::duration planning_ = {};           // what planning takes: the longest of late, which fades
};

}  // namespace volley::engine
